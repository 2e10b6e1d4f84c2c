import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';

import { attachedPods } from '../support/leftovers.js';
import type { ProcessName } from '../support/stack.js';
import { until } from '../support/until.js';
import { RuntimeNode } from './node.js';

// These calls wait for a frozen process, and must not time out before it resumes.
const DEADLINES = { PODWIRE_NODE_ADD_TIMEOUT_MS: '60000', PODWIRE_NODE_DEL_TIMEOUT_MS: '60000' };

const node = new RuntimeNode({ env: DEADLINES });

beforeAll(() => node.start(), 120_000);

afterEach(async () => {
  // A failed test must not leave the next ones a process that never answers.
  for (const letGo of frozen.splice(0)) letGo();
  await node.expectNothingLeft();
}, 120_000);

afterAll(() => node.destroy());

const frozen: (() => void)[] = [];

/** Freezes a process, like a swapping machine; the returned function resumes it. */
function freeze(name: ProcessName): () => void {
  const pid = node.stack.pid(name);
  process.kill(pid, 'SIGSTOP');
  const letGo = () => void process.kill(pid, 'SIGCONT');
  frozen.push(letGo);
  return letGo;
}

const untilBegun = (command: 'ADD' | 'DEL') =>
  until(
    () => node.containerd.plugins(command).length > 0,
    () => `containerd runs no ${command}`,
  );
const untilEnded = (command: 'ADD' | 'DEL') =>
  until(
    () => node.containerd.plugins(command).length === 0,
    () => `the ${command} does not end`,
  );

/** A request: podwire-ipam allocates the addresses of such pods within the ADD. */
const ASKING = { annotations: { 'cni.projectcalico.org/hwAddr': '02:00:00:00:00:07' } };

/** A pod whose ADD has reached a frozen process. */
async function beginning(name: string, at: ProcessName) {
  const letGo = freeze(at);
  const outcome = node.run(name, ASKING).catch(String);
  await untilBegun('ADD');
  return { letGo, outcome };
}

describe.each(['ipam', 'node'] as const)('containerd killed while an ADD waits for podwire-%s', (at) => {
  test('that resumes before containerd restarts: the pod’s DEL removes everything', async () => {
    const { letGo, outcome } = await beginning(`orphan-${at}`, at);
    await node.containerd.kill();
    letGo();
    await untilEnded('ADD');
    expect(await outcome).toMatch(/RunPodSandbox/);
    await node.containerd.start();
    await node.removeAll();
  }, 120_000);

  test('that resumes while the DEL waits: the same', async () => {
    const { letGo, outcome } = await beginning(`superseded-${at}`, at);
    await node.containerd.kill();
    await outcome;
    await node.containerd.start();
    const removed = node.removeAll();
    await untilBegun('DEL');
    letGo();
    await removed;
    await untilEnded('ADD');
  }, 120_000);
});

test('kubelet drops a pod while its ADD waits for IPAM', async () => {
  const letGo = freeze('ipam');
  const config = node.containerd.pod('given-up', ASKING);
  const outcome = node.containerd.cri.run(config, 1000).catch(String);
  expect(await outcome).toMatch(/DEADLINE_EXCEEDED|Deadline/);
  letGo();
  // containerd has killed the plugin and deletes its possible results; kubelet deletes the pods it sees.
  const isClean = async () => {
    await node.removeAll();
    return (await node.containerd.leftovers()).length === 0;
  };
  await until(isClean, () => `the sandbox is not removed:\n${node.containerd.log()}`);
}, 120_000);

test('killed containerd leaves pods their network, and its next process can delete them', async () => {
  const pods = [await node.run('survivor-a', { ports: { 18080: 8080 } }), await node.run('survivor-b')];
  await node.containerd.kill();
  node.expectReachable(pods);
  await node.containerd.start();
  node.expectReachable(pods);
  await node.expectHolding(pods);
  await node.removeAll();
}, 120_000);

test('a pod’s next sandbox is unaffected by late DELs of the dead one', async () => {
  const died = await node.run('again');
  await node.containerd.killPod(died.id);
  const next = await node.run('again', { attempt: 1 });
  await node.expectHolding([died, next]);
  await node.containerd.cri.stop(died.id);
  await node.expectHolding([next]);
  await node.remove(died);
  await node.expectHolding([next]);
  node.expectReachable([next]);
  await node.remove(next);
}, 120_000);

test('after a reboot every pod gets a unique address, and the old addresses are released', async () => {
  const names = ['web', 'db', 'cache'];
  const old = await Promise.all(names.map((name, i) => node.run(name, { ports: { [18080 + i]: 8080 } })));
  await node.reboot();
  expect(await attachedPods(node.stack)).toEqual([]);
  const states = (await node.containerd.cri.list()).map(({ id, state }) => `${id} ${state}`);
  expect(states.sort()).toEqual(old.map(({ id }) => `${id} SANDBOX_NOTREADY`).sort());
  // One starts before the old ones are deleted, two after.
  const [first, ...rest] = names;
  const young = [await node.run(first!, { ports: { 18080: 8080 }, attempt: 1 })];
  expect(old.map(({ address }) => address)).not.toContain(young[0]!.address);
  for (const pod of old) await node.remove(pod);
  for (const name of rest) young.push(await node.run(name, { attempt: 1 }));
  await node.expectHolding(young);
  node.expectReachable(young);
  await node.removeAll();
}, 120_000);
