import { context, ROOT_CONTEXT } from '@opentelemetry/api';
import { AsyncLocalStorageContextManager } from '@opentelemetry/context-async-hooks';
import { HistoryServiceService, ListChangesRequest } from '@podwire/proto/podwire/ipam/v1/history';
import { withAuthor } from '@podwire/shared/rpc/access';
import { LOCAL_CALLER } from '@podwire/shared/tls/caller';
import fc from 'fast-check';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';

import { MemoryStore } from '../engine/testing/memory-store.js';
import { forever, instantClock, keys, startReplica } from '../engine/testing/stores.js';
import type { ObjectChange } from '../records/history.js';
import { decodeChanges, encodeChanges, isApplied, objectDifferences, recordOf } from '../records/json/history.js';
import { dayStartMs } from '../records/json/keys.js';
import { serialize } from '../records/json/registry.js';
import type { RecordValue } from '../records/view.js';
import { startIpam } from '../testing/ipam.js';
import { nodeRecord, poolRecord, prefix, reservation } from '../testing/records.js';
import { clientLimits, Served } from '../testing/service.js';
import type { ChangeQuery } from './tenures.js';

beforeAll(() => {
  context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable());
});
afterAll(() => context.disable());

const EVER = { fromMs: 0, untilMs: Number.MAX_SAFE_INTEGER };
const MADE = { atMs: 7, author: 'operator "ann"' };

/** Every page's changes, one after another. */
async function allOf(store: MemoryStore, query: Partial<ChangeQuery> = {}): Promise<readonly ObjectChange[]> {
  const { ipam, close } = await startIpam(store);
  const found: ObjectChange[] = [];
  for (let after: string | undefined; ;) {
    const page = await ipam.history.changes({ span: EVER, selects: () => true, limit: 1000, ...query, after }, forever);
    found.push(...page.changes);
    if (page.next === undefined) break;
    after = page.next;
  }
  await close();
  return found;
}

const policies = (...names: string[]): RecordValue => {
  const rules = {
    ...{ pools: undefined, addresses: [], addressesWithoutIpam: undefined, sourcePrefixes: undefined },
    ...{ macAddresses: undefined, families: undefined },
  };
  const rest = { uid: '', createTimeMs: 0, namespaceSelector: '', rules };
  return { kind: 'requestPolicies', value: names.map((name) => ({ name, namespaces: [name], ...rest })) };
};

const revoked = (...serialNumbers: string[]): RecordValue => {
  const rest = { name: 'bob', revokedAtMs: 0, expiresAtMs: 0 };
  return { kind: 'revokedCertificates', value: serialNumbers.map((serialNumber) => ({ serialNumber, ...rest })) };
};

describe('a change', () => {
  test.each<[string, RecordValue | undefined, RecordValue | undefined, unknown]>([
    [
      'of a pool names the fields that differ',
      poolRecord('p', '10.0.0.0/16'),
      poolRecord('p', '10.0.0.0/16', { disabled: true, uid: 'other' }),
      ['ippool p changed', ['disabled', 'false', 'true']],
    ],
    [
      'of labels and addresses of a node has no bookkeeping',
      nodeRecord('n', { labels: { zone: 'a' }, leaseRecallCount: 1 }),
      nodeRecord('n', {
        ...{ labels: { zone: 'b' }, registeredLabels: { zone: 'b' }, leaseRecallCount: 2, deletionTimeMs: 0 },
        ipv4: { address: prefix('192.0.2.1/32'), subnetBits: 24 },
      }),
      [
        ...['node n changed', ['labels.zone', 'a', 'b']],
        ['deletionTimestamp', undefined, '1970-01-01T00:00:00Z'],
        ['bgp.ipv4Address', undefined, '192.0.2.1/24'],
      ],
    ],
    ['of bookkeeping alone is none', nodeRecord('n'), nodeRecord('n', { inventoryRequestCount: 3 }), []],
    [
      'of one policy among several is of that one',
      policies('a', 'b'),
      policies('a'),
      [
        ...['requestpolicy b deleted', ['namespaces', 'b', undefined], ['namespaceSelector', '', undefined]],
        ['rules.addresses', '[]', undefined],
      ],
    ],
    [
      'of revoked certificates is of each serial number',
      undefined,
      revoked('0A'),
      [
        ...['revokedcertificate 0A created', ['holder', undefined, 'bob']],
        ['expires', undefined, '1970-01-01T00:00:00.000Z'],
      ],
    ],
  ])('%s', (_, before, after, expected) => {
    const changes = objectDifferences(before, after);
    expect(
      changes.flatMap(({ kind, name, action, fields }) => [
        `${kind} ${name} ${action}`,
        ...fields.map(({ field, ...values }) => [field, values.before, values.after]),
      ]),
    ).toEqual(expected);
    for (const change of changes) {
      expect([isApplied(change, before), isApplied(change, after)]).toEqual([false, true]);
      expect(recordOf(change).kind).toBe((before ?? after)?.kind);
    }
  });

  const text = fc.option(fc.string(), { nil: undefined });
  const change: fc.Arbitrary<ObjectChange> = fc.record({
    ...{ atMs: fc.nat(), author: fc.string(), name: fc.string() },
    kind: fc.constantFrom('ippool', 'node'),
    action: fc.constantFrom('created', 'changed', 'deleted'),
    fields: fc.array(fc.record({ field: fc.string(), before: text, after: text })),
  });

  test('property: is read as it was written', () => {
    fc.assert(
      fc.property(fc.array(change), (changes) => {
        expect(decodeChanges(serialize(encodeChanges(changes)))).toEqual(changes);
      }),
    );
    for (const damaged of ['', '[]', '{}', '{"changes":[1]}', '{"changes":[{"at":"x"}]}'])
      expect(decodeChanges(Buffer.from(damaged))).toBeUndefined();
  });

  test('has at most 100 fields, and cut values', () => {
    const labels = Object.fromEntries(Array.from({ length: 500 }, (_, index) => [`l${index}`, 'x'.repeat(5000)]));
    const [created] = objectDifferences(undefined, nodeRecord('n', { labels }));
    expect(created?.fields).toHaveLength(100);
    expect(created?.fields[0]?.after).toBe(`${'x'.repeat(1023)}…`);
    expect(created && isApplied(created, nodeRecord('n', { labels }))).toBe(true);
  });
});

describe('the changes of a datastore', () => {
  const name = fc.constantFrom('a', 'b', 'c');
  const step = fc.record({
    name,
    kind: fc.constantFrom('pool', 'reservation', 'node'),
    variant: fc.nat(3),
    author: fc.constantFrom(LOCAL_CALLER, { kind: 'network', role: 'operator', name: 'ann' } as const, undefined),
  });

  function recordFor({
    name: each,
    kind,
    variant,
  }: Pick<typeof step extends fc.Arbitrary<infer Value> ? Value : never, 'name' | 'kind' | 'variant'>): RecordValue {
    if (kind === 'pool')
      return poolRecord(each, '10.0.0.0/16', { disabled: variant === 1, natOutgoing: variant === 2 });
    if (kind === 'reservation')
      return reservation(each, ...Array.from({ length: variant }, (_, at) => `10.0.0.${at}/32`));
    return nodeRecord(each, { labels: { variant: String(variant) }, leaseRecallCount: variant });
  }

  test('property: lead from nothing to its objects, and name their authors, under conflicts of two replicas', async () => {
    await fc.assert(
      fc.asyncProperty(fc.array(step, { maxLength: 12 }), async (steps) => {
        const store = new MemoryStore();
        let nowMs = 1;
        const clock = { ...instantClock, nowMs: () => nowMs++ };
        const replicas = await Promise.all(
          [0, 1].map((index) => startReplica(store, { random: () => index / 2, clock })),
        );
        const authors = new Set<string>();
        await Promise.all(
          steps.map(async ({ author, ...each }, index) => {
            const record = recordFor(each);
            const isDeletion = each.variant === 3;
            const update = () =>
              replicas[index % 2]?.updater.update(
                `${index}`,
                () => ({ changes: [{ type: isDeletion ? 'delete' : 'put', record }], outcome: undefined }),
                { signal: forever },
              );
            authors.add(author ? (author.kind === 'local' ? 'local process' : 'operator "ann"') : 'podwire-ipam');
            await (author ? context.with(withAuthor(ROOT_CONTEXT, author), update) : update());
          }),
        );
        const objects = new Map<string, Map<string, string>>();
        for (const { author, kind, name: each, action, fields } of await allOf(store, { limit: 3 })) {
          expect(authors).toContain(author);
          const object = objects.get(`${kind} ${each}`) ?? new Map<string, string>();
          expect(objects.has(`${kind} ${each}`)).toBe(action !== 'created');
          for (const { field, before, after } of fields) {
            expect(object.get(field)).toBe(before);
            if (after === undefined) object.delete(field);
            else object.set(field, after);
          }
          if (action === 'deleted') objects.delete(`${kind} ${each}`);
          else objects.set(`${kind} ${each}`, object);
        }
        const { mirror } = await startReplica(store);
        const records: RecordValue[] = [
          ...mirror.view.pools().map((value) => ({ kind: 'pool', value }) as const),
          ...mirror.view.reservations().map((value) => ({ kind: 'reservation', value }) as const),
          ...mirror.view.nodes().map((value) => ({ kind: 'node', value }) as const),
        ];
        const expected = records.flatMap((record) =>
          objectDifferences(undefined, record).map(
            ({ kind, name: each, fields }) =>
              [`${kind} ${each}`, new Map(fields.map(({ field, after = '' }) => [field, after]))] as const,
          ),
        );
        expect(objects).toEqual(new Map(expected));
      }),
      { numRuns: 60 },
    );
  });

  test('property: are the entries that a query selects, in the order of their times, on pages of any size', async () => {
    const time = fc.integer({ min: dayStartMs(20_680), max: dayStartMs(20_690) });
    const names = fc.array(name, { minLength: 1, maxLength: 3 });
    await fc.assert(
      fc.asyncProperty(
        fc.uniqueArray(fc.tuple(time, names), { selector: ([atMs]) => atMs, maxLength: 30 }),
        fc.tuple(time, time),
        fc.subarray(['a', 'b', 'c']),
        fc.integer({ min: 1, max: 40 }),
        async (requests, times, selected, limit) => {
          const store = new MemoryStore();
          const made = requests.map(([atMs, each]) =>
            each.map((of): ObjectChange => ({ ...MADE, atMs, kind: 'node', name: of, action: 'deleted', fields: [] })),
          );
          const puts = made.map((changes, index) => ({
            key: keys.changes(changes[0]?.atMs ?? 0, `000-${index.toString(16)}`),
            value: serialize(encodeChanges(changes)),
          }));
          await store.commit({ comparisons: [], puts, deletes: [] }, forever);
          const span = { fromMs: Math.min(...times), untilMs: Math.max(...times) + 1 };
          const expected = made
            .flat()
            .filter((each) => each.atMs >= span.fromMs && each.atMs < span.untilMs && selected.includes(each.name))
            .sort((a, b) => a.atMs - b.atMs);
          const selects = (change: ObjectChange) => selected.includes(change.name);
          expect(await allOf(store, { span, selects, limit })).toEqual(expected);
        },
      ),
      { numRuns: 60 },
    );
  });

  test('are not kept without a history', async () => {
    const store = new MemoryStore();
    const { updater } = await startReplica(store, { keepsHistory: false, clock: instantClock });
    const record = poolRecord('p', '10.0.0.0/16');
    const decide = () => ({ changes: [{ type: 'put', record } as const], outcome: undefined });
    await updater.update('pools', decide, { signal: forever });
    expect((await store.list(keys.history, forever)).records).toEqual([]);
  });

  test('that end a deletion with the release of a node are podwire-ipam’s', async () => {
    const store = new MemoryStore();
    const { updater } = await startReplica(store);
    const record = poolRecord('p', '10.0.0.0/16', { deletionTimeMs: 0 });
    for (const type of ['put', 'delete'] as const)
      await context.with(withAuthor(ROOT_CONTEXT, { kind: 'network', role: 'node', name: 'n' }), () =>
        updater.update('pools', () => ({ changes: [{ type, record }], outcome: undefined }), { signal: forever }),
      );
    expect((await allOf(store)).map(({ author }) => author)).toEqual(['node "n"', 'podwire-ipam']);
  });
});

describe('ListChanges', () => {
  const served = new Served();
  beforeAll(() => served.begin());
  afterAll(() => served.end());
  const list = (filter: Partial<ListChangesRequest>) =>
    served.caller.peer.call(HistoryServiceService.listChanges, ListChangesRequest.fromPartial(filter), clientLimits());

  test('shows a pool that a local process created, and addresses of a node and a namespace', async () => {
    await served.caller.createPool({ name: 'web', cidr: '10.66.0.0/24' });
    const { changes, nextPageToken } = await list({ kind: 'ippool', from: new Date(Date.now() - 60_000) });
    expect(nextPageToken).toBe('');
    expect(changes).toMatchObject([{ author: 'local process', name: 'web', action: 'created' }]);
    expect(changes[0]?.fields).toContainEqual({ path: 'cidr', before: undefined, after: '10.66.0.0/24' });
    await served.caller.allocate('c1', { pod: { namespace: 'apps', name: 'web', uid: 'u' } });
    await served.caller.release('c1');
    await served.caller.allocate('c2', { pod: { namespace: 'other', name: 'web', uid: 'u' } });
    const tenuresOf = async (subject: { $case: 'nodeName' | 'namespace'; value: string }) => {
      const request = { subject, from: undefined, until: undefined, pageSize: 0, pageToken: '' };
      const answer = await served.caller.peer.call(HistoryServiceService.getAddressHistory, request, clientLimits());
      return answer.tenures.map(({ handleId }) => handleId);
    };
    expect(await tenuresOf({ $case: 'nodeName', value: 'node-1' })).toEqual(['net.c2', 'net.c1']);
    expect(await tenuresOf({ $case: 'namespace', value: 'apps' })).toEqual(['net.c1']);
    expect(await tenuresOf({ $case: 'nodeName', value: 'node-2' })).toEqual([]);
  });

  test.each<[string, Partial<ListChangesRequest>, string]>([
    ['an unknown kind', { kind: 'pool' }, 'kind'],
    ['a malformed node', { nodeName: '-' }, 'node_name'],
    ['an empty time', { from: new Date(1), until: new Date(1) }, 'until'],
    ['a foreign token', { pageToken: 'x' }, 'page_token'],
    ['a negative page', { pageSize: -1 }, 'page_size'],
  ])('refuses %s', async (_, filter, field) => {
    await expect(list(filter)).rejects.toMatchObject({ violations: [expect.objectContaining({ field })] });
  });
});
