import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest';

import { allocations, attachedPods } from '../support/leftovers.js';
import type { ProcessName } from '../support/stack.js';
import { until } from '../support/until.js';
import { RuntimeNode } from './node.js';

// What waits here waits for a frozen process, and must not end by itself before that goes on.
const DEADLINES = { PODWIRE_PLUGIN_ADD_TIMEOUT_MS: '60000', PODWIRE_PLUGIN_DEL_TIMEOUT_MS: '60000' };

const node = new RuntimeNode({ env: DEADLINES });

beforeAll(() => node.start(), 120_000);

afterEach(async () => {
  // A test that has failed must not leave the others a process that never answers.
  for (const letGo of frozen.splice(0)) letGo();
  await node.expectNothingLeft();
}, 120_000);

afterAll(() => node.destroy());

const frozen: (() => void)[] = [];

/** Stops a process without ending it, as a machine does that swaps; the returned function lets it go on. */
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

/** A pod whose ADD has got as far as a frozen process. */
async function beginning(name: string, at: ProcessName) {
  const letGo = freeze(at);
  const outcome = node.run(name).catch(String);
  await untilBegun('ADD');
  if (at === 'dataplane') {
    await until(
      async () => (await allocations(node.stack)).length === 1,
      () => 'the ADD does not reach IPAM',
    );
  }
  return { letGo, outcome };
}

describe.each(['ipam', 'dataplane'] as const)('containerd killed while an ADD waits for podwire-%s', (at) => {
  test('that goes on before containerd is back: the pod’s DEL takes everything away', async () => {
    const { letGo, outcome } = await beginning(`orphan-${at}`, at);
    await node.containerd.kill();
    letGo();
    await untilEnded('ADD');
    expect(await outcome).toMatch(/RunPodSandbox/);
    await node.containerd.start();
    await node.removeAll();
  }, 120_000);

  test('that goes on while the DEL waits, too', async () => {
    const { letGo, outcome } = await beginning(`overtaken-${at}`, at);
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

test('kubelet gives up on a pod while its ADD waits for IPAM', async () => {
  const letGo = freeze('ipam');
  const config = node.containerd.pod('given-up');
  const outcome = node.containerd.cri.run(config, 1000).catch(String);
  expect(await outcome).toMatch(/DEADLINE_EXCEEDED|Deadline/);
  letGo();
  // containerd has killed the plugin and deletes what it may have made; kubelet deletes what it sees.
  const isClean = async () => {
    await node.removeAll();
    return (await node.containerd.leftovers()).length === 0;
  };
  await until(isClean, () => `the sandbox is not removed:\n${node.containerd.log()}`);
}, 120_000);

test('containerd that is killed leaves pods their network, and the next one can delete them', async () => {
  const pods = [await node.run('survivor-a', { ports: { 18080: 8080 } }), await node.run('survivor-b')];
  await node.containerd.kill();
  node.expectReachable(pods);
  await node.containerd.start();
  node.expectReachable(pods);
  await node.expectHolding(pods);
  await node.removeAll();
}, 120_000);

test('a pod’s next sandbox lives beside the one that died, whose late DELs do not reach it', async () => {
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

test('after a reboot every pod gets an address that nobody has, and what the old ones held comes back', async () => {
  const names = ['web', 'db', 'cache'];
  const old = await Promise.all(names.map((name, i) => node.run(name, { ports: { [18080 + i]: 8080 } })));
  await node.reboot();
  expect(await attachedPods(node.stack)).toEqual([]);
  const states = (await node.containerd.cri.list()).map(({ id, state }) => `${id} ${state}`);
  expect(states.sort()).toEqual(old.map(({ id }) => `${id} SANDBOX_NOTREADY`).sort());
  // One comes up before the old ones are taken down, two after.
  const [first, ...others] = names;
  const young = [await node.run(first!, { ports: { 18080: 8080 }, attempt: 1 })];
  expect(old.map(({ address }) => address)).not.toContain(young[0]!.address);
  for (const pod of old) await node.remove(pod);
  for (const name of others) young.push(await node.run(name, { attempt: 1 }));
  await node.expectHolding(young);
  node.expectReachable(young);
  await node.removeAll();
}, 120_000);
