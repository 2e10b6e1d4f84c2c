import { expect, test } from 'vitest';

import { counterChanges, parseCounters } from './counters.js';

const dev = (received: number, dropped: number) => `Inter-|   Receive                 |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
  eth0: 500 ${received} 0 ${dropped} 0 0 0 0 700 8 0 0 0 0 0 0
 podw1:500 ${received} 0 0 0 0 0 0 700 8 0 0 0 0 0 0
 podw2:500 ${received} 0 0 0 0 0 0 700 8 0 0 0 0 0 0
`;

test('shows counters that changed, without pods that do not matter', () => {
  const changes = counterChanges(parseCounters(dev(3, 0)), parseCounters(dev(5, 1)), new Set(['podw2']));
  expect(changes).toEqual([
    { name: 'eth0 receive drops', before: 0n, after: 1n },
    { name: 'eth0 received', before: 3n, after: 5n },
    { name: 'podw2 received', before: 3n, after: 5n },
  ]);
});

test('reads refusals of the kernel, and no other counters of protocols', () => {
  const snmp = 'Ip: Forwarding InAddrErrors OutNoRoutes\nIp: 1 0 7\nTcp: MaxConn InSegs\nTcp: -1 9\n';
  expect([...parseCounters(`${snmp}\nIp6InReceives  9\nIp6OutNoRoutes \t2\n`)]).toEqual([
    ['Ip InAddrErrors', 0n],
    ['Ip OutNoRoutes', 7n],
    ['Ip6OutNoRoutes', 2n],
  ]);
});

test.each(['', 'garbage', 'a b\nc d'])('reads nothing from "%s"', (text) => {
  expect(parseCounters(text).size).toBe(0);
});
