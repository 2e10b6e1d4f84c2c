import { existsSync, mkdirSync } from 'node:fs';

import { acquireExclusive } from '@podwire/shared/sockets/exclusive';
import { systemClock } from '@podwire/shared/runtime/clock';
import { afterEach, beforeEach, expect, test } from 'vitest';

import { masqueradeTable } from '../filters/masquerade.js';
import { NEIGHBOUR_TABLE } from '../filters/neighbour-guard.js';
import { GUARD_TABLE } from '../filters/source-guard.js';
import { replacement } from '../nft/table.js';
import { TUNNEL_TABLE } from '../filters/tunnel-guard.js';
import { runRemoval } from '../removal.js';
import {
  addPod,
  cleanUp,
  clearNode,
  requireThrowawayNamespace,
  run,
  runCommand,
  setNodeForwarding,
  snapshot,
} from '../testing/kernels.js';
import { listRuleset } from '../testing/contracts/nft-contract.js';
import { prefix, kernelNft } from '../testing/nft.js';
import { podMessage, ServiceFixture, startOn } from '../testing/service.js';

const LOCK = { program: 'podwire-node', settings: '', owner: '4711', clock: systemClock };

let bench: ServiceFixture;
let output: string[];

beforeEach(() => {
  requireThrowawayNamespace();
  bench = new ServiceFixture();
  output = [];
  setNodeForwarding();
  // Objects of other programs, some with Podwire's names.
  for (const command of [
    'ip link add podwforeign type veth peer name foreign1',
    'ip link set podwforeign up',
    'ip address add 198.51.100.1/24 dev podwforeign',
    'ip link add ipip.podwire type bridge',
    'ip route add blackhole 203.0.113.0/24 proto 4',
    'ip -6 route add blackhole 2001:db8:5::/64 proto 4',
    'ip rule add from 198.51.100.7 lookup 100 priority 30087',
    'nft add table inet foreign',
    'iptables -P FORWARD DROP',
    'nft add table ip podwire2',
  ]) {
    runCommand(command);
  }
});

afterEach(() => {
  run('ip', 'rule', 'del', 'priority', '30087');
  clearNode();
  cleanUp();
  bench.clear();
});

const remove = (agreed: boolean) => {
  const write = (text: string) => output.push(text) > 0;
  const deps = { clock: systemClock, pid: process.pid, stdout: { write }, stderr: { write } };
  return runRemoval(() => bench.config(), agreed, deps);
};

const state = () => `${snapshot()}\n${run('ip', 'rule')}\n${listRuleset()}`;

/** Two pods of a service that has ended, and the routes, tunnels and tables of a cluster. */
async function usedNode(): Promise<void> {
  for (const name of ['one', 'two']) addPod(name);
  const service = await startOn(bench.config(), bench.deps());
  try {
    await bench.attach(podMessage('one', '10.65.0.1'));
    await bench.attach({ ...podMessage('two', '10.65.0.2'), addresses: ['10.65.0.2/32', '2001:db8::2/128'] });
  } finally {
    await service.stop();
  }
  for (const command of [
    'ip link add vxlan4.podwire type vxlan id 4096 dstport 4789 local 198.51.100.1 nolearning',
    'ip address add 10.65.0.64/32 dev vxlan4.podwire',
    'ip link set vxlan4.podwire up',
    'ip route add 10.65.1.0/26 via 10.65.1.0 dev vxlan4.podwire onlink proto 87',
    'ip route add 10.65.2.0/26 via 198.51.100.2 proto 87',
    'ip route add blackhole 10.65.0.0/26 proto 87',
    'ip -6 route add blackhole 2001:db8::/122 proto 87',
    'ip route add 10.65.9.9/32 dev podwforeign proto 87',
  ]) {
    runCommand(command);
  }
  const nft = kernelNft();
  const nat = { sources: [prefix('10.65.0.0/16')], exempt: [prefix('10.65.0.0/16')], interfaces: [], ports: undefined };
  await nft.apply(replacement(masqueradeTable({ family: 4, ...nat })));
  await nft.apply([{ add: { table: { ...TUNNEL_TABLE } } }]);
  run('nft', 'insert', 'rule', 'ip', 'filter', 'FORWARD', 'iifname', '"podw*"', 'accept', 'comment', '"podwire"');
}

test('a removal without consent lists each object of Podwire and changes nothing', async () => {
  await usedNode();
  const before = state();
  await expect(remove(false)).resolves.toBe(2);
  expect(state()).toBe(before);
  const text = output.join('');
  for (const object of ['net/one/eth0', '2001:db8::2/128', 'vxlan4.podwire', '10.65.2.0/26', 'table inet podwire']) {
    expect(text).toContain(object);
  }
  expect(text).toContain(`rm -r ${bench.records}`);
  expect(text).not.toContain('foreign\n');
});

test('a removal leaves the node as it was before Podwire, with all objects of other programs', async () => {
  const before = state();
  await usedNode();
  expect(await kernelNft().read(GUARD_TABLE)).toBeDefined();
  await expect(remove(true)).resolves.toBe(0);
  expect(state()).toBe(before);
  expect(existsSync(bench.records)).toBe(false);
  output = [];
  await expect(remove(false)).resolves.toBe(0);
  expect(output.join('')).toBe('nothing of Podwire is on this node\n');
  expect(existsSync(bench.records)).toBe(false);
});

test('a removal is refused while podwire-node runs', async () => {
  mkdirSync(bench.records);
  // Same setting as podwire-node's.
  const { listen: addresses, recordsDirectory: path } = bench.config();
  const lock = await acquireExclusive({ ...LOCK, addresses, directories: [{ path }] });
  const service = await startOn(bench.config(), bench.deps());
  try {
    // The service writes its tables in the background, after its start; without a cluster there are these two.
    for (const table of [GUARD_TABLE, NEIGHBOUR_TABLE]) {
      await expect.poll(() => kernelNft().read(table)).toBeDefined();
    }
    const before = state();
    await expect(remove(true)).resolves.toBe(1);
    expect(output.join('')).toContain('podwire-node runs on this node; stop it first');
    expect(state()).toBe(before);
  } finally {
    await service.stop();
    lock.release();
  }
});
