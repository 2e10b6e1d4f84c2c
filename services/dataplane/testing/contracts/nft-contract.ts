import { describe, expect, test } from 'vitest';

import type { Nft } from '../../nft/nft.js';
import {
  elementChanges,
  objectsOf,
  prefixJson,
  removal,
  replacement,
  type Json,
  type NftCommand,
  type NftTable,
} from '../../nft/table.js';
import { formOf } from '../../nft/table-form.js';
import { run } from '../kernels.js';

const prefix = (value: bigint, length: number): Json => prefixJson({ family: 4, value, length });

/** 10.0.0.0/24, 10.0.1.0/24 and 10.0.9.9. */
const ELEMENTS = [prefix(0x0a_00_00_00n, 24), prefix(0x0a_00_01_00n, 24), prefix(0x0a_00_09_09n, 32)];

const TABLE = {
  family: 'ip',
  name: 'podwire',
  sets: [
    { name: 'addresses', type: 'ipv4_addr', interval: true, elements: ELEMENTS },
    { name: 'senders', type: ['ifname', 'ipv4_addr'], interval: true, elements: [] },
    { name: 'targets', type: ['inet_proto', 'inet_service'], interval: false, valueType: 'ipv4_addr', elements: [] },
  ],
  chains: [
    { name: 'verdict', hook: undefined, rules: [[{ counter: { packets: 0, bytes: 0 } }, { accept: null }]] },
    {
      name: 'entry',
      hook: { type: 'filter', name: 'forward', priority: 0 },
      rules: [[{ jump: { target: 'verdict' } }]],
    },
  ],
} as const satisfies NftTable;

function element(verb: 'add' | 'delete', elem: Json, set = 'addresses'): NftCommand {
  const object = { element: { family: 'ip', table: 'podwire', name: set, elem: [elem] } };
  return verb === 'add' ? { add: object } : { delete: object };
}

const sender = (device: string, address: Json): Json => ({ concat: [device, address] });

const target = (protocol: number, port: number, address: string): Json => [{ concat: [protocol, port] }, address];

/** Elements of the sets of {@link TABLE}, in the order of the sets. */
const ELEMENT_LISTS: readonly (readonly (readonly Json[])[])[] = [
  [[], [sender('a', prefix(0x0a_00_00_00n, 8)), sender('b', prefix(0x0a_00_00_00n, 8))], [target(6, 80, '10.0.0.1')]],
  [ELEMENTS, [sender('a', prefix(0x0a_01_00_00n, 16))], [target(6, 80, '10.0.0.2'), target(17, 80, '10.0.0.1')]],
  [[prefix(0x0a_00_00_00n, 23)], [], [target(17, 80, '10.0.0.1'), target(132, 65_535, '255.255.255.255')]],
  [[], [], []],
];

/** Tests of every implementation of {@link Nft}. */
export function nftContract(open: () => Nft): void {
  const form = async (nft: Nft) => {
    const objects = await nft.read(TABLE);
    return objects && formOf(objects);
  };

  describe('nftables', () => {
    test('have no table before one is created', async () => {
      expect(await open().read(TABLE)).toBeUndefined();
    });

    test('list a table as it was created, also when it was created again', async () => {
      const nft = open();
      await nft.apply(replacement(TABLE));
      expect(await form(nft)).toEqual(formOf(objectsOf(TABLE)));
      await nft.apply(replacement(TABLE));
      expect(await form(nft)).toEqual(formOf(objectsOf(TABLE)));
    });

    test('replace any existing table', async () => {
      const nft = open();
      await nft.apply(replacement(TABLE));
      const other: NftTable = { ...TABLE, sets: [], chains: [] };
      await nft.apply(replacement(other));
      expect(await form(nft)).toEqual(formOf(objectsOf(other)));
    });

    test('delete a table, existing or not', async () => {
      const nft = open();
      await nft.apply(replacement(TABLE));
      await nft.apply(removal(TABLE));
      await nft.apply(removal(TABLE));
      expect(await nft.read(TABLE)).toBeUndefined();
    });

    test('add and delete elements; an existing one can be added again', async () => {
      const nft = open();
      await nft.apply(replacement(TABLE));
      const added = prefix(0x0a_02_00_00n, 16);
      await nft.apply([element('add', added), element('delete', ELEMENTS[2]!)]);
      await nft.apply([element('add', added)]);
      const [addresses, ...tail] = TABLE.sets;
      const wanted = { ...TABLE, sets: [{ ...addresses, elements: [...ELEMENTS.slice(0, 2), added] }, ...tail] };
      expect(await form(nft)).toEqual(formOf(objectsOf(wanted)));
    });

    test('replace a range by a smaller one in one transaction', async () => {
      const nft = open();
      await nft.apply(replacement(TABLE));
      const [large, smaller] = [sender('a', prefix(0x0a_00_00_00n, 8)), sender('a', prefix(0x0a_01_00_00n, 16))];
      await nft.apply([element('add', large, 'senders')]);
      await nft.apply([element('delete', large, 'senders'), element('add', smaller, 'senders')]);
      const [addresses, senders, targets] = TABLE.sets;
      const wanted = { ...TABLE, sets: [addresses, { ...senders, elements: [smaller] }, targets] };
      expect(await form(nft)).toEqual(formOf(objectsOf(wanted)));
    });

    test('distinguish the same range of two links', async () => {
      const nft = open();
      await nft.apply(replacement(TABLE));
      const range = prefix(0x0a_00_00_00n, 8);
      await nft.apply([element('add', sender('a', range), 'senders'), element('add', sender('b', range), 'senders')]);
      await nft.apply([element('delete', sender('a', range), 'senders')]);
      const [addresses, senders, targets] = TABLE.sets;
      const wanted = { ...TABLE, sets: [addresses, { ...senders, elements: [sender('b', range)] }, targets] };
      expect(await form(nft)).toEqual(formOf(objectsOf(wanted)));
    });

    test.each<readonly [string, NftCommand]>([
      ['deletes a missing element', element('delete', prefix(0x0a_09_00_00n, 24))],
      ['adds a range that overlaps another', element('add', prefix(0x0a_00_00_00n, 16))],
      ['concerns a missing set', element('add', 'a', 'nothing')],
      ['concerns a missing table', { delete: { table: { family: 'ip', name: 'nothing' } } }],
    ])('change nothing when one command of a transaction %s', async (_, bad) => {
      const nft = open();
      await nft.apply(replacement(TABLE));
      const good = element('add', prefix(0x0a_07_00_00n, 16));
      await expect(nft.apply([good, bad])).rejects.toMatchObject({ code: 'KERNEL_REFUSED' });
      expect(await form(nft)).toEqual(formOf(objectsOf(TABLE)));
    });

    test('change elements from one state of a table to another without the program', async () => {
      const nft = open();
      await nft.apply(replacement(TABLE));
      let before: NftTable = TABLE;
      for (const elements of ELEMENT_LISTS) {
        const after = { ...TABLE, sets: TABLE.sets.map((set, at) => ({ ...set, elements: elements[at] ?? [] })) };
        await nft.changeElements(TABLE, elementChanges(before, after) ?? []);
        expect(await form(nft)).toEqual(formOf(objectsOf(after)));
        before = after;
      }
    });

    test('change no element when one of them is missing', async () => {
      const nft = open();
      await nft.apply(replacement(TABLE));
      const [set] = TABLE.sets;
      const change = { set, deleted: [prefix(0x0a_09_00_00n, 24)], added: [prefix(0x0a_07_00_00n, 16)] };
      await expect(nft.changeElements(TABLE, [change])).rejects.toMatchObject({ code: 'KERNEL_REFUSED' });
      expect(await form(nft)).toEqual(formOf(objectsOf(TABLE)));
    });

    test('report each transaction that changes a watched table, with its number, and whether the table is gone', async () => {
      const nft = open();
      const reports: unknown[] = [];
      await nft.apply(replacement(TABLE));
      const onChange = (...report: readonly unknown[]) => reports.push(report);
      const watch = await nft.watch(TABLE, { onChange, onEnd: () => undefined });
      const [set] = TABLE.sets;
      const own = await nft.changeElements(TABLE, [{ set, deleted: [], added: [prefix(0x0a_07_00_00n, 16)] }]);
      await nft.apply([{ add: { table: { family: 'inet', name: 'another' } } }]);
      await nft.apply([element('delete', prefix(0x0a_07_00_00n, 16))]);
      const foreign = await nft.latestTransaction();
      await nft.apply(replacement(TABLE));
      const replaced = await nft.latestTransaction();
      await nft.apply(removal(TABLE));
      const removed = await nft.latestTransaction();
      const kept = [own, foreign, replaced].map((number) => [number, false]);
      await expect.poll(() => reports).toEqual([...kept, [removed, true]]);
      watch.close();
      await nft.apply([{ delete: { table: { family: 'inet', name: 'another' } } }]);
    });
  });
}

/** The ruleset with handles, without what a packet that arrives changes: elements of sets with a timeout, and counters. */
export const listRuleset = () =>
  run('nft', '-a', 'list', 'ruleset')
    .replace(/(timeout \w+\n)\s*elements = \{[^}]*\}\n/g, '$1')
    .replace(/packets \d+ bytes \d+/g, 'packets bytes');

/** Runs a program in a pod. */
export const inside = (namespace: string, ...command: readonly string[]) =>
  run('ip', 'netns', 'exec', namespace, ...command);

/** Polls of the counter until the packet must have arrived. Each takes some milliseconds. */
const MAX_POLLS_COUNT = 2000;

/**
 * Sends one ping from a pod's address to an address of the node, and returns how many arrive. Counters before and after the guard
 * show the result, so the test does not wait for a missing reply.
 */
export function arrivalsFrom(pod: string, address: string, node: string): number {
  const family = address.includes(':') ? 6 : 4;
  const counted = family === 4 ? `ip saddr ${address} icmp` : `ip6 saddr ${address} icmpv6`;
  const chain = (name: string, hook: string) =>
    `chain ${name} { type filter hook ${hook}; ${counted} type echo-request counter; };`;
  run(
    'nft',
    `table inet witness { ${chain('sent', 'prerouting priority -500')} ${chain('arrived', 'input priority 0')} }`,
  );
  const count = (name: string) =>
    Number(/counter packets (\d+)/.exec(run('nft', 'list', 'chain', 'inet', 'witness', name))?.[1]);
  try {
    inside(pod, 'sh', '-c', `ping -n -q -c 1 -W 0.01 -I ${address} ${node} || true`);
    for (let polls = 0; count('sent') === 0; polls++)
      if (polls === MAX_POLLS_COUNT) throw new Error(`${pod} sent nothing from ${address}`);
    return count('arrived');
  } finally {
    run('nft', 'delete', 'table', 'inet', 'witness');
  }
}
