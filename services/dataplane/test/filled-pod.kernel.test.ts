import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { NetlinkKernel } from '../kernel/pod-kernel.js';
import { POD_LIST_BOUNDS } from '../kernel/pod-lists.js';
import { addPod, cleanUp, canPing, requireThrowawayNamespace, run } from '../testing/kernels.js';
import { address, detachRequest, never, podNetwork, startNode } from '../testing/pods.js';

/** A pod that may change its own network (CAP_NET_ADMIN) and fills its tables, on the real kernel. */

const FLOOD = 10 * POD_LIST_BOUNDS.maxCount;

let kernel: NetlinkKernel;
let folder: string;

beforeEach(async () => {
  requireThrowawayNamespace();
  kernel = await NetlinkKernel.open();
  folder = mkdtempSync(join(tmpdir(), 'podwire-filled-'));
});

afterEach(async () => {
  await kernel.close();
  cleanUp();
  rmSync(folder, { recursive: true });
});

/** Adds or deletes routes in a pod as fast as it can. */
function routes(verb: 'add' | 'del', count: number, pod: string): void {
  const lines = Array.from(
    { length: count },
    (_, number) =>
      `route ${verb} 10.${100 + (number >> 16)}.${(number >> 8) & 255}.${number & 255}/32 dev eth0 proto 87`,
  );
  const file = join(folder, 'batch');
  writeFileSync(file, `${lines.join('\n')}\n`);
  run('ip', '-n', pod, '-batch', file);
}

async function scene() {
  const node = await startNode({ kernel });
  const filled = podNetwork('filled');
  const other = podNetwork('other', { addresses: [address('10.65.0.8')] });
  for (const network of [filled, other]) addPod(network.attachment.containerId);
  await node.dataplane.attach(filled, never());
  const reported = () => node.lines.filter(({ reason }) => reason === 'PodUnreadable').map(({ msg }) => String(msg));
  return { node, filled, other, reported };
}

const UNREADABLE = {
  code: 'POD_UNREADABLE',
  message: `pod namespace /run/netns/filled: more than ${POD_LIST_BOUNDS.maxCount} routes; remove them in the pod, or delete the pod`,
};

describe('a pod with more routes than the dataplane reads', () => {
  test('fails a check and a repair, and other pods are wired, checked and repaired', async () => {
    const { node, filled, other } = await scene();
    routes('add', FLOOD, 'filled');
    await expect(node.dataplane.check(filled, never())).rejects.toMatchObject(UNREADABLE);
    await expect(node.dataplane.repair(filled, never())).rejects.toMatchObject(UNREADABLE);
    await node.dataplane.attach(other, never());
    expect(await node.dataplane.check(other, never())).toEqual([]);
    run('ip', '-n', 'other', 'route', 'delete', 'default');
    await node.reconciler.check();
    expect(await node.dataplane.check(other, never())).toEqual([]);
    expect(canPing('10.65.0.7', 'other')).toBe(true);
  });

  test('is reported once, is not a failure, and is repaired once it can be read', async () => {
    const { node, filled, reported } = await scene();
    routes('add', FLOOD, 'filled');
    for (let round = 0; round < 3; round++) await node.reconciler.check();
    expect(reported()).toEqual([`net/filled/eth0 is neither checked nor repaired: ${UNREADABLE.message}`]);
    expect(node.reconciler.conditions()).toMatchObject([{ reason: 'PodUnreadable' }]);
    expect(node.lines.filter(({ msg }) => String(msg).startsWith('failed'))).toEqual([]);

    routes('del', FLOOD - 1500, 'filled');
    await node.reconciler.check();
    expect(node.reconciler.conditions()).toEqual([]);
    expect(await node.dataplane.check(filled, never())).toEqual([]);
    await node.reconciler.check();
    expect(reported().at(-1)).toBe('PodUnreadable resolved');
  });

  test('is detached, which resolves the condition', async () => {
    const { node, filled } = await scene();
    routes('add', FLOOD, 'filled');
    await node.reconciler.check();
    expect(await node.dataplane.detach(detachRequest(filled), never())).toBe(true);
    expect(node.reconciler.conditions()).toEqual([]);
    expect(run('ip', '-br', 'link', 'show', 'type', 'veth')).toBe('');
  });

  test('is unchanged by a start', async () => {
    const { node, reported } = await scene();
    routes('add', FLOOD, 'filled');
    await node.reconciler.recover();
    expect(reported()).toHaveLength(1);
    expect(run('ip', '-br', 'link', 'show', 'type', 'veth')).not.toBe('');
  });
});

test('rules beyond the limit do not block the detach of a second interface', async () => {
  const { node, filled } = await scene();
  const attachment = { ...filled.attachment, interfaceName: 'net1' };
  const second = podNetwork('filled', {
    attachment,
    hostInterfaceName: 'podwsecond',
    addresses: [address('10.65.0.9')],
  });
  await node.dataplane.attach(second, never());
  const file = join(folder, 'rules');
  const lines = Array.from(
    { length: POD_LIST_BOUNDS.maxCount },
    (_, number) => `rule add from 10.66.0.0/16 lookup ${number + 1} priority 100`,
  );
  writeFileSync(file, `${lines.join('\n')}\n`);
  run('ip', '-n', 'filled', '-batch', file);
  await node.reconciler.check();
  expect(node.reconciler.conditions().map(({ message }) => message)).toEqual(
    ['net/filled/eth0', 'net/filled/net1'].map((name) =>
      expect.stringMatching(new RegExp(`^${name} .* more than ${POD_LIST_BOUNDS.maxCount} rules;`)),
    ),
  );
  expect(await node.dataplane.detach(detachRequest(second), never())).toBe(true);
});
