import type { RegisterNodeRequest } from '@podwire/proto/podwire/ipam/v1/node';
import { systemClock } from '@podwire/shared/runtime/clock';
import { afterEach, expect, test } from 'vitest';

import { recordingLog } from '../dataplane.fixture.js';
import { ClusterEvents } from './cluster-events.js';
import { FakeNodeNetwork } from './node-network.fixture.js';
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
