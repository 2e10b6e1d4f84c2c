import { expect, test } from 'vitest';

import { address } from '../testing/network-policy/policies.js';
import { PendingElements, podChanges, transactions } from './elements.js';

const all = () => true;

test('pending changes are joined to what the kernel lacks', () => {
  const pending = new PendingElements();
  pending.add('a-x', { added: ['10.0.0.1', 'fd00::1'], deleted: ['10.0.0.2'] });
  pending.add('a-x', { added: ['10.0.0.2'], deleted: ['10.0.0.1'] });
  expect(pending.take(all)).toEqual([
    { set: expect.objectContaining({ name: 'a-x-6' }), added: ['fd00::1'], deleted: [] },
  ]);
  expect(pending.take(all)).toEqual([]);
});

test('changes of a set that the kernel does not have yet stay', () => {
  const pending = new PendingElements();
  pending.add('a-x', { added: ['10.0.0.1'], deleted: [] });
  pending.add('p-y', { added: ['10.0.0.1 6 80'], deleted: [] });
  expect(pending.take((id) => id === 'a-x')).toMatchObject([{ set: { name: 'a-x-4' } }]);
  expect(pending.take(all)).toMatchObject([{ set: { name: 'p-y-4' }, added: [{ concat: ['10.0.0.1', 6, 80] }] }]);
});

test('a pod changes the elements that differ, and in the maps deletes before it adds', () => {
  const addresses = [address('10.65.0.1'), address('fd00:65::1')];
  const [from, to] = [
    { addresses, ingress: 'isolated', egress: undefined },
    { addresses, ingress: 'i-web', egress: undefined },
  ];
  expect(podChanges([{ device: 'podw1', from, to }])).toEqual([
    {
      set: expect.objectContaining({ name: 'ingress' }),
      deleted: [['podw1', { jump: { target: 'isolated' } }]],
      added: [['podw1', { jump: { target: 'i-web' } }]],
    },
  ]);
  expect(podChanges([{ device: 'podw1', from: to, to }])).toEqual([]);
  const names = podChanges([{ device: 'podw1', from: undefined, to }]).map(({ set: { name } }) => name);
  expect(names).toEqual(['known', 'self', 'filtered', 'own4', 'own6', 'ingress']);
});

test('many changes are several transactions', () => {
  const changes = Array.from({ length: 1200 }, (_, n) => ({
    set: { name: `a-${n}-4`, type: 'ipv4_addr' as const, interval: false },
    added: ['10.0.0.1'],
    deleted: [],
  }));
  expect([...transactions(changes)].map(({ length }) => length)).toEqual([500, 500, 200]);
});
