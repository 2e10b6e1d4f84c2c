import { rmSync } from 'node:fs';
import { setImmediate } from 'node:timers/promises';

import { Failure } from '@podwire/shared/failure/failure';
import { formatAddress, type Address } from '@podwire/shared/net/address';
import { isAllowed, type Connection, type SetLookup } from '@podwire/shared/network-policy/evaluate';
import { ManualClock } from '@podwire/shared/testing/manual-clock';
import fc from 'fast-check';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import type { Nft } from '../nft/nft.js';
import { ICMP, ICMPV6, SCTP, TCP, UDP } from '../testing/frames.js';
import {
  accept,
  address,
  denied,
  member,
  message,
  podMessage,
  profile,
  wholeSet,
} from '../testing/network-policy/policies.js';
import { PolicyNode, policyPod } from '../testing/network-policy/policy-node.js';
import { NODE_ADDRESSES, OUTSIDE, PODS, type ProbedEnd } from '../testing/network-policy/policy-pods.js';
import { ADDRESS_SETS, policyState, PORT_SETS, PORTS } from '../testing/network-policy/random-policies.js';
import type { ConnectionKernel } from './live-connections.js';

const [A, B, C] = [PODS[0]!, PODS[1]!, PODS[2]!];
const NODE: ProbedEnd = { name: 'node', device: 'lo', addresses: NODE_ADDRESSES };

/** Connection tracking in memory. */
class MemoryConnections implements ConnectionKernel {
  tracked: Connection[] = [];
  /** Addresses of each listing. */
  readonly listings: string[][] = [];
  failure: Failure | undefined;
  onList: () => void = () => undefined;

  nodeAddresses(): Promise<readonly Address[]> {
    return Promise.resolve(Object.values(NODE_ADDRESSES).map(address));
  }

  endForbidden(addresses: readonly Address[], isForbidden: (connection: Connection) => boolean): Promise<number> {
    if (this.failure) return Promise.reject(this.failure);
    const listed = new Set(addresses.map(formatAddress));
    this.listings.push([...listed].toSorted());
    this.onList();
    const { length } = this.tracked;
    this.tracked = this.tracked.filter(
      (each) => ![each.source, each.destination].some((end) => listed.has(formatAddress(end))) || !isForbidden(each),
    );
    return Promise.resolve(length - this.tracked.length);
  }
}

/** Nftables that accepts everything, except for what a test refuses; and waits, if a test says so. */
class AcceptingNft implements Nft {
  refused = 'nothing';
  wait: Promise<void> = Promise.resolve();
  #transaction = 0;

  read = () => Promise.resolve([]);
  forwardChains = () => Promise.resolve([]);
  latestTransaction = () => Promise.resolve(this.#transaction);
  watch = () => Promise.resolve({ close: () => undefined });

  async apply(commands: readonly unknown[]): Promise<void> {
    await this.wait;
    if (JSON.stringify(commands).includes(this.refused)) throw new Failure('KERNEL_REFUSED', 'nft refused it');
    this.#transaction++;
  }

  async changeElements(): Promise<number> {
    await this.wait;
    return ++this.#transaction;
  }
}

let clock: ManualClock;
let kernel: MemoryConnections;
let nft: AcceptingNft;
let node: PolicyNode;

beforeEach(async () => {
  clock = new ManualClock();
  kernel = new MemoryConnections();
  nft = new AcceptingNft();
  node = new PolicyNode({ nft, connections: kernel, clock });
  await node.filter.start([]);
  for (const { name, device, addresses } of PODS)
    await node.filter.install(policyPod(name, device, Object.values(addresses)));
});

afterEach(async () => {
  await node.filter.stop();
  rmSync(node.recordsDirectory.replace(/\/[^/]*$/, ''), { recursive: true, force: true });
});

/** Advances the clock, and lets everything run that is due. */
async function pass(ms: number): Promise<void> {
  await setImmediate();
  clock.advance(ms);
  for (let turns = 0; turns < 20; turns++) await setImmediate();
}

const connection = (from: ProbedEnd, to: ProbedEnd, destinationPort = 80): Connection => ({
  source: address(from.addresses[4]),
  destination: address(to.addresses[4]),
  protocol: TCP,
  destinationPort,
});

/** The source and the destination of tracked connections. */
const tracked = () =>
  kernel.tracked.map(({ source, destination }) => `${formatAddress(source)} ${formatAddress(destination)}`);

const snapshot = (fields: Parameters<typeof message>[0]) =>
  node.receiveSnapshot(message({ isComplete: true, namespaces: ['default'], ...fields }));

const openPods = (...excluded: readonly ProbedEnd[]) =>
  PODS.filter((pod) => !excluded.includes(pod)).map(({ name }) => podMessage(name, {}));

/** Pod a receives from the members of a set, and sends to the members of no denied set. */
const restricted = (members: readonly string[], refused: readonly string[] = []) => ({
  profiles: [
    profile({
      id: 'in',
      direction: 'ingress',
      isolatedBy: ['NetworkPolicy default/in'],
      rules: [accept({ peers: { sets: ['a-in'], networks: [] } })],
    }),
    profile({
      id: 'out',
      direction: 'egress',
      admin: [accept({ action: 'deny', peers: { sets: ['a-out'], networks: [] } })],
    }),
  ],
  sets: [wholeSet('a-in', members), wholeSet('a-out', refused)],
  pods: [podMessage(A.name, { ingress: 'in', egress: 'out' }), ...openPods(A)],
});

const setChange = (id: string, added: readonly string[], removed: readonly string[]) =>
  message({
    sets: [
      { id, isWhole: false, added: added.map((each) => member(each)), removed: removed.map((each) => member(each)) },
    ],
  });

test('a connection is judged by the direction in which it began', async () => {
  kernel.tracked = [connection(B, A), connection(A, B), connection(OUTSIDE, A), connection(A, OUTSIDE)];
  await snapshot(restricted([OUTSIDE.addresses[4]], [OUTSIDE.addresses[4]]));
  await pass(100);
  expect(tracked()).toEqual([`${A.addresses[4]} ${B.addresses[4]}`, `${OUTSIDE.addresses[4]} ${A.addresses[4]}`]);
  expect(node.events.lines).toContain('2 connections ended');
});

test('connections of an isolated pod with itself and with the node stay', async () => {
  const loopback = { ...NODE, addresses: { ...NODE.addresses, 4: '127.0.0.9' } };
  const kept = [connection(A, A), connection(NODE, A), connection(A, NODE), connection(loopback, A)];
  kernel.tracked = [...kept, connection(B, A), connection(A, B)];
  const pods = [podMessage(A.name, { ingress: 'in', egress: 'out' }), ...openPods(A)];
  await snapshot({ profiles: [denied('in', 'ingress'), denied('out', 'egress')], pods });
  await pass(100);
  expect(kernel.tracked).toEqual(kept);
});

test('a burst of changes is one listing of the affected pods, and pods without policies are not listed', async () => {
  await snapshot(restricted([B.addresses[4], C.addresses[4]]));
  await node.receive(setChange('a-in', [], [B.addresses[4]]));
  await node.receive(setChange('a-in', [], [C.addresses[4]]));
  await pass(99);
  expect(kernel.listings).toEqual([]);
  await pass(1);
  expect(kernel.listings).toEqual([Object.values(A.addresses).toSorted()]);
});

test('only a change that can forbid a connection lists any', async () => {
  await snapshot(restricted([B.addresses[4]]));
  await pass(100);
  expect(kernel.listings).toHaveLength(1);
  await node.receive(setChange('a-in', [C.addresses[4]], []));
  await node.receive(message({ pods: [podMessage(B.name, {})] }));
  await node.filter.install(policyPod(A.name, A.device, Object.values(A.addresses)));
  await pass(1000);
  expect(kernel.listings).toHaveLength(1);
  for (const [set, added, removed] of [
    ['a-in', [], [C.addresses[4]]],
    ['a-out', [C.addresses[4]], []],
  ] as const) {
    const { length } = kernel.listings;
    await node.receive(setChange(set, added, removed));
    await pass(1000);
    expect(kernel.listings).toHaveLength(length + 1);
  }
});

test('connections are judged when the change is in force, for which its acknowledgement does not wait', async () => {
  let proceed: () => void = () => undefined;
  nft.wait = new Promise((resolve) => (proceed = resolve));
  const change = snapshot(restricted([]));
  await pass(1000);
  expect(kernel.listings).toEqual([]);
  proceed();
  await change;
  expect(kernel.listings).toEqual([]);
  await pass(100);
  expect(kernel.listings).toHaveLength(1);
});

test('a failure is reported once, and repeated until it ends', async () => {
  kernel.tracked = [connection(B, A)];
  kernel.failure = new Failure('KERNEL_REFUSED', 'no buffer');
  await snapshot(restricted([]));
  await pass(100);
  for (let times = 0; times < 3; times++) await pass(30_000);
  expect(node.filter.conditions()).toMatchObject([
    { reason: 'ConnectionsNotJudged', message: expect.stringContaining('no buffer') },
  ]);
  expect(node.events.lines.filter((line) => line.includes('not judged'))).toHaveLength(1);
  kernel.failure = undefined;
  await pass(30_000);
  expect(node.filter.conditions()).toEqual([]);
  expect(tracked()).toEqual([]);
});

test('a long listing is followed by a rest', async () => {
  kernel.onList = () => clock.advance(200);
  await snapshot(restricted([B.addresses[4]]));
  await pass(100);
  await node.receive(setChange('a-in', [], [B.addresses[4]]));
  await pass(1700);
  expect(kernel.listings).toHaveLength(1);
  await pass(100);
  expect(kernel.listings).toHaveLength(2);
});

test('pods whose rules nft refuses lose their connections, and a new pod the ones of its address', async () => {
  nft.refused = 'i-bad';
  kernel.tracked = [connection(B, A), connection(C, B)];
  const bad = profile({ id: 'bad', direction: 'ingress' });
  await snapshot({
    profiles: [bad, denied('in', 'ingress')],
    pods: [podMessage(A.name, { ingress: 'bad' }), ...openPods(A)],
  });
  await pass(100);
  expect(tracked()).toEqual([`${C.addresses[4]} ${B.addresses[4]}`]);
  await node.receive(message({ pods: [{ ...podMessage('new', { ingress: 'in' }) }] }));
  await node.filter.forget(B.device);
  await node.filter.install(policyPod('new', 'podwnew', Object.values(B.addresses)));
  await pass(1000);
  expect(tracked()).toEqual([]);
});

test('the next pod at an interface is judged, also with the profile of the one before', async () => {
  const isolated = {
    profiles: [denied('in', 'ingress')],
    pods: [podMessage(A.name, { ingress: 'in' }), ...openPods(A)],
  };
  await snapshot(isolated);
  await pass(100);
  kernel.tracked = [connection(OUTSIDE, A), connection(OUTSIDE, C)];
  await node.filter.forget(C.device);
  await node.filter.install(policyPod(A.name, A.device, Object.values(C.addresses)));
  await pass(100);
  expect(tracked()).toEqual([]);
});

test('the connections of a pod end with it, except for addresses that another pod has', async () => {
  const earlier = connection(OUTSIDE, C);
  await snapshot({ pods: [...openPods(), podMessage('before', {}), podMessage('next', {})] });
  await pass(100);
  kernel.tracked = [connection(A, B), earlier];
  await node.filter.install(policyPod('before', 'podwbefore', Object.values(C.addresses)));
  await node.filter.forget(C.device);
  kernel.failure = new Failure('KERNEL_REFUSED', 'refused');
  await node.filter.forget(A.device);
  await pass(100);
  expect(tracked()).toHaveLength(2);
  kernel.failure = undefined;
  await pass(500);
  expect(tracked()).toEqual([`${OUTSIDE.addresses[4]} ${C.addresses[4]}`]);
  await node.filter.forget('podwbefore');
  kernel.onList = () => void node.filter.install(policyPod('next', 'podwnext', Object.values(C.addresses)));
  await pass(100);
  expect(kernel.tracked).toEqual([earlier]);
});

const seed = Number(process.env.POLICY_SEED ?? Math.floor(Math.random() * 2 ** 31));

/** Connections of every protocol and port between all ends, also of an end with itself. */
const ALL: readonly Connection[] = [...PODS, OUTSIDE, NODE].flatMap((from) =>
  [...PODS, OUTSIDE, NODE].flatMap((to) =>
    ([4, 6] as const).flatMap((family) => {
      const ends = { source: address(from.addresses[family]), destination: address(to.addresses[family]) };
      const ports = [TCP, UDP, SCTP].flatMap((protocol) =>
        PORTS.map((destinationPort) => ({ protocol, destinationPort })),
      );
      const icmp = { protocol: family === 4 ? ICMP : ICMPV6, destinationPort: undefined };
      return [...ports, icmp].map((each) => ({ ...ends, ...each }));
    }),
  ),
);

describe(`random changes with the seed ${seed}`, () => {
  type State = ReturnType<typeof policyState> extends fc.Arbitrary<infer Drawn> ? Drawn : never;

  const drawn = (round: number): State => {
    const [state] = fc.sample(policyState(round), { seed: seed + round, numRuns: 1 });
    if (!state) throw new Error('a sample has one value');
    return state;
  };

  /** The verdict by the drawn values alone. */
  function isForbidden({ source, destination, ...rest }: Connection, { pods, addresses, ports }: State): boolean {
    const [from, to] = [source, destination].map((end) => formatAddress(end));
    const at = (end: string | undefined) => PODS.findIndex((pod) => Object.values(pod.addresses).includes(end ?? ''));
    if (from === to || [from, to].some((end) => Object.values(NODE_ADDRESSES).some((own) => own === end))) return false;
    const sets: SetLookup = {
      hasAddress: (set, end) => addresses[ADDRESS_SETS.indexOf(set)]?.includes(formatAddress(end)) ?? false,
      hasPort: (set, end, protocol, port) =>
        ports[PORT_SETS.indexOf(set)]?.includes(`${formatAddress(end)} ${protocol} ${port}`) ?? false,
    };
    const ends = { egress: pods[at(from)]?.egress, ingress: pods[at(to)]?.ingress };
    return !isAllowed(ends, { source, destination, ...rest }, sets);
  }

  const setsOf = ({ addresses, ports }: State) => [
    ...ADDRESS_SETS.map((id, at) => wholeSet(id, addresses[at] ?? [])),
    ...PORT_SETS.map((id, at) => wholeSet(id, ports[at] ?? [])),
  ];

  const podsOf = ({ pods }: State) =>
    PODS.map(({ name }, at) => {
      const { ingress, egress } = pods[at] ?? {};
      return podMessage(name, { ...(ingress && { ingress: ingress.id }), ...(egress && { egress: egress.id }) });
    });

  const profilesOf = ({ pods }: State) =>
    pods.flatMap(({ ingress, egress }) => [ingress, egress]).filter((each) => each !== undefined);

  async function expectForbiddenEnded(state: State): Promise<void> {
    const before = kernel.tracked;
    await pass(100);
    expect(kernel.tracked).toEqual(before.filter((each) => !isForbidden(each, state)));
    // New connections begin.
    kernel.tracked = ALL.filter((each) => !isForbidden(each, state));
  }

  test('forbidden connections end, and no other ones', async () => {
    kernel.tracked = [...ALL];
    for (let round = 0; round < 20; round += 2) {
      const [state, next] = [drawn(round), drawn(round + 1)];
      await snapshot({ profiles: profilesOf(state), sets: setsOf(state), pods: podsOf(state) });
      await expectForbiddenEnded(state);
      const withSets = { ...next, pods: state.pods };
      await node.receive(message({ sets: setsOf(next) }));
      await expectForbiddenEnded(withSets);
      await node.receive(message({ profiles: profilesOf(next), pods: podsOf(next) }));
      await expectForbiddenEnded(next);
    }
  });
});
