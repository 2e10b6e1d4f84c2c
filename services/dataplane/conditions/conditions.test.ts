import { metrics } from '@opentelemetry/api';
import { ReadMetrics } from '@podwire/shared/testing/metrics';
import { expect, test } from 'vitest';

import {
  canWirePods,
  distinctConditions,
  RouteFaults,
  formatList,
  observeConditions,
  type RouteFault,
  type Condition,
} from './conditions.js';

const gone = (place: number): RouteFault => ({
  reason: 'NodeUnknown',
  subject: 'gone',
  destination: `10.0.${place}.0/26`,
});

test('faults of one node are one condition, which names some destinations and counts the rest', () => {
  const complaints = new RouteFaults();
  for (const place of [4, 2, 3, 1]) complaints.add(gone(place));
  complaints.add({ reason: 'NodeAddressMissing', subject: 'b', destination: '10.9.0.0/26' });
  const [first, second] = complaints.conditions();
  expect(first).toMatchObject({ reason: 'NodeAddressMissing' });
  expect(first?.message).toContain('no route to 10.9.0.0/26: node b has no address of that family');
  expect(second?.message).toContain('node gone is not registered');
  expect(second?.message).toContain('10.0.1.0/26, 10.0.2.0/26, 10.0.3.0/26 and 1 more');
});

test('a condition ends with the last fault of its last destination', () => {
  const complaints = new RouteFaults();
  complaints.add(gone(1));
  complaints.add(gone(1));
  complaints.remove(gone(1));
  expect(complaints.conditions()).toHaveLength(1);
  complaints.remove(gone(1));
  expect(complaints.conditions()).toEqual([]);
});

test('lists name their items in order', () => {
  expect([formatList([]), formatList(['b', 'a']), formatList(['d', 'c', 'b', 'a'])]).toEqual([
    '',
    'a, b',
    'a, b, c and 1 more',
  ]);
});

test('a condition that two parts of the node find is reported once', () => {
  const [one, other] = [
    { reason: 'A', message: 'm' },
    { reason: 'A', message: 'n' },
  ];
  expect(distinctConditions([one, other, { ...one }])).toEqual([one, other]);
});

test('conditions are counted by reason at collection, and a resolved reason has no value', async () => {
  const shown = new ReadMetrics('podwire.dataplane.');
  let reasons = ['NotOnLink', 'IpamUnreachable', 'NotOnLink'];
  const stop = observeConditions(() => reasons.map((reason) => ({ reason, message: '' })));
  expect(await shown.read()).toEqual(['conditions reason=IpamUnreachable 1', 'conditions reason=NotOnLink 2']);
  reasons = ['IpamUnreachable'];
  expect(await shown.read()).toEqual(['conditions reason=IpamUnreachable 1']);
  stop();
  expect(await shown.read()).toEqual([]);
  metrics.disable();
});

const about = (...blockedFamilies: readonly (4 | 6)[]): Condition => ({ reason: 'Some', message: '', blockedFamilies });
const harmless: Condition = { reason: 'IpamUnreachable', message: '' };

test.each([
  ['nothing is wrong', [], undefined, true],
  ['a fault defeats no pod', [harmless], [4], true],
  ['no pod of the pools can be wired', [harmless, about(6)], [6], false],
  ['some pods can', [about(6)], [4, 6], true],
  ['the pools are not known', [about(6)], undefined, true],
  ['there are none', [about(6)], [], true],
  ['nothing works, whatever the pools', [about(4, 6)], undefined, false],
  ['each family is defeated by something else', [about(4), about(6)], [4, 6], false],
] as const)('while %s', (_, conditions, families, expected) => {
  expect(canWirePods(conditions, families)).toBe(expected);
});
