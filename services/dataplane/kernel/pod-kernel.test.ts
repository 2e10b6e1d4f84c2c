import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { describe } from 'vitest';

import { ipv6Contract } from '../testing/ipv6-contract.js';
import type { KernelFixture } from '../testing/kernels.js';
import { kernelContract } from '../testing/pod-kernel-contract.js';
import { podSessionContract, SMALL_BOUNDS } from '../testing/pod-session-contract.js';
import { rulesContract } from '../testing/rules-contract.js';
import { addPod, cleanUp, removePod, requireThrowawayNamespace, run } from './netlink/namespaces.fixture.js';
import { NetlinkKernel } from './pod-kernel.js';

async function netlinkFixture(): Promise<KernelFixture> {
  requireThrowawayNamespace();
  const kernel = await NetlinkKernel.open(SMALL_BOUNDS);
  const folder = mkdtempSync(join(tmpdir(), 'podwire-kernel-'));
  const filePath = join(folder, 'file');
  writeFileSync(filePath, '');
  return {
    kernel,
    nodePath: '/proc/self/ns/net',
    filePath,
    addPod,
    removePod,
    addBridge: (name, { pod, alias = '' }) => {
      const at = pod === undefined ? [] : ['-n', pod];
      run('ip', ...at, 'link', 'add', name, 'type', 'bridge');
      run('ip', ...at, 'link', 'set', name, 'up', 'alias', alias);
    },
    addFlow: ({ source, destination }) => {
      const flow = ['-p', 'udp', '--sport', '1000', '--dport', '53', '-t', '120'];
      run('conntrack', '-I', '-s', source, '-d', destination, ...flow);
    },
    flowCount: () => Number(run('conntrack', '-C')),
    destroy: async () => {
      await kernel.close();
      run('conntrack', '-F');
      cleanUp();
      rmSync(folder, { recursive: true });
    },
  };
}

describe('the real kernel', () => {
  kernelContract(netlinkFixture);
});

describe('the real kernel, in a pod', () => {
  podSessionContract(netlinkFixture);
});

describe('the real kernel, with IPv6', () => {
  ipv6Contract(netlinkFixture);
});

describe('the real kernel, with rules', () => {
  rulesContract(netlinkFixture);
});
