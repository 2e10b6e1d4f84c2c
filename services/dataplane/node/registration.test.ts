import type { RegisterNodeRequest } from '@podwire/proto/podwire/ipam/v1/node';
import { Failure } from '@podwire/shared/failure/failure';
import { parseAddress, type Address } from '@podwire/shared/net/address';
import { systemClock } from '@podwire/shared/runtime/clock';
import { FakeClock } from '@podwire/shared/testing/clock';
import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { afterEach, describe, expect, test, vi } from 'vitest';

import type { IpamPool } from '../cluster/cluster.js';
import { FakeNodeNetwork, FREE_NAME } from '../testing/ipam.js';
import { recordingLog } from '../testing/pods.js';
import { node, pool } from '../testing/routes.js';
import { readAddressMethod } from './address-method.js';
import { ClusterEvents } from './events.js';
import { AddressAnnouncer, Registration, type NodeNameClaim, type RegistrationOptions } from './registration.js';

let registration: Registration;
afterEach(() => registration.stop());

test('a call without an answer is cancelled when the node’s address changes, and not logged', async () => {
  const network = new FakeNodeNetwork({ eth1: ['198.51.100.7/24'] });
  const { log, lines } = recordingLog();
  const asked: string[] = [];
  const call = (_: unknown, { ipv4Address }: RegisterNodeRequest, { signal }: { readonly signal: AbortSignal }) => {
    asked.push(ipv4Address);
    if (ipv4Address === '192.0.2.7/24') return Promise.resolve({ created: false });
    return new Promise((_resolve, reject) =>
      signal.addEventListener('abort', () => reject(new Failure('CANCELLED', 'cancelled'))),
    );
  };
  const ipam: RegistrationOptions['ipam'] = Object.assign(Object.create(null), { description: 'ipam', call });
  registration = new Registration({
    self: 'n1',
    methods: { 4: { type: 'auto' }, 6: { type: 'none' } },
    network,
    name: FREE_NAME,
    ipam,
    events: new ClusterEvents(log),
    clock: systemClock,
    random: () => 0.5,
  });
  registration.start();
  await expect.poll(() => asked).toEqual(['198.51.100.7/24']);
  registration.follow({ self: 'n1', cluster: { nodes: new Map(), pools: new Map() } });
  network.set({ eth0: ['192.0.2.7/24'], eth1: ['198.51.100.7/24'] });
  await expect.poll(() => registration.registered?.ipv4Address, { timeout: 3000 }).toBe('192.0.2.7/24');
  expect(asked).toEqual(['198.51.100.7/24', '192.0.2.7/24']);
  expect(lines.map(({ msg }) => msg)).toEqual(['node n1 is registered with 192.0.2.7/24']);
});

describe('several addresses that the node could use', () => {
  const reached = async (nodes: readonly ReturnType<typeof node>[], method: string) => {
    const asked: string[] = [];
    const call = (_: unknown, { ipv4Address }: RegisterNodeRequest) => {
      asked.push(ipv4Address);
      return Promise.resolve({ created: false });
    };
    const ipam: RegistrationOptions['ipam'] = Object.assign(Object.create(null), { description: 'ipam', call });
    const read = readAddressMethod(method, 4);
    registration = new Registration({
      self: 'n1',
      methods: { 4: read.ok ? read.method : expect.unreachable(read.fault), 6: { type: 'none' } },
      network: new FakeNodeNetwork({ eth0: ['192.0.2.100/24', '192.0.2.7/24', '192.0.2.9/32'] }),
      name: FREE_NAME,
      ipam,
      events: new ClusterEvents(recordingLog().log),
      clock: systemClock,
      random: () => 0.5,
    });
    registration.start();
    registration.follow({
      self: 'n1',
      cluster: { nodes: new Map(nodes.map((each) => [each.name, each])), pools: new Map() },
    });
    await expect.poll(() => asked.length).toBe(1);
    return [asked[0], registration.conditions().map(({ reason, message }) => `${reason}: ${message}`)];
  };

  test.each(['auto', 'interface=eth0', 'cidr=192.0.2.0/24'])(
    'by %s are a condition, and one that an earlier process registered stays',
    async (method) => {
      expect(await reached([node('n1', { ipv4: '192.0.2.7/24' })], method)).toEqual([
        '192.0.2.7/24',
        [
          `NodeAddressAmbiguous: node n1 uses 192.0.2.7/24, and ${method} could choose 192.0.2.100/24 too; set PODWIRE_NODE_IPV4 to one of them`,
        ],
      ]);
      await registration.stop();
      expect((await reached([], method))[0]).toBe('192.0.2.100/24');
    },
  );

  test('are none where the method names one', async () => {
    expect(await reached([], 'cidr=192.0.2.0/28')).toEqual(['192.0.2.7/24', []]);
  });
});

describe('the node’s name and addresses', () => {
  const taken = new Failure('NODE_NAME_TAKEN', 'another machine has the name');

  function scene(name: Partial<NodeNameClaim>, refusals: Failure[] = []) {
    const clock = new ManualClock();
    const calls: string[] = [];
    const call = (_: unknown, { ipv4Address }: RegisterNodeRequest) => {
      calls.push(`register ${ipv4Address}`);
      const refusal = refusals.shift();
      return refusal ? Promise.reject(refusal) : Promise.resolve({ created: false });
    };
    const ipam: RegistrationOptions['ipam'] = Object.assign(Object.create(null), { description: 'ipam', call });
    const claimed: NodeNameClaim = { ...FREE_NAME, ...name };
    registration = new Registration({
      self: 'n1',
      methods: { 4: { type: 'auto' }, 6: { type: 'none' } },
      network: new FakeNodeNetwork({ eth1: ['198.51.100.7/24'] }),
      name: {
        get refusal() {
          return claimed.refusal;
        },
        claim: async (address, signal) => {
          calls.push(`claim ${address}`);
          return claimed.claim(address, signal);
        },
      },
      ipam,
      events: new ClusterEvents(recordingLog().log),
      clock,
      random: () => 0.5,
    });
    registration.start();
    return { clock, calls, claimed };
  }

  const settled = (calls: readonly string[], count: number) =>
    vi.waitFor(() => expect(calls).toHaveLength(count), { timeout: 20_000, interval: 2 });
  const [claim, register] = ['claim 198.51.100.7', 'register 198.51.100.7/24'];

  test('is claimed before the first registration, and again after it', async () => {
    const answers = [false, true];
    const { clock, calls } = scene({ claim: () => Promise.resolve(answers.shift() ?? true) });
    await settled(calls, 2);
    expect(registration.registered).toBeUndefined();
    await vi.waitFor(() => expect(clock.nextMs).toBe(250), { timeout: 20_000, interval: 2 });
    clock.advance(250);
    await settled(calls, 4);
    expect(calls).toEqual([claim, register, claim, register]);
    await vi.waitFor(() => expect(registration.registered).toBeDefined(), { timeout: 20_000, interval: 2 });
  });

  test('addresses that another machine registered late are replaced by addresses of the machine that has the name', async () => {
    const { clock, calls } = scene({});
    await settled(calls, 2);
    await vi.waitFor(() => expect(registration.registered).toBeDefined(), { timeout: 20_000, interval: 2 });
    const show = (ipv4: string) =>
      registration.follow({
        self: 'n1',
        cluster: { nodes: new Map([['n1', node('n1', { ipv4 })]]), pools: new Map() },
      });
    show('198.51.100.7/24');
    show('198.51.100.8/24');
    await vi.waitFor(() => expect(clock.nextMs).toBe(1000), { timeout: 20_000, interval: 2 });
    clock.advance(1000);
    await settled(calls, 4);
    expect(calls.slice(2)).toEqual([claim, register]);
    expect(registration.registered).toBeDefined();
  });

  test('are refused while another node has one: a condition until it has given it up', async () => {
    const inUse = new Failure('ADDRESS_IN_USE', 'node "n2" has it');
    const { clock, calls } = scene({}, [inUse]);
    await settled(calls, 2);
    const condition = { reason: 'NodeAddressInUse', message: inUse.message };
    await vi.waitFor(() => expect(registration.conditions()).toEqual([condition]), { timeout: 20_000, interval: 2 });
    await vi.waitFor(() => expect(clock.nextMs).toBe(250), { timeout: 20_000, interval: 2 });
    clock.advance(250);
    await vi.waitFor(() => expect(registration.registered).toBeDefined(), { timeout: 20_000, interval: 2 });
    expect(registration.conditions()).toEqual([]);
  });

  test.each<[string, Partial<IpamPool>, string[]]>([
    ['198.51.100.128/25', {}, ['NodeInPool']],
    ['198.51.0.0/16', {}, ['NodeInPool']],
    ['198.51.0.0/16', { isActive: false }, []],
    ['198.51.0.0/16', { loadBalancerOnly: true }, []],
    ['198.51.101.0/24', {}, []],
  ])('in the range of a pool are a condition while the pool is active: %s %o', (cidr, rest, reasons) => {
    scene({});
    const own = { ...pool('p', cidr), isActive: true, assignsTunnelAddresses: true, ...rest };
    const nodes = new Map([['n1', node('n1', { ipv4: '198.51.100.7/24' })]]);
    registration.follow({ self: 'n1', cluster: { nodes, pools: new Map([['p', own]]) } });
    expect(registration.conditions().map(({ reason }) => reason)).toEqual(reasons);
    registration.follow({ self: 'n1', cluster: { nodes, pools: new Map() } });
    expect(registration.conditions()).toEqual([]);
  });

  test('of another machine is not registered, and again once that machine has lost it', async () => {
    const { clock, calls, claimed } = scene({});
    await settled(calls, 2);
    Object.assign(claimed, { refusal: taken, claim: () => Promise.reject(taken) });
    await vi.waitFor(() => expect(clock.nextMs).toBe(30_000), { timeout: 20_000, interval: 2 });
    clock.advance(30_000);
    await settled(calls, 3);
    expect([calls.at(-1), registration.registered]).toEqual([claim, undefined]);
    Object.assign(claimed, FREE_NAME);
    await vi.waitFor(() => expect(clock.nextMs).toBe(250), { timeout: 20_000, interval: 2 });
    clock.advance(250);
    await settled(calls, 5);
    expect(calls.slice(3)).toEqual([claim, register]);
  });
});

describe('the watch of the node’s addresses', () => {
  const refusal = () => new Failure('KERNEL_REFUSED', 'monitor node: EMFILE');

  /** A registration that polls once a day, so that only notifications cause readings. */
  function scene(rest: Partial<RegistrationOptions> = {}) {
    const network = new FakeNodeNetwork({ eth1: ['198.51.100.7/24'] });
    const clock = new ManualClock();
    const { log, lines } = recordingLog();
    const call = () => Promise.resolve({ created: false });
    const ipam: RegistrationOptions['ipam'] = Object.assign(Object.create(null), { description: 'ipam', call });
    registration = new Registration({
      self: 'n1',
      methods: { 4: { type: 'auto' }, 6: { type: 'none' } },
      network,
      name: FREE_NAME,
      ipam,
      events: new ClusterEvents(log),
      clock,
      random: () => 0.5,
      pollMs: 86_400_000,
      ...rest,
    });
    const failures = () => lines.filter(({ msg }) => String(msg).includes('kernel notifications about')).length;
    return { network, clock, failures };
  }

  const registered = (address: string) =>
    vi.waitFor(() => expect(registration.registered?.ipv4Address).toBe(address), { timeout: 20_000, interval: 2 });

  test('is reopened with a growing back-off when refused, and the first reading does not wait for it', async () => {
    const { network, clock, failures } = scene();
    network.watchRefusals.push(refusal(), refusal());
    registration.start();
    await registered('198.51.100.7/24');
    network.set({ eth1: ['198.51.100.8/24'] });
    for (const pauseMs of [250, 500]) {
      await vi.waitFor(() => expect(clock.nextMs).toBe(pauseMs), { timeout: 20_000, interval: 2 });
      clock.advance(pauseMs);
    }
    await registered('198.51.100.8/24');
    expect([network.listenersCount, failures()]).toEqual([1, 2]);
  });

  test('is reopened when it has ended, and changes meanwhile are read', async () => {
    const { network, clock, failures } = scene();
    registration.start();
    await registered('198.51.100.7/24');
    network.endWatches(refusal());
    network.set({ eth1: ['198.51.100.8/24'] });
    await vi.waitFor(() => expect(clock.nextMs).toBe(250), { timeout: 20_000, interval: 2 });
    clock.advance(250);
    await registered('198.51.100.8/24');
    expect([network.listenersCount, failures()]).toEqual([1, 1]);
    await registration.stop();
    expect([network.listenersCount, clock.sleeping]).toEqual([0, 0]);
  });

  test('covers the routes to the address of can-reach', async () => {
    const address = parseAddress('203.0.113.9')!;
    const { network } = scene({ methods: { 4: { type: 'can-reach', address }, 6: { type: 'none' } } });
    registration.start();
    await vi.waitFor(() => expect(network.targets).toEqual(['203.0.113.9']), { timeout: 20_000, interval: 2 });
  });
});

const [IPV4, IPV6] = ['192.0.2.7', '2001:db8::7'].map((text): Address => parseAddress(text) ?? expect.unreachable());
const INTERFACES = { eth0: ['192.0.2.7/24', '2001:db8::7/64'], eth1: ['198.51.100.7/24'] };
const idle = () => new Promise((resolve) => setImmediate(resolve));

function announcing() {
  const network = new FakeNodeNetwork(INTERFACES);
  const clock = new FakeClock();
  const events: string[] = [];
  const announcer = new AddressAnnouncer({
    network,
    clock,
    events: {
      announced: (address, link) => events.push(`${address} ${link}`),
      notAnnounced: (address, error) => events.push(`${address} ${String(error)}`),
    },
  });
  const look = async () => {
    announcer.observe(await network.read(), [IPV4!, IPV6!]);
    await idle();
  };
  return { network, clock, events, announcer, look };
}

test('an address that moved to another MAC address is announced several times', async () => {
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

test('an address that returns is announced only with another MAC address', async () => {
  const { network, look } = announcing();
  await look();
  network.set({ eth1: INTERFACES.eth1 });
  await look();
  network.set(INTERFACES);
  await look();
  expect(network.announced).toEqual([]);
  // Another interface with the same MAC address, at another port of the switch.
  network.set({ eth2: [], eth1: INTERFACES.eth1, eth0: INTERFACES.eth0 });
  network.macs.set('eth0', '02:00:00:00:00:01');
  await look();
  expect(new Set(network.announced)).toEqual(
    new Set(['eth0 192.0.2.7 02:00:00:00:00:01', 'eth0 2001:db8::7 02:00:00:00:00:01']),
  );
});

test('a failed announcement is sent later; one that always fails is logged once', async () => {
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

test('a later location cancels the announcements of an earlier one, and the stop cancels all', async () => {
  const { network, clock, announcer, look } = announcing();
  await look();
  network.macs.set('eth0', '02:00:00:00:00:99');
  clock.beforeSleep = () => void announcer.stop();
  await look();
  await announcer.stop();
  const sent = network.announced.length;
  expect(sent).toBeLessThanOrEqual(2);
  network.macs.set('eth0', '02:00:00:00:00:98');
  await look();
  expect(network.announced).toHaveLength(sent);
});
