import type { RegisterNodeRequest } from '@podwire/proto/podwire/ipam/v1/node';
import { Failure } from '@podwire/shared/failure/failure';
import { parseAddress } from '@podwire/shared/net/address';
import { systemClock } from '@podwire/shared/runtime/clock';
import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { afterEach, describe, expect, test, vi } from 'vitest';

import { FakeNodeNetwork } from '../cluster/node-network.fixture.js';
import { recordingLog } from '../dataplane.fixture.js';
import { ClusterEvents } from './events.js';
import { Registration, type RegistrationOptions } from './registration.js';

let registration: Registration;
afterEach(() => registration.stop());

test('a call that gets no answer is given up once the node has another address, and told of by nobody', async () => {
  const network = new FakeNodeNetwork({ eth1: ['198.51.100.7/24'] });
  const { log, lines } = recordingLog();
  const asked: string[] = [];
  const call = (_: unknown, { ipv4Address }: RegisterNodeRequest, { signal }: { readonly signal: AbortSignal }) => {
    asked.push(ipv4Address);
    if (ipv4Address === '192.0.2.7/24') return Promise.resolve({ created: false });
    return new Promise((_resolve, reject) => signal.addEventListener('abort', () => reject(new Error('cancelled'))));
  };
  const ipam: RegistrationOptions['ipam'] = Object.assign(Object.create(null), { description: 'ipam', call });
  registration = new Registration({
    self: 'n1',
    methods: { 4: { type: 'auto' }, 6: { type: 'none' } },
    network,
    ipam,
    events: new ClusterEvents(log),
    clock: systemClock,
    random: () => 0.5,
  });
  registration.start();
  await expect.poll(() => asked).toEqual(['198.51.100.7/24']);
  network.set({ eth0: ['192.0.2.7/24'], eth1: ['198.51.100.7/24'] });
  await expect.poll(() => registration.registered?.ipv4Address, { timeout: 3000 }).toBe('192.0.2.7/24');
  expect(asked).toEqual(['198.51.100.7/24', '192.0.2.7/24']);
  expect(lines.map(({ msg }) => msg)).toEqual(['node n1 is registered with 192.0.2.7/24']);
});

describe('what the kernel tells of the node’s addresses', () => {
  const refusal = () => new Failure('KERNEL_REFUSED', 'monitor node: EMFILE');

  /** A registration whose looks come after a day, unless it is told of a change. */
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
      ipam,
      events: new ClusterEvents(log),
      clock,
      random: () => 0.5,
      pollMs: 86_400_000,
      ...rest,
    });
    const untold = () => lines.filter(({ msg }) => String(msg).includes('not announced')).length;
    return { network, clock, untold };
  }

  const registered = (address: string) =>
    vi.waitFor(() => expect(registration.registered?.ipv4Address).toBe(address), { timeout: 20_000, interval: 2 });

  test('is asked for again where it was refused, later each time, and the first look does not wait for it', async () => {
    const { network, clock, untold } = scene();
    network.watchRefusals.push(refusal(), refusal());
    registration.start();
    await registered('198.51.100.7/24');
    network.set({ eth1: ['198.51.100.8/24'] });
    for (const pauseMs of [250, 500]) {
      await vi.waitFor(() => expect(clock.nextMs).toBe(pauseMs), { timeout: 20_000, interval: 2 });
      clock.advance(pauseMs);
    }
    await registered('198.51.100.8/24');
    expect([network.listenersCount, untold()]).toEqual([1, 2]);
  });

  test('is asked for anew when it has ended, and what was untold meanwhile is looked at', async () => {
    const { network, clock, untold } = scene();
    registration.start();
    await registered('198.51.100.7/24');
    network.endWatches(refusal());
    network.set({ eth1: ['198.51.100.8/24'] });
    await vi.waitFor(() => expect(clock.nextMs).toBe(250), { timeout: 20_000, interval: 2 });
    clock.advance(250);
    await registered('198.51.100.8/24');
    expect([network.listenersCount, untold()]).toEqual([1, 1]);
    await registration.stop();
    expect([network.listenersCount, clock.sleeping]).toEqual([0, 0]);
  });

  test('covers the routes to what can-reach names', async () => {
    const address = parseAddress('203.0.113.9')!;
    const { network } = scene({ methods: { 4: { type: 'can-reach', address }, 6: { type: 'none' } } });
    registration.start();
    await vi.waitFor(() => expect(network.targets).toEqual(['203.0.113.9']), { timeout: 20_000, interval: 2 });
  });
});
