import { rmSync } from 'node:fs';

import { Failure } from '@podwire/shared/failure/failure';
import { afterEach, beforeEach, expect, test } from 'vitest';

import type { NetlinkNft } from '../kernel/netlink-nft.js';
import type { Nft } from '../nft/nft.js';
import { listRuleset } from '../testing/contracts/nft-contract.js';
import { firstPacket, UDP } from '../testing/frames.js';
import { cleanUp, requireThrowawayNamespace, run } from '../testing/kernels.js';
import { kernelNft, until } from '../testing/nft.js';
import { accept, denied, member, message, podMessage, profile, wholeSet } from '../testing/network-policy/policies.js';
import { PolicyNode, policyPod } from '../testing/network-policy/policy-node.js';
import { OUTSIDE, PODS, Prober, wireEnds, type ProbedEnd } from '../testing/network-policy/policy-pods.js';

/** A node's policies from the first start on, with the failures around them, on the kernel. */

const [A, B, C] = [PODS[0]!, PODS[1]!, PODS[2]!];
const ENDS = [A, B, C, OUTSIDE];

/** Connection tracking outlives a test, so no test uses the ports of another. */
let port = 20_000;

let prober: Prober;
let nodes: PolicyNode[];
let nft: NetlinkNft;

beforeEach(() => {
  requireThrowawayNamespace();
  wireEnds(ENDS);
  prober = new Prober(ENDS.map(({ name }) => name));
  nodes = [];
  nft = kernelNft();
});

afterEach(async () => {
  for (const node of nodes) await node.filter.stop();
  await nft.close();
  await prober.stop();
  cleanUp();
  for (const { recordsDirectory } of nodes)
    rmSync(recordsDirectory.replace(/\/[^/]*$/, ''), { recursive: true, force: true });
});

/** @param recordsDirectory - of the process before */
async function start(pods: readonly ProbedEnd[], recordsDirectory?: string, own: Nft = nft): Promise<PolicyNode> {
  const node = new PolicyNode({ nft: own, ...(recordsDirectory !== undefined && { recordsDirectory }) });
  nodes.push(node);
  await node.filter.start(pods.map(({ name, device }) => policyPod(name, device)));
  return node;
}

const install = (node: PolicyNode, { name, device }: ProbedEnd, namespace = 'default') =>
  node.filter.install({ ...policyPod(name, device), pod: { namespace, name, uid: `uid-${name}` } });

const packet = (from: ProbedEnd, to: ProbedEnd, sourcePort = port++) => ({
  from: from.name,
  to: to.name,
  packet: firstPacket({
    source: from.addresses[4],
    destination: to.addresses[4],
    protocol: UDP,
    sourcePort,
    port: 80,
  }),
});

/** Whether new connections pass, for each pair. */
const connects = (...pairs: readonly (readonly [ProbedEnd, ProbedEnd])[]) =>
  prober.send(pairs.map(([from, to]) => packet(from, to)));

/** Pod a receives from pod b alone, pod b from all. */
const onlyB = message({
  isComplete: true,
  profiles: [
    profile({
      id: 'from-b',
      direction: 'ingress',
      isolatedBy: ['NetworkPolicy default/from-b'],
      rules: [accept({ peers: { sets: ['a-b'], networks: [] } })],
    }),
  ],
  sets: [wholeSet('a-b', [B.addresses[4]])],
  pods: [podMessage(A.name, { ingress: 'from-b' }), podMessage(B.name, {})],
  namespaces: ['default'],
});

const table = () => run('nft', 'list', 'table', 'inet', 'podwire_policy');

test('kube-proxy’s mode ipvs is reported once the cluster has policies', async () => {
  const node = new PolicyNode({ nft, usesIpvs: true });
  nodes.push(node);
  await node.filter.start([]);
  await node.receiveSnapshot(message({ isComplete: true }));
  expect(node.filter.conditions()).toEqual([]);
  await node.receiveSnapshot(message({ isComplete: true, namespaces: ['default'] }));
  expect(node.filter.conditions()).toMatchObject([
    { reason: 'PoliciesNotEnforced', message: expect.stringContaining('IPVS') },
  ]);
});

test('before the first snapshot each new pod is isolated, afterwards unknown pods of namespaces with policies', async () => {
  const node = await start([]);
  await install(node, A);
  await install(node, B);
  expect(await connects([A, B], [OUTSIDE, A], [A, OUTSIDE])).toEqual([false, false, false]);
  expect(node.filter.conditions()).toMatchObject([{ reason: 'PodPolicyUnknown' }]);
  await node.receiveSnapshot(onlyB);
  expect(node.filter.conditions()).toEqual([]);
  expect(await connects([B, A], [A, B], [OUTSIDE, A], [A, OUTSIDE])).toEqual([true, true, false, true]);
  await install(node, C);
  expect(await connects([C, OUTSIDE], [OUTSIDE, C])).toEqual([false, false]);
  await install(node, C, 'open');
  expect(await connects([C, OUTSIDE], [OUTSIDE, C])).toEqual([true, true]);
});

test('pods that ran before policies were turned on stay open until the first snapshot', async () => {
  const node = await start([A, B]);
  expect(await connects([OUTSIDE, A], [A, B])).toEqual([true, true]);
  await install(node, C);
  expect(await connects([OUTSIDE, C])).toEqual([false]);
  await node.receiveSnapshot(onlyB);
  expect(await connects([OUTSIDE, A], [B, A])).toEqual([false, true]);
});

test('a restart without podwire-ipam changes nothing, and filters new pods by the last policies', async () => {
  const first = await start([]);
  for (const pod of [A, B]) await install(first, pod);
  await first.receiveSnapshot(onlyB);
  await first.receive(message({ pods: [podMessage(C.name, { ingress: 'from-b' })] }));
  const before = listRuleset();
  await first.filter.stop();
  const node = await start([A, B], first.recordsDirectory);
  expect(listRuleset()).toBe(before);
  expect(await connects([B, A], [OUTSIDE, A])).toEqual([true, false]);
  // Repairs install the filters of all pods.
  for (const pod of [A, B, C]) await install(node, pod);
  expect(await connects([B, A], [OUTSIDE, A], [B, C], [OUTSIDE, C])).toEqual([true, false, true, false]);
  await node.filter.forget(C.device);
  expect(await connects([B, C], [B, A], [OUTSIDE, A])).toEqual([false, true, false]);
  await node.receiveSnapshot(onlyB);
  expect(await connects([B, A], [OUTSIDE, A])).toEqual([true, false]);
});

/** Ends a process, and its subscription. */
async function end(node: PolicyNode): Promise<void> {
  await node.filter.stop();
  await nft.close();
  nft = kernelNft();
}

test('a pod that was recorded before its filter was written is not open after a restart', async () => {
  const first = await start([]);
  await install(first, B);
  await first.receiveSnapshot(onlyB);
  await end(first);
  await start([A, B], first.recordsDirectory);
  expect(await connects([OUTSIDE, A], [OUTSIDE, B], [B, A])).toEqual([false, true, true]);
});

test('a repair without podwire-ipam opens a pod at no moment', async () => {
  const first = await start([]);
  for (const pod of [A, B]) await install(first, pod);
  await first.receiveSnapshot(onlyB);
  await end(first);
  const seen: boolean[] = [];
  const watched: Nft = {
    ...methodsOf(nft),
    changeElements: async (name, changes) => {
      const transaction = await nft.changeElements(name, changes);
      seen.push(...(await connects([OUTSIDE, A])));
      return transaction;
    },
  };
  const node = await start([A, B], first.recordsDirectory, watched);
  await install(node, A);
  expect(seen.length).toBeGreaterThan(0);
  expect(seen).not.toContain(true);
  expect(await connects([B, A])).toEqual([true]);
});

test('a table that was lost while no process ran is written from the stored policies', async () => {
  const first = await start([]);
  for (const pod of [A, B]) await install(first, pod);
  await first.receiveSnapshot(onlyB);
  await first.filter.stop();
  // Another process has a subscription of its own, which does not report earlier changes.
  await nft.close();
  run('nft', 'flush', 'ruleset');
  nft = kernelNft();
  await start([A, B], first.recordsDirectory);
  expect(await connects([OUTSIDE, A])).toEqual([false]);
  // The report of the flush may arrive now: then the table is written again, and isolates its pods meanwhile.
  await expect.poll(() => connects([B, A], [OUTSIDE, A])).toEqual([true, false]);
});

test.each([
  ['empties the table', ['flush', 'table', 'inet', 'podwire_policy']],
  ['empties a chain', ['flush', 'chain', 'inet', 'podwire_policy', 'i-from-b']],
  ['accepts everything', ['insert', 'rule', 'inet', 'podwire_policy', 'forward', 'accept']],
  ['opens a pod', ['delete', 'element', 'inet', 'podwire_policy', 'ingress', `{ "${A.device}" : jump i-from-b }`]],
])('a start restores the table after another program %s while no process ran', async (_, command) => {
  const first = await start([]);
  for (const pod of [A, B]) await install(first, pod);
  await first.receiveSnapshot(onlyB);
  await end(first);
  run('nft', ...command);
  await start([A, B], first.recordsDirectory);
  await expect.poll(() => connects([B, A], [OUTSIDE, A])).toEqual([true, false]);
});

test('policies that were turned on, and never received, isolate the pods of an earlier process', async () => {
  const first = await start([]);
  await install(first, A);
  await first.filter.stop();
  run('nft', 'flush', 'ruleset');
  await start([A], first.recordsDirectory);
  expect(await connects([OUTSIDE, A])).toEqual([false]);
});

test.each<[string, readonly string[]]>([
  ['deletes all tables', ['flush', 'ruleset']],
  ['deletes the table', ['delete', 'table', 'inet', 'podwire_policy']],
  ['accepts everything in the table', ['insert', 'rule', 'inet', 'podwire_policy', 'forward', 'accept']],
  ['empties a chain', ['flush', 'chain', 'inet', 'podwire_policy', 'i-from-b']],
  ['adds a member', ['add', 'element', 'inet', 'podwire_policy', 'a-b-4', `{ ${OUTSIDE.addresses[4]} }`]],
])('the table is restored after another program %s', async (_, command) => {
  const node = await start([]);
  for (const pod of [A, B]) await install(node, pod);
  await node.receiveSnapshot(onlyB);
  const before = table();
  run('nft', ...command);
  await until(() => node.events.lines.some((line) => line.endsWith('written: drift')));
  await until(() => table() === before);
  expect(await connects([B, A], [OUTSIDE, A])).toEqual([true, false]);
});

test('after lost reports the table is compared, and restored if another program has changed it', async () => {
  const reads = { count: 0 };
  let lose: () => void = () => undefined;
  const deaf: Nft = {
    ...methodsOf(nft),
    read: async (name) => {
      const objects = await nft.read(name);
      reads.count++;
      return objects;
    },
    watch: (_, watcher) => {
      lose = () => watcher.onChange(undefined, false);
      return Promise.resolve({ close: () => undefined });
    },
  };
  const node = await start([], undefined, deaf);
  for (const pod of [A, B]) await install(node, pod);
  await node.receiveSnapshot(onlyB);
  node.events.takeLines();
  lose();
  await until(() => reads.count === 1);
  run('nft', 'flush', 'chain', 'inet', 'podwire_policy', 'i-from-b');
  lose();
  await until(() => node.events.lines.length > 0);
  expect([reads.count, node.events.takeLines()]).toEqual([2, ['inet podwire_policy written: found']]);
  run('nft', 'add', 'element', 'inet', 'podwire_policy', 'a-b-4', `{ ${OUTSIDE.addresses[4]} }`);
  lose();
  await until(() => node.events.lines.length > 0);
  expect(await connects([B, A], [OUTSIDE, A])).toEqual([true, false]);
  // A lost table does not wait for the comparison.
  node.events.takeLines();
  run('nft', 'flush', 'ruleset');
  lose();
  await until(() => node.events.lines.length > 0);
  expect([reads.count, node.events.takeLines()]).toEqual([3, ['inet podwire_policy written: drift']]);
});

test('a pod is filtered although another program has just deleted the table', async () => {
  const node = await start([]);
  await node.receiveSnapshot(onlyB);
  run('nft', 'flush', 'ruleset');
  await install(node, A);
  expect(await connects([OUTSIDE, A], [B, A])).toEqual([false, false]);
});

test('rules that nft refuses isolate their pods, and no other ones', async () => {
  const refusing: Nft = {
    ...methodsOf(nft),
    apply: (commands) =>
      JSON.stringify(commands).includes('"i-bad"')
        ? Promise.reject(new Failure('KERNEL_REFUSED', 'nft refused i-bad'))
        : nft.apply(commands),
  };
  const node = await start([], undefined, refusing);
  for (const pod of [A, B, C]) await install(node, pod);
  const [good] = onlyB.profiles;
  const snapshot = message({
    isComplete: true,
    profiles: [denied('bad', 'ingress'), denied('other', 'ingress')],
    sets: onlyB.sets,
    pods: [podMessage(A.name, { ingress: 'from-b' }), podMessage(B.name, { ingress: 'bad' }), podMessage(C.name, {})],
    namespaces: ['default'],
  });
  await node.receiveSnapshot({ ...snapshot, profiles: [...snapshot.profiles, good!] });
  expect(await connects([B, A], [C, A], [A, B], [A, C])).toEqual([true, false, false, true]);
  expect(node.filter.conditions()).toMatchObject([
    { reason: 'PoliciesNotEnforced', message: expect.stringContaining('NetworkPolicy default/deny') },
  ]);
});

test('rules that nft refuses because the table was just deleted are not refused later', async () => {
  let isDeleted = false;
  const late: Nft = {
    ...methodsOf(nft),
    apply: async (commands) => {
      if (!isDeleted && JSON.stringify(commands).includes('"i-from-b"')) run('nft', 'flush', 'ruleset');
      isDeleted ||= JSON.stringify(commands).includes('"i-from-b"');
      await nft.apply(commands);
    },
  };
  const node = await start([], undefined, late);
  for (const pod of [A, B]) await install(node, pod);
  await node.receiveSnapshot(onlyB);
  await expect.poll(() => connects([B, A], [OUTSIDE, A])).toEqual([true, false]);
  expect(node.filter.conditions()).toEqual([]);
});

test('many rules are added in parts, as the kernel makes one transaction at a time', async () => {
  const counts: number[] = [];
  const counting: Nft = {
    ...methodsOf(nft),
    apply: (commands) => {
      counts.push(commands.length);
      if (!JSON.stringify(commands).includes('default/refused')) return nft.apply(commands);
      return Promise.reject(new Failure('KERNEL_REFUSED', 'nft refused it'));
    },
  };
  const node = await start([], undefined, counting);
  for (const pod of [A, B]) await install(node, pod);
  const rules = Array.from({ length: 1500 }, () => accept({ peers: { sets: ['a-b'], networks: [] } }));
  const isolatedBy = ['NetworkPolicy default/large'];
  await node.receiveSnapshot(onlyB);
  counts.length = 0;
  const large = profile({ id: 'large', direction: 'ingress', isolatedBy, rules });
  await node.receive(message({ profiles: [large], pods: [podMessage(A.name, { ingress: 'large' })] }));
  expect(counts.length).toBeGreaterThan(3);
  expect(Math.max(...counts)).toBeLessThanOrEqual(1000);
  expect(await connects([B, A], [OUTSIDE, A])).toEqual([true, false]);
  // A rule of the last part is refused.
  const refused = [...rules, accept({ policy: 'NetworkPolicy default/refused' })];
  const bad = profile({ id: 'bad', direction: 'ingress', isolatedBy, rules: refused });
  await node.receive(message({ profiles: [bad], pods: [podMessage(B.name, { ingress: 'bad' })] }));
  expect(await connects([B, A], [OUTSIDE, A], [OUTSIDE, B])).toEqual([true, false, false]);
  expect(node.filter.conditions()).toMatchObject([{ reason: 'PoliciesNotEnforced' }]);
});

test('a change of a set, a profile or a pod reaches the table alone, and what no pod uses is deleted', async () => {
  const node = await start([]);
  for (const pod of [A, B]) await install(node, pod);
  await node.receiveSnapshot(onlyB);
  const written = node.events.lines.length;
  const change = {
    id: 'a-b',
    isWhole: false,
    added: [member(OUTSIDE.addresses[4])],
    removed: [member(B.addresses[4], 7n)],
  };
  await node.receive(message({ sets: [change] }));
  // A removal of an earlier holder of the address changes nothing.
  expect(await connects([OUTSIDE, A], [B, A])).toEqual([true, true]);
  await node.receive(message({ sets: [{ ...change, added: [], removed: [member(B.addresses[4])] }] }));
  expect(await connects([OUTSIDE, A], [B, A])).toEqual([true, false]);
  await node.receive(
    message({ profiles: [denied('none', 'ingress')], pods: [podMessage(A.name, { ingress: 'none' })] }),
  );
  expect(await connects([OUTSIDE, A], [B, A])).toEqual([false, false]);
  await node.receive(message({ removedIds: ['from-b', 'a-b'] }));
  await until(() => !table().includes('from-b') && !table().includes('a-b-4'));
  await node.receive(message({ pods: [podMessage(A.name, {})] }));
  expect(await connects([OUTSIDE, A], [B, A])).toEqual([true, true]);
  // The table was never replaced.
  expect(node.events.lines.length).toBe(written);
});

test('while policies change, no packet passes that neither state allows, and none is lost that both allow', async () => {
  const node = await start([]);
  for (const pod of [A, B]) await install(node, pod);
  await node.receiveSnapshot(onlyB);
  const state = { isRunning: true };
  const changes = (async () => {
    for (let round = 0; round < 15; round++) {
      const id = `round-${round}`;
      const [set] = onlyB.profiles[0]!.rules[0]!.peers!.sets;
      const rules = [accept({ peers: { sets: [set!], networks: [] } })];
      const next = profile({ id, direction: 'ingress', isolatedBy: [id], rules });
      await node.receive(message({ profiles: [next], pods: [podMessage(A.name, { ingress: id })] }));
      await node.receive(message({ removedIds: [round === 0 ? 'from-b' : `round-${round - 1}`] }));
      await node.receiveSnapshot(
        message({
          isComplete: true,
          profiles: [next],
          pods: [podMessage(A.name, { ingress: id }), podMessage(B.name, {})],
          namespaces: ['default'],
        }),
      );
    }
  })().finally(() => (state.isRunning = false));
  const results = { allowed: 0, lost: 0, passed: 0 };
  while (state.isRunning) {
    const sent = await prober.send([packet(B, A), packet(OUTSIDE, A), packet(OUTSIDE, A)], 1);
    results.allowed += Number(sent[0]);
    results.lost += Number(!sent[0]);
    results.passed += Number(sent[1]) + Number(sent[2]);
  }
  await changes;
  expect(results).toMatchObject({ lost: 0, passed: 0 });
  expect(results.allowed).toBeGreaterThan(0);
});

test('a pod stays in its chain while nft adds the next one, though another pod is wired meanwhile', async () => {
  let add: () => void = () => undefined;
  const added = new Promise<void>((resolve) => (add = resolve));
  const slow: Nft = {
    ...methodsOf(nft),
    apply: async (commands) => {
      if (JSON.stringify(commands).includes('"i-next"')) await added;
      await nft.apply(commands);
    },
  };
  const node = await start([], undefined, slow);
  for (const pod of [A, B]) await install(node, pod);
  await node.receiveSnapshot(onlyB);
  const rules = [accept({ peers: { sets: ['a-b'], networks: [] } })];
  const next = profile({ id: 'next', direction: 'ingress', isolatedBy: ['NetworkPolicy default/next'], rules });
  const changed = node.receive(
    message({ profiles: [next], pods: [podMessage(A.name, { ingress: 'next' })], removedIds: ['from-b'] }),
  );
  await install(node, C, 'open');
  const meanwhile = await connects([B, A], [OUTSIDE, A], [OUTSIDE, C]);
  const removed = node.receive(message({ pods: [podMessage(A.name, {})], removedIds: ['next', 'a-b'] }));
  add();
  await Promise.all([changed, removed]);
  expect(meanwhile).toEqual([true, false, true]);
  expect(await connects([OUTSIDE, A])).toEqual([true]);
  await until(() => !table().includes('from-b') && !table().includes('i-next') && !table().includes('a-b-4'));
});

test('a set that goes with its profile keeps its members until the pods have left the chain', async () => {
  const seen: (readonly boolean[])[] = [];
  const watched: Nft = {
    ...methodsOf(nft),
    changeElements: async (name, changes) => {
      const transaction = await nft.changeElements(name, changes);
      if (changes.some(({ set }) => set.name.startsWith('a-'))) seen.push(await connects([B, A], [OUTSIDE, A]));
      return transaction;
    },
  };
  const node = await start([], undefined, watched);
  for (const pod of [A, B]) await install(node, pod);
  await node.receiveSnapshot(onlyB);
  seen.length = 0;
  const rules = [accept({ peers: { sets: ['a-next'], networks: [] } })];
  await node.receive(
    message({
      sets: [wholeSet('a-next', [B.addresses[4]])],
      profiles: [profile({ id: 'next', direction: 'ingress', isolatedBy: ['NetworkPolicy default/next'], rules })],
      pods: [podMessage(A.name, { ingress: 'next' })],
      removedIds: ['from-b', 'a-b'],
    }),
  );
  expect(seen).toEqual([[true, false]]);
  expect(await connects([B, A], [OUTSIDE, A])).toEqual([true, false]);
  await until(() => !table().includes('from-b') && !table().includes('a-b-4'));
});

/** The methods, bound to their object. */
function methodsOf(own: Nft): Nft {
  return {
    read: (name) => own.read(name),
    forwardChains: () => own.forwardChains(),
    apply: (commands) => own.apply(commands),
    changeElements: (name, changes) => own.changeElements(name, changes),
    latestTransaction: () => own.latestTransaction(),
    watch: (name, watcher) => own.watch(name, watcher),
  };
}
