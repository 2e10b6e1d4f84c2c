import { bandwidthOf } from '@podwire/shared/attachment/bandwidth';
import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import type { PodSession } from '../pods/kernel.js';
import { MemoryKernel } from '../testing/memory-kernel.js';
import { show, type MemoryNamespace } from '../testing/memory-namespace.js';
import { address, podNetwork } from '../testing/pods.js';
import { diff } from './diff.js';
import { wantedState } from './network.js';
import { familiesOf } from '@podwire/shared/net/address';
import type { PodNetwork } from '@podwire/shared/attachment/pod-network';
import { rollbackSteps, type Step } from './step.js';
import { findObstacle } from './wire.js';

/** Fixed, so that every run is the same; change it for other walks. */
const SEED = 20_261_121;
const RUNS = { seed: SEED, numRuns: 300 };

const NETNS = '/run/netns/a';

const limits = fc.constantFrom(
  undefined,
  { rateBitsPerSecond: 10_000_000, burstBits: undefined },
  { rateBitsPerSecond: 1_000_000, burstBits: 800_000 },
);

const networks: fc.Arbitrary<PodNetwork> = fc
  .record({
    addresses: fc.uniqueArray(fc.tuple(fc.constantFrom('10.65.0.', 'fd65::'), fc.integer({ min: 1, max: 4 })), {
      minLength: 1,
      maxLength: 4,
      selector: String,
    }),
    routes: fc.constantFrom(
      ['0.0.0.0/0', '::/0'],
      ['10.0.0.0/8', 'fd00::/8'],
      ['10.0.0.0/8', '172.16.0.0/12', '2000::/3', 'fd00::/8'],
    ),
    mtuBytes: fc.constantFrom(1500, 1450),
    ipForwarding: fc.boolean(),
    mac: fc.constantFrom('02:00:00:00:00:0a', '02:00:00:00:00:0b'),
    limits: fc.record({ ingress: limits, egress: limits }),
  })
  .map(({ addresses: texts, routes, limits: { ingress, egress }, ...rest }) => {
    const bandwidth = bandwidthOf(ingress, egress);
    const addresses = texts.map((parts) => address(parts.join('')));
    return podNetwork('a', {
      ...rest,
      ...(bandwidth && { bandwidth }),
      addresses,
      routes: routes
        .map((cidr) => {
          const [network = '', length] = cidr.split('/');
          return { ...address(network), length: Number(length) };
        })
        .filter(({ family }) => familiesOf(addresses).includes(family)),
    });
  });

/** Changes by operators and other programs to a wired pod. */
const foreignChange = fc.constantFrom<
  readonly [string, (kernel: MemoryKernel, pod: MemoryNamespace, host: string) => void]
>(
  ['host link down', (kernel, _, host) => kernel.host.setLink(kernel.host.find(host), { up: false })],
  ['pod link down', (_, pod) => pod.setLink(pod.find('eth0'), { up: false })],
  ['pod address gone', (_, pod) => pod.deleteAddress('eth0', pod.addresses[0]?.address ?? '')],
  ['pod routes gone', (_, pod) => void pod.routes.splice(0)],
  ['one pod route gone', (_, pod) => void pod.routes.splice(1, 1)],
  ['neighbour gone', (_, pod) => void pod.neighbours.splice(0)],
  [
    'neighbour changed',
    (_, pod) => pod.setNeighbour({ device: 'eth0', address: '169.254.1.1', mac: '02:00:00:00:00:ff' }),
  ],
  ['node’s neighbours gone', (kernel) => void kernel.host.neighbours.splice(0)],
  ['host route gone', (kernel) => void kernel.host.routes.splice(0, 1)],
  ['mtu', (_, pod) => pod.setLink(pod.find('eth0'), { mtuBytes: 1280 })],
  ['host mac', (kernel, _, host) => kernel.host.setLink(kernel.host.find(host), { mac: '02:00:00:00:00:fe' })],
  ['proxy arp off', (kernel, _, host) => kernel.host.writeSysctl(`net/ipv4/conf/${host}/proxy_arp`, '0')],
  ['forwarding', (_, pod) => pod.writeSysctl('net/ipv4/ip_forward', '1')],
  ['IPv6 forwarding', (_, pod) => pod.writeSysctl('net/ipv6/conf/all/forwarding', '1')],
  ['IPv6 off in the pod', (_, pod) => pod.writeSysctl('net/ipv6/conf/all/disable_ipv6', '1')],
  ['IPv6 off on the link', (_, pod) => pod.writeSysctl('net/ipv6/conf/eth0/disable_ipv6', '1')],
  ['gateway’s address gone', (kernel) => void kernel.host.addresses.splice(0)],
  [
    'another interface of the pod with the default routes',
    (_, pod) => {
      if (!pod.has('net9')) addOtherInterface(pod);
    },
  ],
  [
    'default routes of another metric',
    (_, pod) => {
      for (const route of pod.routes.filter(({ gateway }) => gateway !== undefined)) {
        pod.deleteRoute(route);
        pod.addRoute({ ...route, metric: route.metric + 200 });
      }
    },
  ],
  ['limits gone', (kernel) => kernel.host.qdiscs.clear()],
  [
    'limit changed in the pod',
    (_, pod) => pod.setBucket('eth0', { rateBytesPerSecond: 1000, burstBytes: 2000, limitBytes: 3000 }),
  ],
  ['wire cut', (kernel, _, host) => kernel.host.removeLink(kernel.host.find(host))],
);

/** An interface that is not the attachment's, with the routes that an attachment has. */
function addOtherInterface(pod: MemoryNamespace): void {
  const link = pod.addLink({ name: 'net9', mac: '02:00:00:00:00:99', mtuBytes: 1500 }, 'veth');
  pod.setLink(link, { up: true });
  for (const [destination, metric] of [
    ['0.0.0.0/0', 0],
    ['0.0.0.0/0', 1],
    ['::/0', 1024],
  ] as const) {
    const taken = pod.routes.some((route) => route.destination === destination && route.metric === metric);
    const scope = metric < 1024 ? 'link' : 'global';
    const route = { destination, device: 'net9', gateway: undefined, metric, scope, protocol: 87 } as const;
    const hasFamily = scope === 'link' || pod.sysctls.get('net/ipv6/conf/net9/disable_ipv6') === '0';
    if (!taken && hasFamily) pod.addRoute(route);
  }
}

async function applyAll(session: PodSession, steps: readonly Step[]): Promise<void> {
  expect((await session.apply(steps)).failed).toBeUndefined();
}

/** A pod wired as `before`, changed by other programs, and the plan to reach `after`. */
async function scene(before: PodNetwork, after: PodNetwork, changes: readonly (readonly [string, ForeignChange])[]) {
  const kernel = new MemoryKernel();
  const pod = kernel.addNamespace(NETNS);
  const session = await kernel.open(NETNS);
  await applyAll(session, diff(wantedState(before), await session.observe(wantedState(before))));
  for (const [, change] of changes) {
    // Some changes are impossible once a link is gone, down or without address.
    if (pod.links.some(({ name, up }) => name === 'eth0' && up) && pod.addresses.length > 0)
      change(kernel, pod, before.hostInterfaceName);
  }
  const wanted = wantedState(after);
  return { kernel, session, wanted, observed: await session.observe(wanted) };
}
type ForeignChange = (kernel: MemoryKernel, pod: MemoryNamespace, host: string) => void;

const foreignChanges = fc.array(foreignChange, { maxLength: 5 });

describe('after any wiring and any foreign changes', () => {
  test('the plan reaches the wanted state, and a second plan is empty', async () => {
    await fc.assert(
      fc.asyncProperty(networks, networks, foreignChanges, async (before, after, changes) => {
        const { session, wanted, observed } = await scene(before, after, changes);
        expect(findObstacle(wanted, observed)).toBeUndefined();
        await applyAll(session, diff(wanted, observed));
        expect(diff(wanted, await session.observe(wanted))).toEqual([]);
      }),
      RUNS,
    );
  });

  test('no address or route of the state before remains', async () => {
    await fc.assert(
      fc.asyncProperty(networks, networks, async (before, after) => {
        const { kernel, session, wanted, observed } = await scene(before, after, []);
        await applyAll(session, diff(wanted, observed));
        const pod = kernel.namespace(NETNS);
        expect(pod.addresses.map((entry) => entry.address).sort()).toEqual([...wanted.pod.addresses].sort());
        expect(pod.routes.map((route) => route.destination).sort()).toEqual(
          wanted.pod.routes.map((route) => route.destination).sort(),
        );
        expect(kernel.host.routes.map((route) => route.destination).sort()).toEqual(
          wanted.host.routes.map((route) => route.destination).sort(),
        );
        expect(kernel.host.neighbours.map((entry) => entry.address).sort()).toEqual(
          wanted.host.neighbours.map((entry) => entry.address).sort(),
        );
      }),
      RUNS,
    );
  });

  test('any prefix of a plan can be rolled back exactly', async () => {
    await fc.assert(
      fc.asyncProperty(
        networks,
        networks,
        foreignChanges,
        fc.nat({ max: 40 }),
        async (before, after, changes, length) => {
          const { kernel, session, wanted, observed } = await scene(before, after, changes);
          const links = () => kernel.host.links.map((link) => ({ ...show(link), index: 0, peerIndex: 0 }));
          // The kernel restores a link's own address when IPv6 is enabled again, even one that was deleted.
          const print = () => kernel.print().replace(/^.* address fe80:.*\n/m, '');
          const [text, shown] = [print(), links()];
          const beginning = diff(wanted, observed).slice(0, length);
          await applyAll(session, beginning);
          await applyAll(session, rollbackSteps(beginning));
          expect(print()).toBe(text);
          expect(links()).toEqual(shown);
        },
      ),
      RUNS,
    );
  });
});
