import { statSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

import { afterAll, beforeAll, describe, expect, test } from 'vitest';

import { allocations, attachedPods } from '../support/leftovers.js';
import { callCni, makePod, NETWORK, removePod, type CniAnswer, type Pod } from '../support/pods.js';
import { pings } from '../support/programs.js';
import { Stack, type ProcessName } from '../support/stack.js';

const PODS = 100;

/** A pool that the pods of one round fill twice, so that a leaked address is noticed soon. */
const POOL = { PODWIRE_IPAM_DEFAULT_POOL_CIDR: '10.65.0.0/24', PODWIRE_IPAM_DEFAULT_POOL_BLOCK_SIZE: '26' };

/** The plugin's answer to an ADD without the killed process, within the test's patience. */
const SHORT_DEADLINES = { PODWIRE_NODE_ADD_TIMEOUT_MS: '3000', PODWIRE_NODE_CLEAN_UP_TIMEOUT_MS: '2000' };

const addressOf = (answer: CniAnswer): string => JSON.parse(answer.stdout).ips[0].address.split('/')[0];

describe.each<ProcessName>(['ipam', 'node'])('SIGKILL of %s in the middle of 100 ADDs, then restart', (victim) => {
  const stack = new Stack({ env: POOL });
  const pods: Pod[] = [];
  const call = (command: string, pod: Pod) => callCni({ command, pod, socket: stack.sockets.node });

  beforeAll(async () => {
    await stack.start();
    pods.push(...Array.from({ length: PODS }, (_, i) => makePod(`${victim}-${i}`)));
  });

  afterAll(async () => {
    await stack.destroy();
    pods.forEach(removePod);
  });

  test('every pod with a result has address and interface, and all other addresses can be allocated', async () => {
    const adding = pods.map((pod) => call('ADD', pod));
    await Promise.any(adding);
    await stack.kill(victim);
    await sleep(200);
    await stack.start(victim);
    const answers = await Promise.all(adding);
    const answered = pods.flatMap((pod, i) =>
      answers[i]!.exitCode === 0 ? [{ pod, address: addressOf(answers[i]!) }] : [],
    );
    const refused = pods.filter((_, i) => answers[i]!.exitCode !== 0);
    for (const { exitCode, stdout } of answers) if (exitCode !== 0) expect(JSON.parse(stdout)).toHaveProperty('code');

    expect(new Set(answered.map(({ address }) => address)).size).toBe(answered.length);
    const allocated = await allocations(stack);
    for (const { pod, address } of answered) {
      expect(allocated).toContainEqual(expect.objectContaining({ address, handleId: `${NETWORK}.${pod.containerId}` }));
      expect(pings(address, stack.netnsPath), `${pod.name} at ${address}`).toBe(true);
    }

    // The runtime's reaction to a failed ADD.
    const deleted = await Promise.all(refused.map((pod) => call('DEL', pod)));
    expect(deleted.filter(({ exitCode }) => exitCode !== 0)).toEqual([]);
    const held = (handles: readonly { handleId: string }[]) => handles.map(({ handleId }) => handleId).sort();
    const living = answered.map(({ pod }) => `${NETWORK}.${pod.containerId}`).sort();
    expect(held(await allocations(stack))).toEqual(living);
    expect(await attachedPods(stack)).toHaveLength(answered.length);

    const retried = await Promise.all(
      refused.map((pod) => call('ADD', { ...pod, containerId: `${pod.containerId}-again` })),
    );
    expect(retried.filter(({ exitCode }) => exitCode !== 0).map(({ stdout }) => stdout)).toEqual([]);
    expect(await allocations(stack)).toHaveLength(PODS);
  }, 180_000);
});

describe('a process that stays down', () => {
  const stack = new Stack({ env: { ...POOL, ...SHORT_DEADLINES, PODWIRE_NODE_LEASES_HIGH: '0' } });
  const pod = makePod('away');
  const call = (command: string) => callCni({ command, pod, socket: stack.sockets.node });

  beforeAll(() => stack.start());

  afterAll(async () => {
    await stack.destroy();
    removePod(pod);
  });

  test('ADD without podwire-node fails with the reason, and leaks no address', async () => {
    await stack.kill('node');
    const answer = await call('ADD');
    expect(answer.exitCode).toBe(1);
    expect(JSON.parse(answer.stdout)).toMatchObject({ code: 11, msg: expect.stringContaining(stack.sockets.node) });
    await stack.start('node');
    expect(await allocations(stack)).toEqual([]);
    // A machine under load may take longer than this ADD's few seconds.
    await expect.poll(() => call('ADD'), { timeout: 60_000 }).toMatchObject({ exitCode: 0 });
    expect(await call('DEL')).toMatchObject({ exitCode: 0 });
  }, 180_000);

  test('ADD without IPAM fails with "try again later" and attaches nothing', async () => {
    await stack.kill('ipam');
    const answer = await call('ADD');
    expect(answer.exitCode).toBe(1);
    expect(JSON.parse(answer.stdout)).toMatchObject({ code: 11, msg: expect.stringContaining('podwire-ipam') });
    expect(await attachedPods(stack)).toEqual([]);
    await stack.start('ipam');
    expect(await allocations(stack)).toEqual([]);
  }, 60_000);
});

describe('STATUS', () => {
  const status = (stack: Stack, pod: Pod, name: string) =>
    callCni({ command: 'STATUS', pod, socket: stack.sockets.node, config: { name, cniVersion: '1.1.0' } });
  const READY = { exitCode: 0, stdout: '' };

  describe('with strict readiness', () => {
    const stack = new Stack({ env: { PODWIRE_NODE_STRICT_STATUS: 'true' } });
    const pod = makePod('strict');

    beforeAll(() => stack.start());
    afterAll(async () => {
      await stack.destroy();
      removePod(pod);
    });

    test('does not wait for a hanging podwire-ipam, and names it', async () => {
      const pid = stack.pid('ipam');
      process.kill(pid, 'SIGSTOP');
      try {
        // The answer for one network is not used for another.
        for (let network = 0; network < 3; network++) {
          const answer = await status(stack, pod, `hangs-${network}`);
          expect(answer.exitCode).toBe(1);
          expect(JSON.parse(answer.stdout)).toMatchObject({
            code: 50,
            msg: expect.stringMatching('podwire-ipam .*within 300 ms'),
          });
        }
      } finally {
        process.kill(pid, 'SIGCONT');
      }
      await expect.poll(() => status(stack, pod, 'hangs-0'), { timeout: 30_000 }).toMatchObject(READY);
    });
  });

  test('of a node that was ready succeeds without podwire-ipam, also after a restart of podwire-node', async () => {
    const stack = new Stack({ env: { ...POOL, ...SHORT_DEADLINES } });
    const pod = makePod('keeps');
    await stack.start('node');
    const before = await status(stack, pod, 'net');
    expect(JSON.parse(before.stdout)).toMatchObject({ code: 50, msg: expect.stringContaining('podwire-ipam') });
    await stack.start('ipam');
    await expect.poll(() => status(stack, pod, 'net'), { timeout: 30_000 }).toMatchObject(READY);
    const lease = join(dirname(stack.sockets.node), 'node-ready');
    // The file is written with the present time first, and then with the end of the lease.
    await expect.poll(() => statSync(lease).mtimeMs - Date.now(), { timeout: 30_000 }).toBeGreaterThan(10_000);
    await stack.kill('ipam');
    await stack.kill('node');
    // The shim answers by itself until the end of the lease.
    expect(await status(stack, pod, 'net')).toMatchObject(READY);
    await stack.start('node');
    expect(await status(stack, pod, 'net')).toMatchObject(READY);
    const adding = await callCni({ command: 'ADD', pod, socket: stack.sockets.node, config: { name: 'net' } });
    expect(JSON.parse(adding.stdout)).toMatchObject({ code: 11, msg: expect.stringContaining('podwire-ipam') });
    await stack.destroy();
    removePod(pod);
  }, 180_000);
});

test('ADD waits for a podwire-node that returns within the deadline', async () => {
  const stack = new Stack({ env: POOL });
  const pod = makePod('waits');
  const call = (command: string) => callCni({ command, pod, socket: stack.sockets.node });
  await stack.start();
  await stack.kill('node');
  const adding = call('ADD');
  await stack.start('node');
  expect(await adding).toMatchObject({ exitCode: 0 });
  expect(await call('DEL')).toMatchObject({ exitCode: 0 });
  await stack.destroy();
  removePod(pod);
}, 180_000);
