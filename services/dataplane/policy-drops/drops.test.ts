import { Failure } from '@podwire/shared/failure/failure';
import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { beforeEach, expect, test } from 'vitest';

import type { PacketWatcher } from '../nft/nft.js';
import { firstPacket, TCP } from '../testing/frames.js';
import { accept, profile } from '../testing/network-policy/policies.js';
import type { PodFiltering } from '../network-policy/policy-table.js';
import { dropsMessage } from './drops-rpc.js';
import { PolicyDrops } from './drops.js';

const OPEN = { ingress: undefined, egress: undefined };
const UNKNOWN = { ingress: 'isolated', egress: 'isolated' } as const;
const FILTERED = { ingress: { profile: 'in' }, egress: { profile: 'out' } };

let clock: ManualClock;
let watcher: PacketWatcher | undefined;
let refusal: Failure | undefined;
let logsDrops: boolean;
let isFollowed: boolean;
let pods: Record<string, PodFiltering>;
let lines: string[];
let drops: PolicyDrops;

beforeEach(() => {
  clock = new ManualClock();
  [watcher, refusal, logsDrops, isFollowed, lines] = [undefined, undefined, true, true, []];
  pods = { podwa: FILTERED };
  const profiles = [
    profile({ id: 'in', direction: 'ingress', isolatedBy: ['NetworkPolicy default/web'] }),
    profile({ id: 'out', direction: 'egress', admin: [accept(), accept({ policy: 'ClusterNetworkPolicy c' })] }),
  ];
  drops = new PolicyDrops({
    packets: {
      watch: (_, own) => {
        if (refusal) return Promise.reject(refusal);
        watcher = own;
        return Promise.resolve({ close: () => undefined });
      },
    },
    filter: {
      get logsDrops() {
        return logsDrops;
      },
      podAt: (device) => {
        const filtering = pods[device];
        return filtering && { pod: { namespace: 'default', name: device, uid: '' }, filtering };
      },
    },
    view: {
      profiles: new Map(profiles.map((each) => [each.id, each])),
      get isFollowed() {
        return isFollowed;
      },
    },
    events: {
      packetDropped: (_, message) => lines.push(message),
      dropsNotFollowed: (error) => lines.push(String(error)),
    },
    clock,
    random: () => 0.5,
  });
});

const settled = () => new Promise((resolve) => setImmediate(resolve));

async function start(): Promise<void> {
  drops.start();
  await settled();
}

/** A packet from outside to the pod `podwa`, or from it. */
function receive(prefix: string, { port = 80, input = 'eth0', output = 'podwa' } = {}): void {
  const ends = { source: '198.51.100.1', destination: '10.65.0.1' };
  const bytes = firstPacket({ ...ends, protocol: TCP, sourcePort: 4000, port });
  watcher?.onPacket({ prefix, input, output, bytes });
}

const reasons = () =>
  drops.list(0).map(({ direction, reason, policies }) => [direction, reason, ...policies].join(' '));

test.each([
  ['profile ingress in', 'ingress no-rule-allows NetworkPolicy default/web'],
  ['profile egress out admin 1', 'egress denied ClusterNetworkPolicy c'],
  // The table is a moment ahead of the view.
  ['profile ingress gone', 'ingress no-rule-allows'],
  ['profile egress out baseline 9', 'egress denied'],
  ['unwired egress', 'egress interface-not-wired'],
  ['untracked ingress', 'ingress connection-not-tracked'],
])('the prefix "%s" is: %s', async (prefix, reason) => {
  await start();
  receive(prefix);
  expect(reasons()).toEqual([reason]);
});

test.each<[string, PodFiltering, PodFiltering, string]>([
  ['both ends are unknown', UNKNOWN, UNKNOWN, 'egress policies-unknown'],
  ['the destination is unknown', FILTERED, UNKNOWN, 'ingress policies-unknown'],
  ['the source is unknown', UNKNOWN, OPEN, 'egress policies-unknown'],
  ['rules of the destination are refused', OPEN, FILTERED, 'ingress rules-not-in-force'],
  ['neither is a pod with policies any more', OPEN, OPEN, 'ingress rules-not-in-force'],
])('an isolated packet, if %s', async (_, source, destination, reason) => {
  pods = { podwb: source, podwa: destination };
  await start();
  receive('isolated', { input: 'podwb' });
  expect(reasons()).toEqual([reason]);
});

test.each(['', 'calico', 'profile sideways in', 'profile ingress', 'profile ingress in middle 1'])(
  'a packet with the prefix "%s" of another program is left out',
  async (prefix) => {
    await start();
    receive(prefix);
    receive('isolated', {});
    watcher?.onPacket({ prefix: 'isolated', input: undefined, output: undefined, bytes: Buffer.alloc(3) });
    expect(drops.latestNumber).toBe(1);
  },
);

test('the last 1000 drops are kept, and a number of an earlier process selects all of them', async () => {
  await start();
  for (let n = 0; n < 2500; n++) receive('isolated');
  const numbers = (after: number) => drops.list(after).map(({ number }) => number);
  expect([numbers(0).length, numbers(0)[0], numbers(2498)]).toEqual([1000, 1501, [2499, 2500]]);
  expect(numbers(9999).length).toBe(1000);
});

test('without podwire-ipam the other end of a dropped packet may be a new pod', async () => {
  await start();
  isFollowed = false;
  receive('profile ingress in');
  expect(lines[0]).toContain('the other end may be a new pod, as this node does not reach podwire-ipam');
});

test('the same drop is logged once a minute, and different ones a thousand times a minute', async () => {
  await start();
  for (let n = 0; n < 3; n++) receive('profile ingress in');
  expect(lines).toEqual([
    'default/podwa: ingress from 198.51.100.1 to 10.65.0.1, protocol 6 port 80 dropped: no rule allows it; isolated by NetworkPolicy default/web',
  ]);
  for (let port = 1000; port < 5000; port++) receive('profile ingress in', { port });
  expect(lines.length).toBe(1000);
  clock.advance(60_000);
  receive('profile ingress in');
  expect(lines.length).toBe(1001);
});

test('a kernel that refuses is asked again, and is reported once', async () => {
  refusal = new Failure('KERNEL_REFUSED', 'another program receives the group');
  await start();
  clock.advance(60_000);
  await settled();
  expect([drops.fault, lines.length]).toEqual(['another program receives the group', 1]);
  refusal = undefined;
  clock.advance(60_000);
  await settled();
  expect(drops.fault).toBeUndefined();
  watcher?.onEnd(new Error('ended'));
  expect(drops.fault).toBe('ended');
  clock.advance(60_000);
  await settled();
  expect(drops.fault).toBeUndefined();
});

test('ListPolicyDrops selects by namespace, and says why there are none', async () => {
  await start();
  receive('profile ingress in');
  watcher?.onLost();
  const list = (namespace: string) => dropsMessage(drops, { namespace, afterNumber: 0n });
  expect(list('default')).toMatchObject({
    drops: [
      {
        number: 1n,
        sourceAddress: '198.51.100.1',
        destinationAddress: '10.65.0.1',
        sourcePort: 4000,
        destinationPort: 80,
        destinationPod: { namespace: 'default', name: 'podwa' },
        policies: ['NetworkPolicy default/web'],
      },
    ],
    latestNumber: 1n,
    lostCount: 1n,
    unavailable: '',
  });
  expect(list('other')).toMatchObject({ drops: [], latestNumber: 1n });
  logsDrops = false;
  expect(list('')).toMatchObject({ unavailable: expect.stringContaining('nfnetlink_log') });
  expect(dropsMessage(undefined, { namespace: '', afterNumber: 0n })).toMatchObject({
    unavailable: expect.stringContaining('PODWIRE_NODE_NETWORK_POLICIES'),
  });
});
