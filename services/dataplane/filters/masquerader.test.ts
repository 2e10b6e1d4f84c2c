import { Failure } from '@podwire/shared/failure/failure';
import { expect, test } from 'vitest';

import type { ClusterPool, ClusterView } from '../cluster/cluster.js';
import { MemoryNft } from '../testing/memory-nft.js';
import { reconcilerOptions, prefix, until } from '../testing/nft.js';
import { Masquerader, masqueradeTable, type MasqueradeSettings } from './masquerade.js';
import { objectsOf, replacement } from '../nft/table.js';
import { formOf } from '../nft/table-form.js';

const SETTINGS: MasqueradeSettings = { exclude: 'pools', interfaces: [], ports: undefined };
const OTHER_CHANGES = { blocks: new Set<string>(), hasOtherChanges: true };
const BLOCKS = { blocks: 'all', hasOtherChanges: false } as const;

function view(...pools: readonly (readonly [cidr: string, natOutgoing: boolean])[]): ClusterView {
  const entries = pools.map(([cidr, natOutgoing]): [string, ClusterPool] => [
    cidr,
    { name: cidr, cidr: prefix(cidr), encapsulation: 'none', natOutgoing, loadBalancerOnly: false },
  ]);
  return {
    self: 'a',
    isDatastoreLocked: false,
    cluster: { nodes: new Map(), pools: new Map(entries), blocks: new Map() },
  };
}

function start(settings = SETTINGS) {
  const { options, ...rest } = reconcilerOptions(new MemoryNft());
  return { ...rest, masquerader: new Masquerader({ ...options, settings }) };
}

const IPV4 = { family: 'ip', name: 'podwire' } as const;
const IPV6 = { family: 'ip6', name: 'podwire' } as const;

/** The wanted table of a single pool with NAT. */
function tableOf(cidr: string) {
  const { family } = prefix(cidr);
  const range = [prefix(cidr)];
  return masqueradeTable({ family, sources: range, exempt: range, interfaces: [], ports: undefined });
}

test('each family has its table while a pool of it has natOutgoing', async () => {
  const { masquerader, nft } = start();
  masquerader.follow(view(['10.0.0.0/16', true], ['fd00::/48', false]), OTHER_CHANGES);
  await until(async () => (await nft.read(IPV4)) !== undefined);
  expect(formOf((await nft.read(IPV4))!)).toEqual(formOf(objectsOf(tableOf('10.0.0.0/16'))));
  expect(await nft.read(IPV6)).toBeUndefined();

  masquerader.follow(view(['10.0.0.0/16', false], ['fd00::/48', true]), OTHER_CHANGES);
  await masquerader.stop();
  expect(await nft.read(IPV4)).toBeUndefined();
  expect(formOf((await nft.read(IPV6))!)).toEqual(formOf(objectsOf(tableOf('fd00::/48'))));
});

test('nft does not run for blocks, nor for pools without a change', async () => {
  const { masquerader, nft, events } = start();
  masquerader.follow(view(['10.0.0.0/16', true]), { blocks: 'all', hasOtherChanges: true });
  await until(() => nft.transactions === 1 && nft.reads >= 3);
  const runs = nft.reads + nft.transactions;
  masquerader.follow(view(['10.0.0.0/16', true], ['10.9.0.0/16', true]), BLOCKS);
  masquerader.follow(view(['10.0.0.0/16', true]), OTHER_CHANGES);
  await masquerader.stop();
  expect(nft.reads + nft.transactions).toBe(runs);
  expect(events.takeLines()).toEqual(['ip podwire written: found']);
});

test('a correct table of an earlier start is kept, and removed when no longer wanted', async () => {
  const { masquerader, nft, events } = start();
  await nft.apply(replacement(tableOf('10.0.0.0/16')));
  await nft.apply(replacement(tableOf('fd00::/48')));
  masquerader.follow(view(['10.0.0.0/16', true], ['fd00::/48', false]), OTHER_CHANGES);
  await masquerader.stop();
  expect(events.takeLines()).toEqual(['ip6 podwire written: found']);
  expect(await nft.read(IPV4)).toBeDefined();
  expect(await nft.read(IPV6)).toBeUndefined();
});

test('a family whose table fails is a condition, and the other family continues', async () => {
  const { masquerader, nft } = start();
  nft.failNext('apply', new Failure('KERNEL_UNSUPPORTED', 'no NAT here'));
  masquerader.follow(view(['10.0.0.0/16', true], ['fd00::/48', true]), OTHER_CHANGES);
  await until(async () => (await nft.read(IPV6)) !== undefined);
  expect(masquerader.conditions()).toEqual([
    {
      reason: 'MasqueradeUnavailable',
      message: 'IPv4 packets from pools with natOutgoing leave with the pods’ addresses: no NAT here',
    },
  ]);
  expect(nft.unusedFaults).toBe(0);
  await masquerader.stop();
});

test('interfaces and ports have their own rules', () => {
  const range = [prefix('10.0.0.0/16')];
  const plan = { family: 4, sources: range, exempt: range, interfaces: ['eth0', 'wlan*'] } as const;
  const rules = (ports: { readonly first: number; readonly last: number } | undefined) =>
    masqueradeTable({ ...plan, ports }).chains.flatMap((chain) => chain.rules.map((rule) => JSON.stringify(rule)));
  expect(rules(undefined)).toEqual([expect.stringContaining('"eth0"'), expect.stringContaining('"wlan*"')]);
  const [tcpAndUdp, remaining, ...rest] = rules({ first: 1024, last: 2047 });
  expect(tcpAndUdp).toMatch(/"eth0".*\[6,17\].*\[1024,2047\]/);
  expect(remaining).toMatch(/"eth0"}},{"masquerade":{"flags"/);
  expect(rest).toHaveLength(2);
  expect(rules({ first: 1024, last: 1024 })[0]).toContain('"port":1024');
});
