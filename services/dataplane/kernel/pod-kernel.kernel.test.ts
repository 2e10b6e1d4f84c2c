import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { NetlinkError, type Outcome, type Step } from '@podwire/netlink';
import { describe, expect, test } from 'vitest';

import { ipv6Contract } from '../testing/contracts/ipv6-contract.js';
import { limitsContract } from '../testing/contracts/limits-contract.js';
import { addPod, cleanUp, removePod, requireThrowawayNamespace, run, type KernelFixture } from '../testing/kernels.js';
import { kernelContract } from '../testing/contracts/pod-kernel-contract.js';
import { podSessionContract, SMALL_BOUNDS } from '../testing/contracts/pod-session-contract.js';
import { rulesContract } from '../testing/contracts/rules-contract.js';
import { NetlinkKernel, renameLink } from './pod-kernel.js';

async function netlinkFixture(): Promise<KernelFixture> {
  requireThrowawayNamespace();
  const kernel = await NetlinkKernel.open({ podLists: SMALL_BOUNDS });
  const folder = mkdtempSync(join(tmpdir(), 'podwire-kernel-'));
  const filePath = join(folder, 'file');
  writeFileSync(filePath, '');
  return {
    kernel,
    nodePath: '/proc/self/ns/net',
    filePath,
    addPod,
    removePod,
    setQdisc: (link, { pod }) => {
      const at = pod === undefined ? [] : ['-n', pod];
      run('tc', ...at, 'qdisc', 'replace', 'dev', link, 'root', 'handle', '5057:', 'pfifo');
    },
    addBridge: (name, { pod, alias = '' }) => {
      const at = pod === undefined ? [] : ['-n', pod];
      run('ip', ...at, 'link', 'add', name, 'type', 'bridge');
      run('ip', ...at, 'link', 'set', name, 'up', 'alias', alias);
    },
    addFlow: ({ source, destination, protocol, port }) => {
      const state = protocol === 'tcp' ? ['--state', 'ESTABLISHED'] : [];
      const flow = ['-p', protocol, '--sport', '1000', '--dport', `${port}`, '-t', '120', ...state];
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

describe('the real kernel, with limits', () => {
  limitsContract(netlinkFixture);
});

describe('the real kernel, with rules', () => {
  rulesContract(netlinkFixture);
});

const refused = (code: 'EBUSY' | 'EEXIST'): Outcome => {
  const errno = code === 'EBUSY' ? 16 : 17;
  return {
    ok: false,
    error: new NetlinkError({ operation: 'link.set', object: 'foo', errno, kernelMessage: undefined }),
  };
};
const DONE: Outcome = { ok: true };

/** A step as text; `?` marks an optional one. */
function textOf(step: Step): string {
  if (step.type !== 'link.set') return step.type;
  return `${step.name ?? (step.up === true ? 'up' : 'down')}${step.optional === true ? '?' : ''}`;
}

/** A kernel before 6.2 with fixed answers to each sequence, and the requested steps. */
function olderKernel(...answers: readonly (readonly Outcome[])[]) {
  const asked: string[] = [];
  const left = [...answers];
  const sequence = (steps: readonly Step[]): Promise<Outcome[]> => {
    asked.push(...steps.map(textOf));
    return Promise.resolve([...(left.shift() ?? [])]);
  };
  return { asked, namespace: { sequence } };
}

const link = { index: 7, name: 'podw1' };

test('a link that is up is set down for the rename, and up again', async () => {
  const { asked, namespace } = olderKernel([refused('EBUSY')], [DONE, DONE, DONE]);
  await renameLink(namespace, link);
  expect(asked).toEqual(['podw1', 'down', 'podw1?', 'up']);
});

test('a link is up again when the rename is refused, and the refusal is reported', async () => {
  const { asked, namespace } = olderKernel([refused('EBUSY')], [DONE, refused('EEXIST'), DONE]);
  await expect(renameLink(namespace, link)).rejects.toMatchObject({ code: 'EEXIST' });
  expect(asked).toEqual(['podw1', 'down', 'podw1?', 'up']);
});

test('a link whose new name is taken is not set down', async () => {
  const { asked, namespace } = olderKernel([refused('EEXIST')]);
  await expect(renameLink(namespace, link)).rejects.toMatchObject({ code: 'EEXIST' });
  expect(asked).toEqual(['podw1']);
});
