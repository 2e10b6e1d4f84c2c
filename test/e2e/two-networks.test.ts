import { readdirSync, readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';

import { afterAll, beforeAll, expect, test, vi } from 'vitest';

import { AddressServer, seenAddress } from '../support/address-server.js';
import { callCni, makePod, removePod, type CniCall, type Pod } from '../support/pods.js';
import { pings, rpc, run } from '../support/programs.js';
import { Stack } from '../support/stack.js';

// Processes start repeatedly, on a machine with other load.
vi.setConfig({ testTimeout: 240_000 });

/** A pod with an interface on each of two networks, of both families, answers on both: with the shim, IPAM, the dataplane and the kernel. */

interface CniResult {
  readonly ips: readonly { readonly address: string }[];
}

// Less than a stack's default: one test waits for an absent dataplane.
const stack = new Stack({ env: { PODWIRE_NODE_DEL_SERVICE_TIMEOUT_MS: '3000' } });
const pods: Pod[] = [];

/** Call of the second network. */
const SECOND: Partial<CniCall> = {
  interfaceName: 'net1',
  config: {
    name: 'second-network',
    ipam: {
      type: 'podwire-ipam',
      assign_ipv4: 'true',
      assign_ipv6: 'true',
      ipv4_pools: ['second'],
      ipv6_pools: ['second-sixth'],
    },
  },
};
const FIRST: Partial<CniCall> = {
  config: {
    ipam: {
      type: 'podwire-ipam',
      assign_ipv4: 'true',
      assign_ipv6: 'true',
      ipv4_pools: ['10.65.0.0/16'],
      ipv6_pools: ['sixth'],
    },
  },
};

const call = (command: string, pod: Pod, rest: Partial<CniCall>) =>
  callCni({ command, pod, socket: stack.sockets.node, ...rest });

function pod(name: string): Pod {
  const made = makePod(name);
  pods.push(made);
  return made;
}

async function add(target: Pod, rest: Partial<CniCall>): Promise<CniResult> {
  const answer = await call('ADD', target, rest);
  expect(answer, answer.stdout).toMatchObject({ exitCode: 0, stderr: '' });
  return JSON.parse(answer.stdout);
}

const addressesOf = ({ ips }: CniResult): string[] => ips.map(({ address }) => address.replace(/\/\d+$/, ''));
const check = (target: Pod, prevResult: CniResult) =>
  call('CHECK', target, { ...SECOND, config: { ...SECOND.config, prevResult } });

/** Sources of the rules in a pod that are Podwire's. */
const ruled = ({ name }: Pod): string[] =>
  ['-4', '-6'].flatMap((family) =>
    JSON.parse(run('ip', family, '-n', name, '-j', 'rule'))
      .filter(({ protocol }: { protocol?: string }) => protocol === '87')
      .map(({ src }: { src: string }) => src),
  );

beforeAll(async () => {
  await stack.start();
  for (const [name, cidr] of [
    ['sixth', 'fd65::/48'],
    ['second', '10.66.0.0/16'],
    ['second-sixth', 'fd66::/48'],
  ]) {
    rpc(stack.sockets.ipam, 'podwire.ipam.v1.PoolService/CreatePool', { pool: { name, cidr } });
  }
  // The node forwards IPv6 once it knows the pools.
  const forwarding = () => run('ip', 'netns', 'exec', stack.netns, 'sysctl', '-n', 'net.ipv6.conf.all.forwarding');
  await vi.waitFor(() => expect(forwarding().trim()).toBe('1'), { timeout: 30_000 });
});

afterAll(async () => {
  await stack.destroy();
  pods.forEach(removePod);
});

test('a pod on two networks answers on each, with strict filters, for as long as it has both', async () => {
  const [target, peer] = [pod('e2e-networks'), pod('e2e-networks-peer')];
  const first = addressesOf(await add(target, FIRST));
  const result = await add(target, SECOND);
  const second = addressesOf(result);
  const asking = addressesOf(await add(peer, FIRST));
  const askingOf = (address: string) => asking[address.includes(':') ? 1 : 0];
  expect([first, second]).toEqual([
    [expect.stringMatching(/^10\.65\./), expect.stringMatching(/^fd65:/)],
    [expect.stringMatching(/^10\.66\./), expect.stringMatching(/^fd66:/)],
  ]);
  const filters = stack.ip('-br', 'link').match(/podw\w{11}/g) ?? [];
  const strict = (link: string) =>
    run('ip', 'netns', 'exec', stack.netns, 'sysctl', '-n', `net.ipv4.conf.${link}.rp_filter`).trim();
  expect(filters.map(strict)).toEqual(['1', '1', '1']);

  const server = await AddressServer.start(target.netns);
  try {
    for (const address of [...first, ...second]) {
      expect([address, pings(address, peer.netns), pings(address, stack.netnsPath)]).toEqual([address, true, true]);
      expect([address, seenAddress(address, peer.netns)]).toEqual([address, askingOf(address)]);
    }
    expect(ruled(target)).toEqual(second);
    expect(await check(target, result)).toMatchObject({ exitCode: 0, stdout: '' });

    // A rule is deleted: a CHECK names it, and the service's next check restores it.
    run('ip', '-n', target.name, 'rule', 'delete', 'from', second[0]!);
    expect([pings(second[0]!, peer.netns), pings(second[1]!, peer.netns)]).toEqual([false, true]);
    const answer = await check(target, result);
    expect(answer.exitCode).toBe(1);
    expect(JSON.parse(answer.stdout).msg).toContain(`rule from ${second[0]!} lookup`);
    expect(await stack.stop('node')).toBe(0);
    await stack.start('node');
    await vi.waitFor(() => expect(ruled(target)).toEqual(second), { timeout: 30_000 });
    expect(seenAddress(second[0]!, peer.netns)).toBe(asking[0]);

    expect((await call('DEL', target, SECOND)).exitCode).toBe(0);
    expect([ruled(target), first.map((address) => pings(address, peer.netns))]).toEqual([[], [true, true]]);
    expect(run('ip', '-n', target.name, 'route', 'show', 'table', 'all')).not.toContain('net1');
  } finally {
    await server.stop();
  }
  for (const each of [target, peer]) expect((await call('DEL', each, FIRST)).exitCode).toBe(0);
});

test('rules of an interface without a record are removed with the next check, once it is gone', async () => {
  const target = pod('e2e-networks-lost');
  const first = addressesOf(await add(target, FIRST));
  const second = addressesOf(await add(target, SECOND));
  expect(await stack.stop('node')).toBe(0);
  const folder = join(stack.folder, 'run', 'attachments');
  const records = readdirSync(folder).filter((name) => name.endsWith('.json'));
  const lost = records.filter((name) => {
    const text = readFileSync(join(folder, name), 'utf8');
    return text.includes(target.containerId) && text.includes('net1');
  });
  expect(lost).toHaveLength(1);
  rmSync(join(folder, lost[0]!));
  await stack.start('node');
  expect(ruled(target)).toEqual(second);
  expect(await call('DEL', target, SECOND)).toMatchObject({ exitCode: 0 });

  expect(await stack.stop('node')).toBe(0);
  await stack.start('node');
  await expect.poll(() => ruled(target), { timeout: 20_000 }).toEqual([]);
  expect(pings(first[0]!, stack.netnsPath)).toBe(true);
});

test('rules of an interface without a record are removed with it by its DEL', async () => {
  const target = pod('e2e-networks-away');
  await add(target, FIRST);
  const second = addressesOf(await add(target, SECOND));
  expect(await stack.stop('node')).toBe(0);
  const folder = join(stack.folder, 'run', 'attachments');
  const isTargets = (name: string) => readFileSync(join(folder, name), 'utf8').includes(target.containerId);
  const lost = readdirSync(folder).filter((name) => name.endsWith('.json') && isTargets(name));
  expect(lost).toHaveLength(2);
  for (const name of lost) rmSync(join(folder, name));
  expect(ruled(target)).toEqual(second);
  await stack.start('node');
  for (const network of [SECOND, FIRST]) expect(await call('DEL', target, network)).toMatchObject({ exitCode: 0 });
  expect(ruled(target)).toEqual([]);
});
