import fc from 'fast-check';
import { test } from 'vitest';

import { MemoryKernel } from '../testing/memory-kernel.js';
import { walkSteps, walk, type NodeOperator } from '../testing/pods-walk.js';
import type { PodNetwork } from '../wiring/network.js';

/** Fixed, so that every run is the same; change it for other walks. A failure prints it, with the moves. */
const SEED = 20_261_121;

function hands(): NodeOperator {
  const kernel = new MemoryKernel();
  const path = (name: string) => `/run/netns/${name}`;
  const meddlings: readonly ((network: PodNetwork) => unknown)[] = [
    ({ hostInterfaceName }) => kernel.host.removeLink(kernel.host.find(hostInterfaceName)),
    ({ hostInterfaceName: name }) => kernel.host.setLink(kernel.host.find(name), { up: false }),
    ({ hostInterfaceName }) => kernel.host.writeSysctl(`net/ipv4/conf/${hostInterfaceName}/rp_filter`, '0'),
    ({ netns }) => kernel.namespace(netns).routes.splice(0),
    ({ netns }) => kernel.namespace(netns).setLink(kernel.namespace(netns).find('eth0'), { up: false }),
  ];
  return {
    kernel,
    addPod: (name) => kernel.addNamespace(path(name)),
    removePod: (name) => kernel.removeNamespace(path(name)),
    changePod: (network, kind) => {
      if (kernel.host.has(network.hostInterfaceName)) meddlings[kind]?.(network);
    },
  };
}

test('kernel, records and answers agree after any walk of attach, detach, kill, restart and drift', async () => {
  await fc.assert(
    fc.asyncProperty(walkSteps, (path) => walk(hands(), path)),
    { seed: SEED, numRuns: 80 },
  );
}, 120_000);
