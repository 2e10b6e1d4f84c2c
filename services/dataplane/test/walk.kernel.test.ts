import fc from 'fast-check';
import { afterEach, beforeEach, expect, test } from 'vitest';

import { NetlinkKernel } from '../kernel/pod-kernel.js';
import { addPod, cleanUp, removePod, requireThrowawayNamespace, run } from '../testing/kernels.js';
import { walkSteps, walk, type NodeOperator } from '../testing/pods-walk.js';
import type { PodNetwork } from '@podwire/shared/attachment/pod-network';

/** Fixed, so that every run is the same; change it for other walks. A failure prints it, with the moves. */
const SEED = 20_261_121;

let kernel: NetlinkKernel;

beforeEach(async () => {
  requireThrowawayNamespace();
  kernel = await NetlinkKernel.open();
});

afterEach(async () => {
  await kernel.close();
  cleanUp();
});

function nodeOperator(): NodeOperator {
  const changes: readonly ((network: PodNetwork) => unknown)[] = [
    ({ hostInterfaceName }) => run('ip', 'link', 'delete', hostInterfaceName),
    ({ hostInterfaceName }) => run('ip', 'link', 'set', hostInterfaceName, 'down'),
    ({ hostInterfaceName }) => run('sysctl', '-q', '-w', `net.ipv4.conf.${hostInterfaceName}.rp_filter=0`),
    ({ attachment }) => run('ip', '-n', attachment.containerId, 'route', 'flush', 'table', 'main'),
    ({ attachment }) => run('ip', '-n', attachment.containerId, 'link', 'set', 'eth0', 'down'),
  ];
  const exists = (name: string) => run('ip', '-br', 'link').includes(name);
  return {
    kernel,
    addPod,
    removePod,
    changePod: (network, kind) => {
      if (exists(network.hostInterfaceName)) changes[kind]?.(network);
    },
  };
}

test('kernel, records and answers agree after any walk of attach, detach, kill, restart and drift', async () => {
  const property = fc.asyncProperty(walkSteps, async (path) => {
    try {
      await walk(nodeOperator(), path);
    } finally {
      cleanUp();
    }
  });
  await fc.assert(property, { seed: SEED, numRuns: 12, endOnFailure: true });
  expect(run('ip', '-br', 'link', 'show', 'type', 'veth')).toBe('');
}, 300_000);
