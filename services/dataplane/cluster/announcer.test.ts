import { parseAddress, type Address } from '@podwire/shared/net/address';
import { FakeClock } from '@podwire/shared/testing/clock';
import { expect, test } from 'vitest';

import { Announcer } from './announcer.js';
import { FakeNodeNetwork } from './node-network.fixture.js';

const [IPV4, IPV6] = ['192.0.2.7', '2001:db8::7'].map((text): Address => parseAddress(text) ?? expect.unreachable());
const INTERFACES = { eth0: ['192.0.2.7/24', '2001:db8::7/64'], eth1: ['198.51.100.7/24'] };
const settled = () => new Promise((resolve) => setImmediate(resolve));

function announcing() {
  const network = new FakeNodeNetwork(INTERFACES);
  const clock = new FakeClock();
  const events: string[] = [];
  const announcer = new Announcer({
    network,
    clock,
    events: {
      announced: (address, link) => events.push(`${address} ${link}`),
      notAnnounced: (address, error) => events.push(`${address} ${String(error)}`),
    },
  });
  const look = async () => {
    announcer.look(await network.read(), [IPV4!, IPV6!]);
    await settled();
  };
  return { network, clock, events, announcer, look };
}

test('an address that is at another MAC address than before is announced, and again, as the first may be lost', async () => {
  const { network, clock, events, look } = announcing();
  await look();
  await look();
  expect(network.announced).toEqual([]);
  network.macs.set('eth0', '02:00:00:00:00:99');
  await look();
  expect(network.announced.toSorted()).toEqual([
    ...Array.from({ length: 3 }, () => 'eth0 192.0.2.7 02:00:00:00:00:99'),
    ...Array.from({ length: 3 }, () => 'eth0 2001:db8::7 02:00:00:00:00:99'),
  ]);
  expect(clock.nowMs()).toBe(1_003_000);
  expect(events).toEqual(['192.0.2.7 eth0', '2001:db8::7 eth0']);
  await look();
  expect(network.announced).toHaveLength(6);
});

test('what was away meanwhile is announced where it is another, and not where it is the same', async () => {
  const { network, look } = announcing();
  await look();
  network.set({ eth1: INTERFACES.eth1 });
  await look();
  network.set(INTERFACES);
  await look();
  expect(network.announced).toEqual([]);
  // Another interface: of the same MAC address, at another port of the switch.
  network.set({ eth2: [], eth1: INTERFACES.eth1, eth0: INTERFACES.eth0 });
  network.macs.set('eth0', '02:00:00:00:00:01');
  await look();
  expect(new Set(network.announced)).toEqual(
    new Set(['eth0 192.0.2.7 02:00:00:00:00:01', 'eth0 2001:db8::7 02:00:00:00:00:01']),
  );
});

test('what cannot be sent at first is sent later; what cannot be sent at all is told once', async () => {
  const { network, events, look } = announcing();
  await look();
  network.macs.set('eth0', '02:00:00:00:00:99');
  network.refusals.push(new Error('down'), new Error('down'), new Error('down'));
  await look();
  expect(network.announced).toHaveLength(3);
  expect(events).toHaveLength(2);
  network.macs.set('eth0', '02:00:00:00:00:98');
  events.splice(0);
  for (let count = 0; count < 6; count++) network.refusals.push(new Error('gone'));
  await look();
  expect(events).toEqual(['192.0.2.7 Error: gone', '2001:db8::7 Error: gone']);
});

test('a later place takes the turn of an earlier one, and nothing is sent after the stop', async () => {
  const { network, clock, announcer, look } = announcing();
  await look();
  network.macs.set('eth0', '02:00:00:00:00:99');
  let sleeps = 0;
  clock.beforeSleep = () => {
    if (++sleeps === 3) void announcer.stop();
  };
  await look();
  await announcer.stop();
  const sent = network.announced.length;
  expect(sent).toBeLessThanOrEqual(2);
  network.macs.set('eth0', '02:00:00:00:00:98');
  await look();
  expect(network.announced).toHaveLength(sent);
});
