import type { RecordedAllocation } from '@podwire/shared/attachment/allocation';
import { Failure } from '@podwire/shared/failure/failure';
import { Peer } from '@podwire/shared/rpc/client';
import { systemClock } from '@podwire/shared/runtime/clock';
import { Gate } from '@podwire/shared/testing/server';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { until } from '../testing/nft.js';
import { denied, FakePolicies, message, podMessage, wholeSet } from '../testing/network-policy/policies.js';
import { PolicyClient } from './policy-client.js';
import { PolicyView, type ViewChange } from './policy-view.js';

let ipam: FakePolicies;
let view: PolicyView;
let client: PolicyClient;
let lines: string[];
/** Changes of the view, and what the kernel makes of each. */
let changes: ViewChange[];
let enforce: () => Promise<void>;
let unbound: RecordedAllocation[];

beforeEach(async () => {
  ipam = new FakePolicies();
  await ipam.start();
  view = new PolicyView();
  lines = [];
  changes = [];
  enforce = () => Promise.resolve();
  unbound = [];
  client = makeClient(10_000);
});

function makeClient(waitMs: number): PolicyClient {
  return new PolicyClient({
    self: 'node-1',
    connect: () => new Peer('podwire-ipam', ipam.address),
    unbound: () => unbound,
    waitMs,
    view,
    filter: {
      update: (change) => {
        changes.push(change);
        return enforce();
      },
    },
    events: {
      policiesFollowed: () => lines.push('followed'),
      policiesLost: (error) => lines.push(`lost: ${String(error)}`),
    },
    clock: systemClock,
    random: () => 0.01,
  });
}

afterEach(async () => {
  await client.stop();
  await ipam.dispose();
});

const SNAPSHOT = [
  message({ sets: [wholeSet('a-one', ['10.65.0.1'])] }),
  message({ isComplete: true, profiles: [denied('in', 'ingress')], pods: [podMessage('web', { ingress: 'in' })] }),
];

test('a complete snapshot is enforced once, and acknowledged when it is in force', async () => {
  const gate = new Gate();
  enforce = () => gate.opened;
  ipam.snapshot = SNAPSHOT;
  client.start();
  await until(() => changes.length > 0);
  expect([ipam.acknowledged, client.conditions()]).toEqual([[], []]);
  expect(ipam.requests).toEqual([{ nodeName: 'node-1', sets: [], acknowledgedNumber: 0n }]);
  gate.open();
  await until(() => ipam.acknowledged.length > 0);
  expect(ipam.acknowledged).toEqual(['node-1 stream-1 2']);
  ipam.send(message({ removedPods: ['web'] }));
  await until(() => ipam.acknowledged.length > 1);
  expect(ipam.acknowledged).toEqual(['node-1 stream-1 2', 'node-1 stream-1 3']);
  expect(changes.map(({ hasPods }) => hasPods)).toEqual([true, true]);
});

test('a stream that ends is opened again with the digests of the sets', async () => {
  ipam.snapshot = SNAPSHOT;
  client.start();
  await until(() => ipam.acknowledged.length > 0);
  ipam.snapshot = [message({ isComplete: true, profiles: [denied('next', 'ingress')] })];
  ipam.cut();
  await until(() => ipam.acknowledged.includes('node-1 stream-2 1'));
  expect(ipam.requests[1]?.sets).toEqual(view.beginStream());
  expect([...view.sets.keys(), ...view.profiles.keys()]).toEqual(['a-one', 'next']);
  expect(lines).toEqual([expect.stringMatching('lost: .*the stream of policies ended'), 'followed']);
});

test('a refused stream is reported once, and opened again', async () => {
  ipam.refusal = new Failure('UNREACHABLE', 'does not lead');
  ipam.snapshot = SNAPSHOT;
  client.start();
  await until(() => ipam.acknowledged.length > 0);
  expect(client.conditions()).toEqual([]);
  expect(lines).toEqual([expect.stringMatching('does not lead'), 'followed']);
});

test('a podwire-ipam that does not serve policies is left for another one, and reported after some attempts', async () => {
  ipam.refusal = new Failure('POLICIES_NOT_SERVED', 'does not lead');
  ipam.snapshot = SNAPSHOT;
  client.start();
  await until(() => ipam.acknowledged.length > 0);
  expect([ipam.requests.length, lines]).toEqual([2, []]);
  ipam.refusesAlways = true;
  ipam.refusal = new Failure('POLICIES_NOT_SERVED', 'does not lead');
  ipam.cut();
  await until(() => ipam.requests.length > 8);
  expect(client.conditions()).toMatchObject([{ reason: 'PoliciesNotFollowed' }]);
});

test('what the kernel refuses is tried again before it is acknowledged', async () => {
  let failures = 1;
  enforce = () => (failures-- > 0 ? Promise.reject(new Failure('KERNEL_REFUSED', 'no')) : Promise.resolve());
  ipam.snapshot = SNAPSHOT;
  client.start();
  await until(() => ipam.acknowledged.length > 0);
  expect(changes).toEqual([expect.objectContaining({ hasPods: true }), { sets: new Map(), hasPods: false }]);
  expect(ipam.acknowledged).toEqual(['node-1 stream-1 2']);
});

test('messages that fail are repeated together, and the latest is acknowledged', async () => {
  ipam.snapshot = SNAPSHOT;
  client.start();
  await until(() => ipam.acknowledged.length > 0);
  enforce = () => Promise.reject(new Failure('KERNEL_REFUSED', 'no'));
  for (let index = 0; index < 20; index++) ipam.send(message({ removedPods: [`gone-${index}`] }));
  await until(() => changes.length === 21);
  enforce = () => Promise.resolve();
  await until(() => ipam.acknowledged.length > 1);
  expect(ipam.acknowledged.slice(1)).toEqual(['node-1 stream-1 22']);
  expect(changes).toHaveLength(22);
});

test('an invalid message ends the stream, and changes nothing', async () => {
  ipam.snapshot = SNAPSHOT;
  client.start();
  await until(() => ipam.acknowledged.length > 0);
  ipam.send(message({ removedPods: ['web'], sets: [wholeSet('invalid', [])] }));
  await until(() => ipam.requests.length > 1);
  expect(lines[0]).toContain('"invalid" is no ID of such a set');
  expect(view.filtering({ namespace: 'default', name: 'web', uid: '' }).ingress).toEqual({ profile: 'in' });
});

describe('a new pod', () => {
  const web: RecordedAllocation = {
    addresses: [{ address: '10.65.0.7', sequenceNumber: 41n }],
    nodeName: 'node-1',
    pod: { namespace: 'default', name: 'web', uid: 'u' },
    isBound: false,
  };
  const WITH_POLICIES = [message({ isComplete: true, namespaces: ['default'] })];

  test('waits until other nodes know its addresses', async () => {
    const gate = new Gate();
    ipam.spread = () => gate.opened.then(() => 2);
    ipam.snapshot = WITH_POLICIES;
    client.start();
    await until(() => ipam.acknowledged.length > 0);
    let isKnown = false;
    const known = client.announce(web).then(() => (isKnown = true));
    await until(() => ipam.announced.length > 0);
    expect(ipam.announced).toEqual(['node-1 default/web u 10.65.0.7 41']);
    expect(isKnown).toBe(false);
    gate.open();
    await known;
  });

  test.each([0, 1])('does not wait for longer than %i ms, nor for a failure', async (waitMs) => {
    client = makeClient(waitMs);
    const gate = new Gate();
    ipam.spread = () => gate.opened.then(() => 2);
    ipam.snapshot = WITH_POLICIES;
    client.start();
    await until(() => ipam.acknowledged.length > 0);
    await client.announce(web);
    gate.open();
    await ipam.stop();
    await client.announce(web);
  });

  test('is not announced without policies, without a stream, and without a name', async () => {
    await client.announce(web);
    ipam.snapshot = [message({ isComplete: true })];
    client.start();
    await until(() => ipam.acknowledged.length > 0);
    await client.announce(web);
    ipam.send(message({ namespaces: ['default'] }));
    await until(() => ipam.acknowledged.length > 1);
    await client.announce({ ...web, pod: undefined });
    expect(ipam.announced).toEqual([]);
  });

  test('is announced again with each stream, until podwire-ipam has recorded it', async () => {
    unbound = [web];
    ipam.snapshot = WITH_POLICIES;
    client.start();
    await until(() => ipam.announced.length > 0);
    ipam.cut();
    await until(() => ipam.announced.length > 1);
    expect(new Set(ipam.announced).size).toBe(1);
  });
});
