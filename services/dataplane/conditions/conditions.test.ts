import { expect, test } from 'vitest';

import { Complaints, listed, type Complaint } from './conditions.js';

const gone = (place: number): Complaint => ({
  reason: 'NodeUnknown',
  subject: 'gone',
  destination: `10.0.${place}.0/26`,
});

test('what is wrong with one node is one condition, which names some destinations and counts the rest', () => {
  const complaints = new Complaints();
  for (const place of [4, 2, 3, 1]) complaints.add(gone(place));
  complaints.add({ reason: 'NodeAddressMissing', subject: 'b', destination: '10.9.0.0/26' });
  const [first, second] = complaints.conditions();
  expect(first).toMatchObject({ reason: 'NodeAddressMissing' });
  expect(first?.message).toContain('node b has no address of the family of 10.9.0.0/26');
  expect(second?.message).toContain('node gone is not registered');
  expect(second?.message).toContain('10.0.1.0/26, 10.0.2.0/26, 10.0.3.0/26 and 1 more');
});

test('a condition ends with its last destination, and one that two blocks complain of with the second', () => {
  const complaints = new Complaints();
  complaints.add(gone(1));
  complaints.add(gone(1));
  complaints.remove(gone(1));
  expect(complaints.conditions()).toHaveLength(1);
  complaints.remove(gone(1));
  expect(complaints.conditions()).toEqual([]);
});

test('lists name what there is, in order', () => {
  expect([listed([]), listed(['b', 'a']), listed(['d', 'c', 'b', 'a'])]).toEqual(['', 'a, b', 'a, b, c and 1 more']);
});
