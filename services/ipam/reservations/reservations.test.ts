import { describe, expect, test } from 'vitest';

import { failureOf } from '../allocator/failure.fixture.js';
import type { Reservation } from '../allocator/records.js';
import { MapView } from '../records/testing/map-view.js';
import { versionOf } from '../records/versions.js';
import { NOW_MS, prefix } from '../testing/records.js';
import {
  createReservation,
  deleteReservation,
  getReservation,
  listReservations,
  updateReservation,
} from './reservations.js';

const PRINTERS = [prefix('10.0.0.0/28'), prefix('10.0.0.99/32')];

function create(view: MapView, name: string): Reservation {
  return view.apply(createReservation(view, { spec: { name, prefixes: PRINTERS }, uid: `uid-${name}`, nowMs: NOW_MS }));
}

describe('a reservation', () => {
  test('is there once it is made, and not made twice', () => {
    const view = new MapView();
    const made = create(view, 'printers');
    expect(made).toEqual({
      name: 'printers',
      uid: 'uid-printers',
      createTimeMs: Date.parse('2026-08-22T06:33:25Z'),
      prefixes: PRINTERS,
    });
    expect(getReservation(view, 'printers')).toEqual(made);
    expect(failureOf(() => create(view, 'printers')).code).toBe('RESERVATION_EXISTS');
  });

  test('is changed and deleted by the version that was read, or any', () => {
    const view = new MapView();
    const made = create(view, 'printers');
    const change = { name: 'printers', prefixes: [prefix('10.1.0.0/16')] };
    const { reservation, changed } = view.apply(
      updateReservation(view, { ...change, resourceVersion: versionOf(made) }),
    );
    expect([changed, view.reservation('printers')]).toEqual([true, { ...made, prefixes: change.prefixes }]);
    expect(updateReservation(view, { ...change, resourceVersion: '' })).toEqual({
      changes: [],
      outcome: { reservation, changed: false },
    });
    const stale = { name: 'printers', resourceVersion: versionOf(made) };
    expect(failureOf(() => updateReservation(view, { ...change, ...stale })).code).toBe('STALE_VERSION');
    expect(failureOf(() => deleteReservation(view, stale)).code).toBe('STALE_VERSION');
    view.apply(deleteReservation(view, { name: 'printers', resourceVersion: versionOf(reservation) }));
    expect(view.reservations()).toEqual([]);
  });

  test('that does not exist is not found', () => {
    const view = new MapView();
    for (const work of [
      () => getReservation(view, 'x'),
      () => updateReservation(view, { name: 'x', prefixes: PRINTERS, resourceVersion: '' }),
      () => deleteReservation(view, { name: 'x', resourceVersion: '' }),
    ])
      expect(failureOf(work)).toMatchObject({ code: 'RESERVATION_NOT_FOUND', details: { reservation: 'x' } });
  });
});

test('reservations are listed in the order of their names, in pages', () => {
  const view = new MapView();
  for (const name of ['b', 'c', 'a']) create(view, name);
  const names = (after: string, limit: number) => {
    const { items, more } = listReservations(view, { after, limit });
    return [items.map(({ name }) => name).join(''), more];
  };
  expect([names('', 2), names('b', 2), names('c', 1)]).toEqual([
    ['ab', true],
    ['c', false],
    ['', false],
  ]);
});
