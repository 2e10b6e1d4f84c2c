import { addressAt } from '@podwire/shared/net/prefix';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import type { Reservation } from '../records/config.js';
import { TestView } from '../testing/test-view.js';
import { versionOf } from '../records/versions.js';
import { block, failureOf, NOW_MS, prefix } from '../testing/records.js';
import { firstFreeOrdinal, freeOrdinals, hasRoom, RESERVATIONS, ReservedAddresses } from './reservations.js';

const PRINTERS = [prefix('10.0.0.0/28'), prefix('10.0.0.99/32')];

function create(view: TestView, name: string): Reservation {
  return view.apply(
    RESERVATIONS.create(view, { spec: { name, prefixes: PRINTERS }, uid: `uid-${name}`, nowMs: NOW_MS }),
  );
}

describe('a reservation', () => {
  test('exists once it is created, and is not created twice', () => {
    const view = new TestView();
    const made = create(view, 'printers');
    expect(made).toEqual({
      name: 'printers',
      uid: 'uid-printers',
      createTimeMs: Date.parse('2026-08-22T06:33:25Z'),
      prefixes: PRINTERS,
    });
    expect(RESERVATIONS.get(view, 'printers')).toEqual(made);
    expect(failureOf(() => create(view, 'printers')).code).toBe('RESERVATION_EXISTS');
  });

  test('is changed and deleted by the version that was read, or any', () => {
    const view = new TestView();
    const made = create(view, 'printers');
    const change = { name: 'printers', prefixes: [prefix('10.1.0.0/16')] };
    const { value, changed } = view.apply(
      RESERVATIONS.update(view, { spec: change, resourceVersion: versionOf(made) }),
    );
    expect([changed, view.reservation('printers')]).toEqual([true, { ...made, prefixes: change.prefixes }]);
    expect(RESERVATIONS.update(view, { spec: change, resourceVersion: '' })).toEqual({
      changes: [],
      outcome: { value, changed: false },
    });
    const stale = { name: 'printers', resourceVersion: versionOf(made) };
    expect(
      failureOf(() => RESERVATIONS.update(view, { spec: change, resourceVersion: stale.resourceVersion })).code,
    ).toBe('STALE_VERSION');
    expect(failureOf(() => RESERVATIONS.delete(view, stale)).code).toBe('STALE_VERSION');
    view.apply(RESERVATIONS.delete(view, { name: 'printers', resourceVersion: versionOf(value) }));
    expect(view.reservations()).toEqual([]);
  });

  test('that does not exist is not found', () => {
    const view = new TestView();
    for (const work of [
      () => RESERVATIONS.get(view, 'x'),
      () => RESERVATIONS.update(view, { spec: { name: 'x', prefixes: PRINTERS }, resourceVersion: '' }),
      () => RESERVATIONS.delete(view, { name: 'x', resourceVersion: '' }),
    ])
      expect(failureOf(work)).toMatchObject({ code: 'RESERVATION_NOT_FOUND', details: { reservation: 'x' } });
  });
});

test('reservations are listed in the order of their names, in pages', () => {
  const view = new TestView();
  for (const name of ['b', 'c', 'a']) create(view, name);
  const names = (after: string, limit: number) => {
    const { items, more } = RESERVATIONS.list(view, { after, limit });
    return [items.map(({ name }) => name).join(''), more];
  };
  expect([names('', 2), names('b', 2), names('c', 1)]).toEqual([
    ['ab', true],
    ['c', false],
    ['', false],
  ]);
});

const reserved = (...cidrs: string[]) => new ReservedAddresses(cidrs.map(prefix));
const exclude = (set: ReservedAddresses) => ({ reserved: set, view: new TestView() });
const free = (cidr: string, set: ReservedAddresses) => [...freeOrdinals(block(cidr, 'n1'), exclude(set))];

describe('counting', () => {
  test.each([
    [[], 0n],
    [['10.0.0.0/30', '10.0.0.8/32'], 5n],
    [['10.0.0.0/28', '10.0.0.0/28', '10.0.0.4/30', '10.0.0.5/32'], 16n],
    [['10.1.0.0/16', '9.255.255.255/32', '10.0.1.0/24'], 0n],
    [['10.0.0.0/8'], 256n],
    [['10.0.0.128/25', '10.0.0.0/25'], 256n],
    [['fd00::/16'], 0n],
  ])('of %j in a /24', (cidrs, count) => {
    expect(reserved(...cidrs).countIn(prefix('10.0.0.0/24'))).toBe(count);
  });

  test('of ranges larger than a machine integer', () => {
    expect(reserved('fd00::/48', 'fd00::/64').countIn(prefix('fd00::/32'))).toBe(1n << 80n);
    expect(reserved('::/0').countIn(prefix('fd00::/8'))).toBe(1n << 120n);
  });
});

describe('a block', () => {
  test('is covered by one reservation, or by several side by side', () => {
    expect(reserved('10.0.0.0/24').coversAll(prefix('10.0.0.64/26'))).toBe(true);
    expect(reserved('10.0.0.0/27', '10.0.0.32/27').coversAll(prefix('10.0.0.0/26'))).toBe(true);
    expect(reserved('10.0.0.0/27', '10.0.0.33/32').coversAll(prefix('10.0.0.0/26'))).toBe(false);
    expect(reserved('10.0.0.0/26').coversAll(prefix('10.0.0.0/25'))).toBe(false);
  });

  test('keeps its order around reserved addresses', () => {
    const set = reserved('10.0.0.0/31', '10.0.0.7/32');
    expect(free('10.0.0.0/29', set)).toEqual([2, 3, 4, 5, 6]);
    const queue = block('10.0.0.0/29', 'n1', { unallocated: [7, 5, 1, 2] });
    expect([...freeOrdinals(queue, exclude(set))]).toEqual([5, 2]);
  });

  test('has room while one address is neither used nor reserved', () => {
    const left = block('10.0.0.0/30', 'n1', { unallocated: [1, 3] });
    expect(hasRoom(left, exclude(reserved('10.0.0.1/32')))).toBe(true);
    expect(hasRoom(left, exclude(reserved('10.0.0.1/32', '10.0.0.3/32')))).toBe(false);
    expect(hasRoom(left, exclude(reserved('10.0.0.0/8')))).toBe(false);
  });
});

test('property: the first available address of a block is the first of all its available ones', () => {
  const ordinals = fc.shuffledSubarray(Array.from({ length: 8 }, (_, ordinal) => ordinal));
  const cidrs = fc.subarray(['10.0.0.0/30', '10.0.0.5/32', '10.0.0.6/31', '10.0.0.0/8', '10.0.1.0/24', 'fd00::/8']);
  fc.assert(
    fc.property(ordinals, cidrs, (unallocated, reservations) => {
      const queue = block('10.0.0.0/29', 'n1', { unallocated });
      const set = reserved(...reservations);
      expect(firstFreeOrdinal(queue, exclude(set))).toBe([...freeOrdinals(queue, exclude(set))][0]);
    }),
  );
});

test('property: covers every address and prefix like a check of each reservation', () => {
  const reservation = fc.record({ at: fc.integer({ min: 0, max: 63 }), length: fc.integer({ min: 26, max: 32 }) });
  fc.assert(
    fc.property(fc.array(reservation, { maxLength: 8 }), (reservations) => {
      const inside = new Set(
        reservations.flatMap(({ at, length }) => {
          const size = 2 ** (32 - length);
          return Array.from({ length: size }, (_, i) => Math.floor(at / size) * size + i);
        }),
      );
      const set = reserved(
        ...reservations.map(({ at, length }) => {
          const size = 2 ** (32 - length);
          return `10.0.0.${Math.floor(at / size) * size}/${length}`;
        }),
      );
      const base = prefix('10.0.0.0/24');
      for (let at = 0; at < 64; at++) {
        const address = addressAt(base, at);
        expect(set.contains(address)).toBe(inside.has(at));
        let next = at;
        while (inside.has(next)) next++;
        expect(set.nextFree(address)).toBe(addressAt(base, next).value);
        for (let length = 26; length <= 32; length++) {
          const size = 2 ** (32 - length);
          if (at % size !== 0) continue;
          const part = prefix(`10.0.0.${at}/${length}`);
          const count = Array.from({ length: size }, (_, i) => at + i).filter((i) => inside.has(i)).length;
          expect(set.countIn(part)).toBe(BigInt(count));
          expect(set.coversAll(part)).toBe(count === size);
          expect(set.overlaps(part)).toBe(count > 0);
        }
      }
    }),
    { numRuns: 100, verbose: fc.VerbosityLevel.Verbose },
  );
});
