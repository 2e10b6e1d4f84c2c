import { execFile } from 'node:child_process';
import { promisify } from 'node:util';

import fc from 'fast-check';
import { describe, expect, it } from 'vitest';

import type { NftElement, NftElementChange, NftField, NftSet, Namespace } from '../lib/index.js';
import { failureOf, makePod, open, run } from './ip.js';

const TABLE = { family: 'inet', table: 'podwire' } as const;

/** The sets and maps of the dataplane's tables. */
const NAMES: NftSet = { ...TABLE, name: 'names', key: ['ifname'] };
const PREFIXES4: NftSet = { ...TABLE, name: 'prefixes4', key: ['ipv4_addr'], intervals: true };
const PREFIXES6: NftSet = { ...TABLE, name: 'prefixes6', key: ['ipv6_addr'], intervals: true };
const SOURCES: NftSet = { ...TABLE, name: 'sources', key: ['ifname', 'ipv4_addr'], intervals: true };
const TARGETS: NftSet = { ...TABLE, name: 'targets', key: ['ipv4_addr', 'inet_proto', 'inet_service'] };
const HOST_PORTS: NftSet = {
  ...TABLE,
  name: 'hostports',
  key: ['inet_proto', 'inet_service'],
  data: ['ipv4_addr', 'inet_service'],
};

const PROFILES: NftSet = { ...TABLE, name: 'profiles', key: ['ifname'], data: 'verdict' };

const RULES = `table inet podwire {
  chain egress { }
  set names { type ifname; }
  set prefixes4 { type ipv4_addr; flags interval; }
  set prefixes6 { type ipv6_addr; flags interval; }
  set sources { type ifname . ipv4_addr; flags interval; }
  set targets { type ipv4_addr . inet_proto . inet_service; }
  map hostports { type inet_proto . inet_service : ipv4_addr . inet_service; }
  map profiles { type ifname : verdict; }
}`;

async function makeTable(): Promise<{ pod: string; inside: Namespace }> {
  const { name, path } = makePod();
  run('ip', 'netns', 'exec', name, 'nft', RULES);
  return { pod: name, inside: await open(path) };
}

/** A field as `nft -j` writes it. */
type Json = null | string | number | { readonly [key: string]: Json } | readonly Json[];

function prefix(text: string): Json {
  const [addr = '', len] = text.split('/');
  if (len !== undefined) return { prefix: { addr, len: Number(len) } };
  const [first = '', last] = text.split('-');
  return last === undefined ? first : { range: [toJsonField(first), toJsonField(last)] };
}

function toJsonField(field: NftField): Json {
  return typeof field === 'number' ? field : /^[\da-f.:]+[-/]/.test(field) ? prefix(field) : field;
}

function toJsonFields(fields: readonly NftField[]): Json {
  const [first = '', ...more] = fields.map(toJsonField);
  return more.length === 0 ? first : { concat: [first, ...more] };
}

function toJsonElement({ key, data, verdict }: NftElement): Json {
  if (data) return [toJsonFields(key), toJsonFields(data)];
  if (verdict === undefined) return toJsonFields(key);
  if (typeof verdict === 'string') return [toJsonFields(key), { [verdict]: null }];
  const [name, target] = 'goto' in verdict ? (['goto', verdict.goto] as const) : (['jump', verdict.jump] as const);
  return [toJsonFields(key), { [name]: { target } }];
}

/**
 * The elements that Debian's `nft` lists, each as text, sorted. The kernel grows the hash table of a set after the
 * transaction, and a listing meanwhile repeats some elements and leaves some out: then the set is listed again.
 */
function listedByNft(pod: string, set: NftSet): string[] {
  const kind = set.data === undefined ? 'set' : 'map';
  const json = run('ip', 'netns', 'exec', pod, 'nft', '-j', 'list', kind, 'inet', 'podwire', set.name);
  const { nftables } = JSON.parse(json);
  const object = nftables.find((entry: Record<string, unknown>) => kind in entry);
  const elements: string[] = (object[kind].elem ?? []).map((element: Json) => JSON.stringify(element)).toSorted();
  return new Set(elements).size < elements.length ? listedByNft(pod, set) : elements;
}

function expected(elements: readonly NftElement[]): string[] {
  return elements.map((element) => JSON.stringify(toJsonElement(element))).toSorted();
}

function add(set: NftSet, ...elements: NftElement[]): NftElementChange {
  return { type: 'elements.add', set, elements };
}

function remove(set: NftSet, ...elements: NftElement[]): NftElementChange {
  return { type: 'elements.delete', set, elements };
}

const GOTO = { goto: 'egress' };
const JUMP = { jump: 'egress' };

function textOf(element: NftElement): string {
  return JSON.stringify(element);
}

type Model = ReadonlyMap<NftSet, Map<string, NftElement>>;

/** The elements after a transaction; undefined when the kernel refuses it. */
function modelAfter(before: Model, changes: readonly NftElementChange[]): Model | undefined {
  const after = new Map([...before].map(([set, held]) => [set, new Map(held)]));
  for (const { type, set, elements } of changes) {
    const held = after.get(set) ?? new Map<string, NftElement>();
    for (const element of elements) {
      const key = JSON.stringify(element.key);
      const present = held.get(key);
      if (type === 'elements.delete') {
        if (!held.delete(key)) return undefined;
      } else {
        if (present && textOf(present) !== textOf(element)) return undefined;
        held.set(key, element);
      }
    }
  }
  return after;
}

const CASES: readonly [NftSet, readonly NftElement[]][] = [
  [NAMES, [{ key: ['podw0'] }, { key: ['x.y_15bytes!?ab'] }]],
  [
    PREFIXES4,
    [
      { key: ['10.65.0.0/26'] },
      { key: ['10.65.0.64'] },
      { key: ['192.0.2.3-192.0.2.9'] },
      { key: ['255.255.255.0/24'] },
    ],
  ],
  [PREFIXES6, [{ key: ['fd00::/64'] }, { key: ['::1'] }, { key: ['ffff::/16'] }]],
  [SOURCES, [{ key: ['podw0', '10.65.0.0/26'] }, { key: ['podw1', '10.65.0.1'] }]],
  [TARGETS, [{ key: ['10.0.0.1', 'tcp', 80] }, { key: ['10.0.0.1', 'sctp', 65_535] }]],
  [
    HOST_PORTS,
    [
      { key: ['udp', 53], data: ['10.65.0.2', 5353] },
      { key: ['tcp', 53], data: ['10.65.0.3', 1] },
    ],
  ],
  [
    PROFILES,
    [
      { key: ['podw0'], verdict: GOTO },
      { key: ['podw1'], verdict: JUMP },
      { key: ['podw2'], verdict: 'drop' },
    ],
  ],
];

describe('changeElements', () => {
  it.each(CASES)('adds and deletes elements of $name, as nft does', async (set, elements) => {
    const { pod, inside } = await makeTable();
    const before = await inside.generation();
    const added = await inside.changeElements([add(set, ...elements)]);
    expect(added).toEqual({ applied: true, outcomes: [{ ok: true }], generation: before + 1 });
    expect(await inside.generation()).toBe(before + 1);
    expect(listedByNft(pod, set)).toEqual(expected(elements));
    // Adding again changes nothing, deleting them leaves nothing.
    expect(await inside.changeElements([add(set, ...elements)])).toEqual({ applied: true, outcomes: [{ ok: true }] });
    expect(await inside.changeElements([remove(set, ...elements)])).toMatchObject({ applied: true });
    expect(listedByNft(pod, set)).toEqual([]);
  });

  it('names the element that the kernel refuses, and makes no change', async () => {
    const { pod, inside } = await makeTable();
    await inside.changeElements([add(HOST_PORTS, { key: ['tcp', 80], data: ['10.65.0.2', 80] })]);
    const result = await inside.changeElements([
      add(NAMES, { key: ['podw0'] }),
      add(HOST_PORTS, { key: ['tcp', 79], data: ['10.65.0.9', 80] }, { key: ['tcp', 80], data: ['10.65.0.9', 80] }),
      remove(NAMES, { key: ['podw7'] }),
    ]);
    expect(result).toMatchObject({
      applied: false,
      outcomes: [
        { ok: false, error: { code: 'ECANCELED' } },
        { ok: false, error: { code: 'EEXIST', object: 'inet podwire hostports { tcp . 80 }' }, element: 1 },
        { ok: false, error: { code: 'ENOENT' }, element: 0 },
      ],
    });
    expect(result.generation).toBeUndefined();
    expect(listedByNft(pod, NAMES)).toEqual([]);
    expect(listedByNft(pod, HOST_PORTS)).toEqual(expected([{ key: ['tcp', 80], data: ['10.65.0.2', 80] }]));
  });

  it('replaces a value by a deletion and an addition of one transaction', async () => {
    const { pod, inside } = await makeTable();
    const [old, other] = [
      { key: ['udp', 53], data: ['10.65.0.2', 53] },
      { key: ['udp', 53], data: ['10.65.0.3', 53] },
    ];
    await inside.changeElements([add(HOST_PORTS, old)]);
    const monitor = await inside.monitorTables({ tables: [TABLE] });
    const { generation } = await inside.changeElements([remove(HOST_PORTS, old), add(HOST_PORTS, other)]);
    const seen = await monitor[Symbol.asyncIterator]().next();
    monitor.close();
    // One generation has both: no packet sees the time between them.
    expect(seen.value).toMatchObject({ generation, changes: [{ kinds: ['elements.add', 'elements.delete'] }] });
    expect(listedByNft(pod, HOST_PORTS)).toEqual(expected([other]));
  });

  it('reports a table, a set and a chain that do not exist', async () => {
    const { pod, inside } = await makeTable();
    const errors = async (...changes: NftElementChange[]) =>
      (await inside.changeElements(changes)).outcomes.map((outcome) => (outcome.ok ? 'ok' : outcome.error.code));
    expect(await errors(add({ ...NAMES, name: 'none' }, { key: ['a'] }))).toEqual(['ENOENT']);
    expect(await errors(add({ ...NAMES, table: 'none' }, { key: ['a'] }))).toEqual(['ENOENT']);
    expect(await errors(add(PROFILES, { key: ['a'], verdict: { goto: 'none' } }))).toEqual(['ENOENT']);
    expect(await errors(add({ ...NAMES, key: ['inet_service'] }, { key: [80] }))).toEqual(['EINVAL']);
    run('ip', 'netns', 'exec', pod, 'nft', 'flush', 'ruleset');
    expect(await errors(add(NAMES, { key: ['a'] }), add(PREFIXES4, { key: ['10.0.0.0/8'] }))).toEqual([
      'ENOENT',
      'ENOENT',
    ]);
  });

  it('changes all or nothing of a table that another program deletes and makes again meanwhile', async () => {
    const { pod, inside } = await makeTable();
    const churn = promisify(execFile)('ip', [
      ...['netns', 'exec', pod, 'sh', '-c'],
      `for n in $(seq 30); do nft delete table inet podwire; nft -f - <<'EOF'\n${RULES}\nEOF\ndone`,
    ]);
    const state = { isRunning: true };
    const ended = churn.finally(() => (state.isRunning = false));
    const codes = new Set<string>();
    while (state.isRunning) {
      const { applied, outcomes } = await inside.changeElements([
        add(NAMES, { key: ['podw0'] }),
        add(HOST_PORTS, { key: ['tcp', 80], data: ['10.65.0.2', 80] }),
      ]);
      codes.add(applied ? 'ok' : outcomes.map((outcome) => (outcome.ok ? 'ok' : outcome.error.code)).join());
    }
    await ended;
    expect([...codes].toSorted()).toEqual(['ENOENT,ENOENT', 'ok']);
  });

  it('adds 50,000 elements in one transaction, and deletes them', async () => {
    const { pod, inside } = await makeTable();
    const elements = Array.from({ length: 50_000 }, (_, n) => ({
      key: ['tcp', n + 1],
      data: [`10.${n >> 16}.${(n >> 8) & 255}.${n & 255}`, 65_535 - n],
    }));
    const before = await inside.generation();
    expect(await inside.changeElements([add(HOST_PORTS, ...elements)])).toMatchObject({ generation: before + 1 });
    expect(listedByNft(pod, HOST_PORTS)).toEqual(expected(elements));
    // The refused element is in one of the last messages.
    const [last] = elements.slice(-1);
    const conflict = await inside.changeElements([
      add(HOST_PORTS, ...elements.slice(0, -1), { key: last!.key, data: ['10.9.9.9', 9] }),
    ]);
    expect(conflict.outcomes).toMatchObject([{ error: { code: 'EEXIST' }, element: elements.length - 1 }]);
    expect(await inside.changeElements([remove(HOST_PORTS, ...elements)])).toMatchObject({ applied: true });
    expect(listedByNft(pod, HOST_PORTS)).toEqual([]);
  });

  it('agrees with nft about random changes, whole transactions failing included', async () => {
    const { pod, inside } = await makeTable();
    const small = fc.integer({ min: 0, max: 3 });
    const elements: readonly [NftSet, fc.Arbitrary<NftElement>][] = [
      [NAMES, small.map((n) => ({ key: [`podw${n}`] }))],
      [PREFIXES4, small.map((n) => ({ key: [`10.65.0.${n * 64}/26`] }))],
      [PREFIXES6, small.map((n) => ({ key: [`fd00:${n + 1}::-fd00:${n + 1}::5:${n}`] }))],
      [SOURCES, fc.tuple(small, small).map(([n, m]) => ({ key: [`podw${n}`, `10.${m}.0.0/16`] }))],
      [HOST_PORTS, fc.tuple(small, small).map(([n, m]) => ({ key: ['udp', n], data: [`10.65.0.${m}`, m] }))],
      [
        PROFILES,
        fc.tuple(small, fc.boolean()).map(([n, isJump]) => ({ key: [`podw${n}`], verdict: isJump ? JUMP : GOTO })),
      ],
    ];
    const change = fc.oneof(
      ...elements.map(([set, element]) =>
        fc.record({
          type: fc.constantFrom<NftElementChange['type'][]>('elements.add', 'elements.delete'),
          set: fc.constant(set),
          elements: fc.array(element, { maxLength: 3 }),
        }),
      ),
    );
    const model = new Map(elements.map(([set]) => [set, new Map<string, NftElement>()]));
    await fc.assert(
      fc.asyncProperty(fc.array(change, { minLength: 1, maxLength: 4 }), async (changes) => {
        const after = modelAfter(model, changes);
        expect(await inside.changeElements(changes)).toMatchObject({ applied: after !== undefined });
        for (const [set, held] of after ?? []) model.set(set, held);
        for (const set of new Set(changes.map((made) => made.set))) {
          expect(listedByNft(pod, set)).toEqual(expected([...(model.get(set)?.values() ?? [])]));
        }
      }),
      { numRuns: 150 },
    );
  });

  it.each<[string, NftElementChange, string]>([
    ['an empty name', add(NAMES, { key: [''] }), 'changes[0].elements[0].key[0]'],
    ['a long name', add(NAMES, { key: ['a'.repeat(16)] }), 'changes[0].elements[0].key[0]'],
    ['a zero byte', add(NAMES, { key: ['a\0b'] }), 'changes[0].elements[0].key[0]'],
    ['too few fields', add(SOURCES, { key: ['podw0'] }), 'changes[0].elements[0].key'],
    ['too many fields', add(NAMES, { key: ['a', 'b'] }), 'changes[0].elements[0].key'],
    ['an address of the other family', add(SOURCES, { key: ['a', 'fd00::1'] }), 'changes[0].elements[0].key[1]'],
    ['a prefix where no interval can be', add(TARGETS, { key: ['10.0.0.0/8', 6, 1] }), 'changes[0].elements[0].key[0]'],
    ['a prefix with host bits', add(PREFIXES4, { key: ['10.0.0.1/8'] }), 'changes[0].elements[0].key[0]'],
    ['a prefix that is too long', add(PREFIXES4, { key: ['10.0.0.0/33'] }), 'changes[0].elements[0].key[0]'],
    ['a reversed interval', add(PREFIXES4, { key: ['10.0.0.2-10.0.0.1'] }), 'changes[0].elements[0].key[0]'],
    ['a port out of range', add(TARGETS, { key: ['10.0.0.1', 6, 65_536] }), 'changes[0].elements[0].key[2]'],
    ['a fraction', add(TARGETS, { key: ['10.0.0.1', 6, 1.5] }), 'changes[0].elements[0].key[2]'],
    [
      'a protocol without a number here',
      add(TARGETS, { key: ['10.0.0.1', 'gre', 1] }),
      'changes[0].elements[0].key[1]',
    ],
    ['a missing value', add(HOST_PORTS, { key: ['tcp', 1] }), 'changes[0].elements[0].data'],
    ['a value of a set', add(NAMES, { key: ['a'], data: ['b'] }), 'changes[0].elements[0].data'],
    ['a missing verdict', add(PROFILES, { key: ['a'] }), 'changes[0].elements[0].verdict'],
    ['a verdict of a set', add(NAMES, { key: ['a'], verdict: 'drop' }), 'changes[0].elements[0].verdict'],
    ['an empty chain', add(PROFILES, { key: ['a'], verdict: { goto: '' } }), 'changes[0].elements[0].verdict.goto'],
    ['no type', add({ ...NAMES, key: [] }), 'changes[0].set.key'],
    ['a long table name', add({ ...NAMES, table: 'a'.repeat(256) }), 'changes[0].set.table'],
  ])('refuses %s', async (_, change, path) => {
    const inside = await open(makePod().path);
    expect(await failureOf(inside.changeElements([change]))).toMatchObject({ name: 'ArgumentError', path });
  });
});
