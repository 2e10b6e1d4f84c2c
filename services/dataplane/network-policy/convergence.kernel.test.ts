import { systemClock } from '@podwire/shared/runtime/clock';
import fc from 'fast-check';
import { afterEach, beforeEach, expect, test } from 'vitest';

import type { NetlinkNft } from '../kernel/netlink-nft.js';
import { cleanUp, requireThrowawayNamespace, run } from '../testing/kernels.js';
import { kernelNft, until } from '../testing/nft.js';
import { accept, member, message, podMessage, profile, wholeSet } from '../testing/network-policy/policies.js';
import { PolicyNode, policyPod } from '../testing/network-policy/policy-node.js';

/** Random changes that overlap: the table ends as one that is written at once. */

const seed = Number(process.env.POLICY_SEED ?? Math.floor(Math.random() * 2 ** 31));
const ROUNDS = 12;

const SETS = ['a-0', 'a-1', 'a-2', 'p-0', 'p-1'];
const PODS = ['a', 'b', 'c', 'd'];

type Change =
  | { readonly kind: 'assign'; readonly pod: string; readonly sets: readonly string[] }
  | { readonly kind: 'clear'; readonly pod: string }
  | { readonly kind: 'members'; readonly set: string; readonly numbers: readonly number[] }
  | { readonly kind: 'install' | 'forget'; readonly pod: string; readonly number: number }
  | { readonly kind: 'pause'; readonly ms: number };

const pod = fc.constantFrom(...PODS);
const change: fc.Arbitrary<Change> = fc.oneof(
  fc.record({ kind: fc.constant('assign' as const), pod, sets: fc.subarray(SETS, { maxLength: 3 }) }),
  fc.record({ kind: fc.constant('clear' as const), pod }),
  fc.record({
    kind: fc.constant('members' as const),
    set: fc.constantFrom(...SETS),
    numbers: fc.uniqueArray(fc.integer({ min: 1, max: 6 }), { minLength: 1, maxLength: 4 }),
  }),
  fc.record({
    kind: fc.constantFrom('install' as const, 'forget' as const),
    pod,
    number: fc.integer({ min: 1, max: 3 }),
  }),
  fc.record({ kind: fc.constant('pause' as const), ms: fc.integer({ min: 0, max: 40 }) }),
);

let nft: NetlinkNft;
let node: PolicyNode;
let profileCount = 0;
/** Sets of each pod's profile. */
const assigned = new Map<string, { readonly id: string; readonly sets: readonly string[] }>();
const members = new Map<string, Set<string>>();

const text = (set: string, number: number) => (set.startsWith('p-') ? `10.0.0.${number} 6 80` : `10.0.0.${number}`);

/** Makes a change, as podwire-ipam or the dataplane does. Resolves when it is in force. */
function make(each: Change): Promise<void> {
  switch (each.kind) {
    case 'pause':
      return systemClock.sleep(each.ms, new AbortController().signal).then(() => undefined);
    case 'install':
      return node.filter.install(
        policyPod(each.pod, `podw${each.pod}`, [`10.65.0.${each.number}`, `fd00::${each.number}`]),
      );
    case 'forget':
      return node.filter.forget(`podw${each.pod}`);
    case 'members':
      return changeMembers(each.set, each.numbers);
    case 'clear':
      assigned.delete(each.pod);
      return node.receive(message({ pods: [podMessage(each.pod, {})], removedIds: unused() }));
    case 'assign':
      return assign(each.pod, each.sets);
  }
}

function changeMembers(set: string, numbers: readonly number[]): Promise<void> {
  const held = members.get(set);
  if (!held) return Promise.resolve();
  const texts = numbers.map((number) => text(set, number));
  const [removed, added] = [texts.filter((each) => held.has(each)), texts.filter((each) => !held.has(each))];
  for (const each of removed) held.delete(each);
  for (const each of added) held.add(each);
  const messages = (list: readonly string[]) => list.map((each) => member(each));
  return node.receive(
    message({ sets: [{ id: set, isWhole: false, added: messages(added), removed: messages(removed) }] }),
  );
}

function assign(name: string, sets: readonly string[]): Promise<void> {
  const id = `profile-${profileCount++}`;
  assigned.set(name, { id, sets });
  const fresh = sets.filter((set) => !members.has(set));
  for (const set of fresh) members.set(set, new Set([text(set, 1), text(set, 2)]));
  const peers = { sets: sets.filter((set) => set.startsWith('a-')), networks: [] };
  const ports = { ranges: [], sets: sets.filter((set) => set.startsWith('p-')) };
  const rules = [accept({ peers }), accept({ ports })];
  return node.receive(
    message({
      sets: fresh.map((set) => wholeSet(set, [...(members.get(set) ?? [])])),
      profiles: [profile({ id, direction: 'ingress', isolatedBy: ['NetworkPolicy default/x'], rules })],
      pods: [podMessage(name, { ingress: id })],
      removedIds: unused(),
    }),
  );
}

/** The IDs that no pod uses. */
function unused(): string[] {
  const used = new Set([...assigned.values()].flatMap(({ id, sets }) => [id, ...sets]));
  const ids = [...node.view.profiles.keys(), ...members.keys()].filter((id) => !used.has(id));
  for (const id of ids) members.delete(id);
  return ids;
}

/** The table without counters, its elements sorted. */
function listed(): string {
  const lines = run('nft', '-s', 'list', 'table', 'inet', 'podwire_policy')
    .replace(/elements = \{([^}]*)\}/g, (_, elements: string) =>
      elements
        .split(',')
        .map((element) => element.trim())
        .toSorted()
        .join(', '),
    )
    .split(/\n(?=\t\w)/);
  return lines.toSorted().join('\n');
}

beforeEach(async () => {
  requireThrowawayNamespace();
  nft = kernelNft();
  node = new PolicyNode({ nft });
  await node.filter.start([]);
  await node.receiveSnapshot(message({ isComplete: true, namespaces: ['default'] }));
  node.events.takeLines();
});

afterEach(async () => {
  await node.filter.stop();
  await nft.close();
  cleanUp();
});

test(`overlapping changes with the seed ${seed} end in the table that is written at once`, async () => {
  const changes = fc.array(change, { minLength: 10, maxLength: 25 });
  for (const [round, drawn] of fc.sample(changes, { seed, numRuns: ROUNDS }).entries()) {
    const made: Promise<void>[] = [];
    for (const each of drawn) {
      const done = make(each);
      if (each.kind === 'pause') await done;
      else made.push(done);
    }
    await Promise.all(made);
    // No change needed a replacement of the table.
    expect(node.events.takeLines()).toEqual([]);
    let before = '';
    // Unused chains and sets go a second later.
    await until(() => {
      before = listed();
      const ids = [...before.matchAll(/(?:set|chain) (?:i-)?([ap]-\d|profile-\d+)/g)].map(([, id = '']) => id);
      return ids.every((id) => members.has(id) || node.view.profiles.has(id));
    });
    run('nft', 'flush', 'ruleset');
    await until(() => node.events.lines.length > 0);
    await node.filter.update({ sets: new Map(), hasPods: true });
    expect(listed(), `round ${round}`).toBe(before);
    expect(node.events.takeLines()).toEqual(['inet podwire_policy written: drift']);
  }
});
