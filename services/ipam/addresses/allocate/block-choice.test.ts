import { parseAddress } from '@podwire/shared/net/address';
import { formatPrefix } from '@podwire/shared/net/prefix';
import { describe, expect, test } from 'vitest';

import { inconsistencies } from '../../engine/testing/consistency.js';
import type { Block } from '../../records/block.js';
import type { Pool } from '../../records/pool.js';
import type { RecordValue } from '../../records/view.js';
import {
  attachment,
  block,
  claimedBlock,
  config,
  failureOf,
  host,
  NOW_MS,
  pool,
  poolRecord,
  prefix,
  request,
} from '../../testing/records.js';
import { TestView } from '../../testing/test-view.js';
import { release } from '../release.js';
import { allocate, type Allocation, type AllocationRequest } from './allocate.js';
import { chooseBlocks, type BlockChoice } from './block-choice.js';

const wanting = (texts: readonly string[], id = 'c1', rest: Partial<AllocationRequest> = {}): AllocationRequest => {
  const addresses = texts.map((text) => parseAddress(text)!);
  return request(id, { addresses, families: addresses.map(({ family }) => family), ...rest });
};

function run(view: TestView, asked: AllocationRequest, nowMs = NOW_MS): Allocation {
  const outcome = view.apply(allocate(view, { request: asked, nowMs }));
  expect(inconsistencies(view, nowMs)).toEqual([]);
  return outcome;
}

const addressesOf = ({ endpoint }: Allocation) => endpoint.addresses.map(({ address }) => formatPrefix(address));
const refusal = (view: TestView, asked: AllocationRequest, nowMs = NOW_MS) => {
  const before = view.snapshot();
  const failure = failureOf(() => allocate(view, { request: asked, nowMs }));
  expect(view.snapshot()).toEqual(before);
  return failure;
};

const four = (rest: Partial<Pool> = {}) => poolRecord('four', '10.0.0.0/24', rest);
const start = (...records: RecordValue[]) => new TestView([four(), poolRecord('six', 'fd00::/120'), ...records]);

describe('a requested address is allocated', () => {
  test('with its block, which becomes the node’s, in both families', () => {
    const view = start();
    const given = run(view, wanting(['fd00::77', '10.0.0.130']));
    expect(addressesOf(given)).toEqual(['fd00::77/128', '10.0.0.130/32']);
    expect(given.claimed.map(formatPrefix)).toEqual(['fd00::40/122', '10.0.0.128/26']);
    expect(view.affinitiesOf(host('n1'))).toHaveLength(2);
  });

  test('together with another of the other family', () => {
    expect(addressesOf(run(start(), wanting(['10.0.0.130'], 'c1', { families: [4, 6] })))[0]).toBe('10.0.0.130/32');
  });

  test.each<[string, Partial<Pool>, RecordValue[], Partial<AllocationRequest>]>([
    [
      'a reservation',
      {},
      [{ kind: 'reservation', value: { name: 'r', uid: '', createTimeMs: 0, prefixes: [prefix('10.0.0.0/8')] } }],
      {},
    ],
    ['selectors', { nodeSelector: 'has(nothing)', namespaceSelector: 'not one' }, [], {}],
    ['Manual', { assignmentMode: 'Manual' }, [], {}],
    ['the cap of blocks', {}, [...claimedBlock(block('10.0.0.0/26', 'n1'))], { maxBlocksCount: 1 }],
    ['claims that are disabled', {}, [config({ autoAllocateBlocks: false, strictAffinity: true })], {}],
  ])('in spite of %s', (_, rest, records, asked) => {
    const view = start(...records);
    view.put(four(rest));
    expect(addressesOf(run(view, wanting(['10.0.0.130'], 'c1', asked)))).toEqual(['10.0.0.130/32']);
  });

  test('from another node’s block, unless affinity is strict', () => {
    const records = claimedBlock(block('10.0.0.128/26', 'n2'));
    expect(run(start(...records), wanting(['10.0.0.130'])).borrowed.map(formatPrefix)).toEqual(['10.0.0.128/26']);
    expect(refusal(start(...records, config({ strictAffinity: true })), wanting(['10.0.0.130']))).toMatchObject({
      code: 'ADDRESS_REFUSED',
      message:
        '10.0.0.130 is in block 10.0.0.128/26, which belongs to n2, and affinity is strict: n1 may only use its own blocks; request an address of one of them',
    });
  });

  test('from the node’s own block whose claim is incomplete, also under strict affinity', () => {
    for (const records of [
      claimedBlock(block('10.0.0.128/26', 'n1')),
      claimedBlock(block('10.0.0.128/26', 'n1'), 'pending'),
      [{ kind: 'block', value: block('10.0.0.128/26', 'n1') }] as const,
    ]) {
      const view = start(...records, config({ strictAffinity: true }));
      const given = run(view, wanting(['10.0.0.130']));
      expect(addressesOf(given)).toEqual(['10.0.0.130/32']);
      expect([given.claimed, given.borrowed], 'it was the node’s').toEqual([[], []]);
      expect(view.affinity(host('n1'), prefix('10.0.0.128/26'))?.state).toBe('confirmed');
    }
  });

  test('from an empty block without an owner, which becomes the node’s, also under strict affinity', () => {
    const value = block('10.0.0.128/26', 'n1', { owner: undefined });
    for (const strictAffinity of [false, true]) {
      const view = start({ kind: 'block', value }, config({ strictAffinity }));
      expect(run(view, wanting(['10.0.0.130'])).claimed.map(formatPrefix)).toEqual(['10.0.0.128/26']);
      expect(view.block(value.prefix)?.owner).toEqual(host('n1'));
    }
  });

  test('from a block without an owner that has held addresses, unless affinity is strict', () => {
    const held = start();
    run(held, wanting(['10.0.0.129'], 'c0', { nodeName: 'n2' }));
    const disowned = { ...held.block(prefix('10.0.0.128/26'))!, owner: undefined, claimTimeMs: undefined };
    const records = held.snapshot().flatMap(([, record]) => (record.kind === 'affinity' ? [] : [record]));
    const view = new TestView([...records, { kind: 'block', value: disowned }]);
    const strict = new TestView([...view.snapshot().map(([, record]) => record), config({ strictAffinity: true })]);
    expect(refusal(strict, wanting(['10.0.0.130'])).message).toMatch(/which has no owner, and affinity is strict/);
    expect(run(view, wanting(['10.0.0.130'])).borrowed.map(formatPrefix)).toEqual(['10.0.0.128/26']);
  });

  test('by the stored cool-down, when the cool-down of its block is over', () => {
    const view = start(config({ cooldownSeconds: 30 }));
    run(view, wanting(['10.0.0.130']));
    view.apply(release(view, attachment('c1'), NOW_MS));
    const decide = (text: string) =>
      allocate(view, { request: wanting([text], 'c2'), nowMs: NOW_MS + 60_000 }).changes.filter(
        (change) => change.type === 'expect' && change.record.kind === 'config',
      );
    expect(decide('10.0.0.130')).toHaveLength(1);
    expect(decide('10.0.0.131')).toHaveLength(1);
  });

  test('from a surrounding block of another size that a former pool left', () => {
    const view = new TestView([four(), ...claimedBlock(block('10.0.0.128/25', 'n1'))]);
    const decision = allocate(view, { request: wanting(['10.0.0.130']), nowMs: NOW_MS });
    expect(decision.outcome.endpoint.addresses.map(({ block: from }) => formatPrefix(from))).toEqual(['10.0.0.128/25']);
  });

  test('again for the attachment that holds it, without a change', () => {
    const view = start();
    const asked = wanting(['10.0.0.130']);
    run(view, asked);
    expect(allocate(view, { request: asked, nowMs: NOW_MS }).changes).toEqual([]);
  });

  test('out of order: the rest of the queue stays as it was', () => {
    const view = start();
    run(view, wanting(['10.0.0.2']));
    expect(view.block(prefix('10.0.0.0/26'))!.unallocated.slice(0, 4)).toEqual([0, 1, 3, 4]);
  });
});

describe('a requested address is refused', () => {
  test('when another handle holds it, with its name', () => {
    const view = start();
    run(view, wanting(['10.0.0.130']));
    expect(refusal(view, wanting(['10.0.0.130'], 'c2'))).toMatchObject({
      code: 'ADDRESS_IN_USE',
      message:
        '10.0.0.130 is held by handle net.c1, pod default/pod-c1 on node n1; release it there, or request another address',
      details: { address: '10.0.0.130', handle: 'net.c1' },
    });
  });

  test('while it cools down, with the time when it will be free', () => {
    const view = start(config({ cooldownSeconds: 30 }));
    run(view, wanting(['10.0.0.130']));
    view.apply(release(view, attachment('c1'), NOW_MS));
    expect(refusal(view, wanting(['10.0.0.130'], 'c2'))).toMatchObject({
      code: 'ADDRESS_IN_USE',
      message: expect.stringContaining('until 2026-08-22T06:33:55.000Z'),
    });
    expect(addressesOf(run(view, wanting(['10.0.0.130'], 'c2'), NOW_MS + 30_000))).toEqual(['10.0.0.130/32']);
  });

  test('when the attachment holds another one of the family', () => {
    const view = start();
    run(view, wanting(['10.0.0.130']));
    expect(refusal(view, wanting(['10.0.0.131']))).toMatchObject({
      code: 'ADDRESS_DIFFERS',
      message: 'net/c1/eth0 requests 10.0.0.131 and holds 10.0.0.130; release that first',
    });
  });

  test.each<[string, Partial<Pool>, string]>([
    ['is disabled', { disabled: true }, 'which is disabled'],
    ['is being deleted', { deletionTimeMs: NOW_MS }, 'which is being deleted'],
    ['has other uses', { allowedUses: ['Tunnel'] }, 'which is not for containers: its allowedUses are Tunnel'],
  ])('when its pool %s', (_, rest, expected) => {
    const view = start(four(rest));
    expect(refusal(view, wanting(['10.0.0.130']))).toMatchObject({
      code: 'ADDRESS_REFUSED',
      message: expect.stringContaining(`10.0.0.130 is in pool "four" 10.0.0.0/24, ${expected}`),
    });
  });

  test('when it is in no pool', () => {
    expect(refusal(start(), wanting(['10.9.0.1']))).toMatchObject({
      code: 'ADDRESS_REFUSED',
      message: '10.9.0.1 is in no pool; request an address of a pool, or create a pool that contains it',
    });
  });

  test('when blocks of another size overlap its block', () => {
    const view = new TestView([four(), ...claimedBlock(block('10.0.0.136/30', 'n2'))]);
    expect(refusal(view, wanting(['10.0.0.130'])).message).toContain(
      'needs block 10.0.0.128/26, which overlaps block 10.0.0.136/30',
    );
  });

  test('in one family: then neither is allocated', () => {
    const view = start();
    run(view, wanting(['fd00::5'], 'other'));
    expect(refusal(view, wanting(['10.0.0.130', 'fd00::5'])).code).toBe('ADDRESS_IN_USE');
  });
});

const inPool = pool('p', '10.0.0.0/8', { blockSizeBits: 22 });

/** A block of about this size in the datastore. */
function blockOf(kibibytes: number): Block {
  const owner = { note: 'x'.repeat((kibibytes - 16) * 1024) };
  return { ...block('10.0.0.0/22', 'n1'), attributes: [{ handleId: undefined, owner, releasedAtMs: undefined }] };
}

const placesOf = (...sizes: number[]): BlockChoice[] =>
  sizes.map((size) => ({ offer: { block: blockOf(size), pool: inPool, origin: 'own', changes: [] }, ordinal: size }));
const chosen = (...parameters: Parameters<typeof chooseBlocks>) =>
  chooseBlocks(...parameters).map((place) => place?.ordinal);

test.each([
  [
    'the best, where they fit',
    [
      [700, 100],
      [700, 100],
    ],
    [700, 700],
  ],
  [
    'a smaller one of the later demand',
    [
      [900, 100],
      [900, 600, 500],
    ],
    [900, 500],
  ],
  ['a smaller one of the first demand, where the later has none', [[900, 800, 500], [900]], [500, 900]],
  [
    'the best, where none fit',
    [
      [1000, 900],
      [1000, 800],
    ],
    [1000, 1000],
  ],
  ['nothing for a demand without a block', [[900], []], [900, undefined]],
])('%s', (_, sizes, expected) => {
  expect(chosen(sizes.map((each) => placesOf(...each)))).toEqual(expected);
});

test('the size of other writes counts', () => {
  expect(chosen([placesOf(900, 500)], [blockOf(900)])).toEqual([500]);
});

test('only a bounded number of blocks that are too large is examined', () => {
  const [place] = placesOf(900);
  const endless = {
    *[Symbol.iterator]() {
      for (;;) yield place!;
    },
  };
  expect(chosen([endless], [blockOf(900)])).toEqual([900]);
});

test('takes no second choice from the iterator: finding it may search a whole pool', () => {
  const [place] = placesOf(100);
  const one = {
    *[Symbol.iterator]() {
      yield place!;
      throw new Error('a second choice was taken');
    },
  };
  expect(chosen([one])).toEqual([100]);
});
