import { context } from '@opentelemetry/api';
import { AsyncLocalStorageContextManager } from '@opentelemetry/context-async-hooks';
import { Failure } from '@podwire/shared/failure/failure';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';

import type { AttachmentRecord } from '../records/record.js';
import { MemoryKernel, type Operation } from '../testing/memory-kernel.js';
import { address, BY_FAMILY, podNetwork, recordingLog, testRegistry } from '../testing/pods.js';
import type { PodNetwork } from '@podwire/shared/attachment/pod-network';
import { Events } from './events.js';
import { PodWiring } from './pods.js';

// Log lines get the attachment from it.
beforeAll(() => void context.setGlobalContextManager(new AsyncLocalStorageContextManager().enable()));
afterAll(() => context.disable());

/** A signal that does not fire. Each call has its own. */
const never = () => new AbortController().signal;

function node() {
  const kernel = new MemoryKernel();
  const { log, lines } = recordingLog();
  const registry = testRegistry();
  const unsettled: string[] = [];
  const onUnsettled = ({ network: { attachment }, state }: AttachmentRecord) =>
    void unsettled.push(`${attachment.containerId} ${state}`);
  const dataplane = new PodWiring({ kernel, registry, events: new Events(log), onUnsettled });
  const pod = (containerId: string, rest: Partial<PodNetwork> = {}): PodNetwork => {
    const network = podNetwork(containerId, rest);
    kernel.addNamespace(network.netns);
    return network;
  };
  return { kernel, dataplane, registry, pod, lines, unsettled };
}

const detachment = ({ attachment, hostInterfaceName }: PodNetwork) => ({ attachment, hostInterfaceName });

const codeOf = (work: Promise<unknown>): Promise<string> =>
  work.then(
    () => 'none',
    (error: unknown) => (error instanceof Failure ? error.code : String(error)),
  );

const bridge = { name: 'br0', mac: '02:00:00:00:00:01', mtuBytes: 1500 };

describe('attach', () => {
  test('wires a new pod, and returns its links', async () => {
    const { dataplane, pod, lines } = node();
    const network = pod('a');
    expect(await dataplane.attach(network, never())).toMatchObject({
      host: { name: network.hostInterfaceName, mac: 'ee:ee:ee:ee:ee:ee', mtuBytes: 1500, up: true },
      pod: { name: 'eth0', mac: network.mac, mtuBytes: 1500, up: true },
      changes: 16,
    });
    expect(lines).toMatchObject([{ msg: 'pod wired', attachment: 'net/a/eth0' }]);
    expect(await dataplane.check(network, never())).toEqual([]);
  });

  test('a second time changes nothing', async () => {
    const { kernel, dataplane, pod } = node();
    const network = pod('a');
    const first = await dataplane.attach(network, never());
    const before = kernel.print();
    const commands = kernel.commands.length;
    const { host, pod: end, changes } = await dataplane.attach(network, never());
    expect([host.index, end.index, changes]).toEqual([first.host.index, first.pod.index, 0]);
    expect(kernel.print()).toBe(before);
    expect(kernel.commands.slice(commands)).toEqual([expect.stringMatching(/^ip link add .* -> EEXIST$/)]);
  });

  test('completes a partial wire', async () => {
    const { kernel, dataplane, pod } = node();
    const network = pod('a');
    await dataplane.attach(network, never());
    const before = kernel.print();
    const namespace = kernel.namespace(network.netns);
    namespace.setLink(namespace.find('eth0'), { up: false });
    kernel.host.writeSysctl(`net/ipv4/conf/${network.hostInterfaceName}/rp_filter`, '0');
    expect(await dataplane.attach(network, never())).toMatchObject({ changes: 5 });
    expect(kernel.print()).toBe(before);
  });

  test('takes over the route of an earlier pod, and logs it', async () => {
    const { kernel, dataplane, pod, lines } = node();
    const [old, next] = [pod('old'), pod('next')];
    await dataplane.attach(old, never());
    await dataplane.attach(next, never());
    expect(kernel.host.routes).toMatchObject([{ destination: '10.65.0.7/32', device: next.hostInterfaceName }]);
    expect(lines).toContainEqual(expect.objectContaining({ level: 'warn', device: old.hostInterfaceName }));
    expect(await dataplane.check(next, never())).toEqual([]);
  });

  test('replaces the route to an address that another node had borrowed; a failure changes nothing', async () => {
    for (const fails of [true, false]) {
      const { kernel, dataplane, pod } = node();
      kernel.host.setLink(kernel.host.addLink({ ...bridge, name: 'vxlan4.podwire' }, 'vxlan'), { up: true });
      const there = { device: 'vxlan4.podwire', metric: 0, scope: 'global', protocol: 87, onlink: true } as const;
      kernel.host.addRoute({ ...there, destination: '10.65.0.7/32', gateway: '10.65.1.1' });
      const network = pod('a');
      const before = kernel.print();
      if (fails) kernel.failNext('route-replace');
      expect(await codeOf(dataplane.attach(network, never()))).toBe(fails ? 'KERNEL_REFUSED' : 'none');
      expect(kernel.unusedFaults).toBe(0);
      if (fails) expect(kernel.print()).toBe(before);
      else
        expect(kernel.host.routes).toMatchObject([{ destination: '10.65.0.7/32', device: network.hostInterfaceName }]);
    }
  });

  const UDP = { protocol: 'udp', port: 53 } as const;

  test('deletes flows of an address that another pod had, and no other flows; continues when that fails', async () => {
    for (const refused of [false, true]) {
      const { kernel, dataplane, pod, lines } = node();
      await dataplane.attach(pod('old', BY_FAMILY['both families']), never());
      kernel.flows.push(
        { ...UDP, source: '10.65.0.7', destination: '10.65.0.9' },
        { ...UDP, source: 'fd65::9', destination: 'fd65::7' },
      );
      kernel.flows.push({ ...UDP, source: '10.65.0.9', destination: '10.65.0.8' });
      if (refused) for (let times = 0; times < 2; times++) kernel.failNext('conntrack-delete', { errno: 'ENOBUFS' });
      const next = pod('next', BY_FAMILY['both families']);
      await dataplane.attach(next, never());
      expect(kernel.flows).toHaveLength(refused ? 3 : 1);
      expect(lines.filter(({ msg }) => String(msg).includes('connection tracking entries'))).toHaveLength(
        refused ? 2 : 0,
      );
      expect(kernel.unusedFaults).toBe(0);
      kernel.flows.push({ ...UDP, source: '10.65.0.7', destination: '10.65.0.9' });
      const known = kernel.flows.length;
      await dataplane.attach(next, never());
      expect(kernel.flows).toHaveLength(known);
    }
  });

  test('continues without an optional sysctl, and logs it', async () => {
    const { kernel, dataplane, pod, lines } = node();
    const network = pod('a');
    // accept_ra, the seventh sysctl.
    kernel.failNext('sysctl-write', { errno: 'ENOENT', after: 6 });
    expect(await dataplane.attach(network, never())).toMatchObject({ changes: 15 });
    expect(kernel.unusedFaults).toBe(0);
    expect(lines).toContainEqual(expect.objectContaining({ level: 'warn', msg: expect.stringContaining('accept_ra') }));
  });

  describe('refuses, and changes nothing', () => {
    const cases: readonly (readonly [string, string, (kernel: MemoryKernel, network: PodNetwork) => void])[] = [
      ['a namespace that is not there', 'INVALID_NETNS', (kernel, { netns }) => kernel.removeNamespace(netns)],
      ['a path that is no namespace', 'INVALID_NETNS', (kernel, { netns }) => kernel.addFile(netns)],
      [
        'an interface that the pod has already',
        'INTERFACE_EXISTS',
        (kernel, { netns }) => void kernel.namespace(netns).addLink({ ...bridge, name: 'eth0' }, 'bridge'),
      ],
      [
        'a foreign host interface',
        'HOST_INTERFACE_TAKEN',
        (kernel, { hostInterfaceName }) => void kernel.host.addLink({ ...bridge, name: hostInterfaceName }, 'bridge'),
      ],
      [
        'a foreign route to the address',
        'ROUTE_TAKEN',
        (kernel) => {
          kernel.host.setLink(kernel.host.addLink(bridge, 'bridge'), { up: true });
          const route = {
            destination: '10.65.0.7/32',
            device: 'br0',
            gateway: undefined,
            metric: 0,
            scope: 'link',
            protocol: 3,
          } as const;
          kernel.host.addRoute(route);
        },
      ],
    ];

    test.each(cases)('%s: %s', async (_, code, prepare) => {
      const { kernel, dataplane, pod } = node();
      const network = pod('a');
      prepare(kernel, network);
      const before = kernel.print();
      expect(await codeOf(dataplane.attach(network, never()))).toBe(code);
      expect(kernel.print()).toBe(before);
      expect(kernel.openSessions).toBe(0);
    });

    test('the node’s own namespace', async () => {
      const { kernel, dataplane } = node();
      const before = kernel.print();
      expect(await codeOf(dataplane.attach(podNetwork('node'), never()))).toBe('INVALID_NETNS');
      expect(kernel.print()).toBe(before);
    });
  });

  const breakdowns: readonly (readonly [Operation, string, (kernel: MemoryKernel, network: PodNetwork) => void])[] = [
    ['open', 'of a new pod', () => undefined],
    ['sysctl-write', 'of a new pod', () => undefined],
    [
      'observe',
      'of a pod with an incomplete wire',
      (kernel, { hostInterfaceName: name, netns, mac }) => {
        const link = kernel.host.addLink({ name, mac: 'ee:ee:ee:ee:ee:ee', mtuBytes: 1500 }, 'veth');
        const namespace = kernel.namespace(netns);
        const peer = namespace.addLink({ name: 'eth0', mac, mtuBytes: 1500 }, 'veth');
        link.peer = { link: peer, namespace };
        peer.peer = { link, namespace: kernel.host };
      },
    ],
  ];

  test.each(breakdowns)(
    'when the kernel fails at %s %s, nothing changes, and a retry succeeds',
    async (...breakdown) => {
      const [operation, , prepare] = breakdown;
      const { kernel, dataplane, pod } = node();
      const network = pod('a');
      prepare(kernel, network);
      const before = kernel.print();
      kernel.failNext(operation, { errno: 'EMFILE' });
      expect(await codeOf(dataplane.attach(network, never()))).toBe('KERNEL_REFUSED');
      expect({ state: kernel.print(), unused: kernel.unusedFaults, open: kernel.openSessions }).toEqual({
        state: before,
        unused: 0,
        open: 0,
      });
      await dataplane.attach(network, never());
      expect(await dataplane.check(network, never())).toEqual([]);
    },
  );
});

describe('detach', () => {
  test('removes a wire that was not recorded', async () => {
    const { kernel, dataplane, pod } = node();
    const network = pod('a');
    await dataplane.attach(network, never());
    kernel.host.setLink(kernel.host.find(network.hostInterfaceName), { up: false, alias: '' });
    expect(await dataplane.detach(detachment(network), never())).toBe(true);
  });

  test('removes what Calico’s plugin wired, and no wire of Podwire or of another plugin in its namespace', async () => {
    const { kernel, dataplane, pod } = node();
    const network = pod('a', { hostInterfaceName: 'cali0123456789a' });
    const { host } = await dataplane.attach(network, never());
    const migrated = { ...detachment(pod('b')), netns: network.netns };
    expect(await dataplane.detach(migrated, never())).toBe(false);
    kernel.host.setLink(kernel.host.find(host.name), { alias: '' });
    expect(await dataplane.detach({ ...migrated, netns: '/run/netns/gone' }, never())).toBe(false);
    expect(await dataplane.detach(migrated, never())).toBe(true);
    expect(kernel.host.links.map(({ name }) => name)).not.toContain(host.name);
  });

  test.each<Operation>(['link-get', 'link-delete'])('reports that %s failed', async (operation) => {
    const { kernel, dataplane, pod } = node();
    const network = pod('a');
    await dataplane.attach(network, never());
    kernel.failNext(operation, { errno: 'ENOBUFS' });
    await expect(dataplane.detach(detachment(network), never())).rejects.toMatchObject({
      details: { errno: 'ENOBUFS' },
    });
    expect(kernel.unusedFaults).toBe(0);
    expect(await dataplane.detach(detachment(network), never())).toBe(true);
  });
});

describe('check', () => {
  test('of an unwired pod reports everything in the order of creation, and changes nothing', async () => {
    const { kernel, dataplane, pod } = node();
    const network = pod('a');
    const before = kernel.print();
    const found = await dataplane.check(network, never());
    expect(found.slice(0, 2)).toEqual([
      { object: `host link ${network.hostInterfaceName}`, wanted: 'present', actual: 'missing' },
      { object: 'pod link eth0', wanted: 'present', actual: 'missing' },
    ]);
    expect(found.at(-1)).toMatchObject({ object: expect.stringMatching(/^host route 10\.65\.0\.7 dev /) });
    expect(kernel.print()).toBe(before);
    expect(kernel.commands).toEqual([]);
  });

  test('reports the foreign object in place of the attachment’s own', async () => {
    const { kernel, dataplane, pod } = node();
    const network = pod('a');
    kernel.namespace(network.netns).addLink({ ...bridge, name: 'eth0' }, 'bridge');
    expect(await dataplane.check(network, never())).toEqual([
      { object: 'pod link eth0', wanted: 'this attachment’s', actual: 'a foreign one: kind bridge, alias ""' },
    ]);
  });

  test('of a namespace that is gone is refused', async () => {
    const { dataplane } = node();
    expect(await codeOf(dataplane.check(podNetwork('gone'), never()))).toBe('INVALID_NETNS');
  });
});

describe('calls at the same time', () => {
  test('for one attachment run one after the other: a detach during an attach removes its wire', async () => {
    const { kernel, dataplane, pod } = node();
    const network = pod('a');
    const before = kernel.print();
    const pause = kernel.pauseBefore('route-add');
    const attaching = dataplane.attach(network, never());
    await pause.reached;
    const detaching = dataplane.detach(detachment(network), never());
    pause.release();
    expect(await attaching).toMatchObject({ changes: 16 });
    expect(await detaching).toBe(true);
    expect(kernel.print()).toBe(before);
  });

  test('a waiting call starts only after the rollback of a failed one', async () => {
    const { kernel, dataplane, pod } = node();
    const network = pod('a');
    kernel.failNext('route-add', { after: 2 });
    const undoing = kernel.pauseBefore('link-delete');
    const failing = dataplane.attach(network, never());
    await undoing.reached;
    const next = dataplane.attach(network, never());
    const commands = kernel.commands.length;
    await new Promise((resolve) => setImmediate(resolve));
    expect(kernel.commands).toHaveLength(commands);
    undoing.release();
    expect(await codeOf(failing)).toBe('KERNEL_REFUSED');
    expect(await next).toMatchObject({ changes: 16 });
  });

  test('for different attachments do not wait', async () => {
    const { kernel, dataplane, pod } = node();
    const [slow, quick] = [pod('slow'), pod('quick', { addresses: [address('10.65.0.8')] })];
    const pause = kernel.pauseBefore('link-add');
    const attaching = dataplane.attach(slow, never());
    await pause.reached;
    expect(await dataplane.attach(quick, never())).toMatchObject({ changes: 16 });
    pause.release();
    await attaching;
  });

  test('a call that times out while it waits fails without changes', async () => {
    const { kernel, dataplane, pod } = node();
    const network = pod('a');
    const pause = kernel.pauseBefore('link-add');
    const attaching = dataplane.attach(network, never());
    await pause.reached;
    const ending = new AbortController();
    const waiting = dataplane.detach(detachment(network), ending.signal);
    ending.abort(new Failure('DEADLINE_EXCEEDED', 'too late'));
    expect(await codeOf(waiting)).toBe('DEADLINE_EXCEEDED');
    pause.release();
    expect(await attaching).toMatchObject({ changes: 16 });
  });

  test('of many pods, in any mixture, leave nothing behind', async () => {
    const { kernel, dataplane, pod } = node();
    const pods = Array.from({ length: 50 }, (_, at) => pod(`p${at}`, { addresses: [address(`10.65.1.${at}`)] }));
    const before = kernel.print();
    await Promise.all(pods.map((network) => dataplane.attach(network, never())));
    expect(kernel.host.links).toHaveLength(50);
    const again = pods.map((network) => dataplane.attach(network, never()));
    const gone = pods.map((network) => dataplane.detach(detachment(network), never()));
    expect((await Promise.all(again)).map(({ changes }) => changes)).toEqual(Array<number>(50).fill(0));
    expect(await Promise.all(gone)).toEqual(Array<boolean>(50).fill(true));
    expect(kernel.print()).toBe(before);
    expect(kernel.openSessions).toBe(0);
  });
});

describe('the allocation of a pod', () => {
  const allocation = {
    addresses: [{ address: '10.65.0.7', sequenceNumber: 5n }],
    nodeName: 'node-1',
    pod: undefined,
    isBound: false,
  };

  test('is reported once the pod is wired, and its record stays after the detach until the addresses are returned', async () => {
    const { dataplane, registry, pod, unsettled } = node();
    const network = pod('a');
    await dataplane.attach(network, never(), allocation);
    expect(registry.get(network.attachment)?.allocation).toEqual(allocation);
    expect(await dataplane.detach(detachment(network), never())).toBe(true);
    expect(unsettled).toEqual(['a attached', 'a dead']);
    expect(registry.get(network.attachment)?.state).toBe('dead');
  });

  test('is not reported when the pod cannot be wired', async () => {
    const { dataplane, registry, pod, unsettled, kernel } = node();
    const network = pod('a');
    kernel.removeNamespace(network.netns);
    await expect(dataplane.attach(network, never(), allocation)).rejects.toThrow();
    expect([unsettled, registry.all()]).toEqual([[], []]);
  });
});

test('an attachment that the kernel holds is found, also under another name', async () => {
  const { kernel, dataplane, pod } = node();
  const [{ attachment, ...network }, other] = [pod('a'), pod('b', { addresses: [address('10.65.0.8')] })];
  for (const each of [{ attachment, ...network }, other]) await dataplane.attach(each, never());
  const link = await kernel.hostLink(network.hostInterfaceName);
  expect(await dataplane.find(attachment)).toMatchObject({ attachment, link: { name: network.hostInterfaceName } });
  await kernel.renameHostLink(link!, 'renamed0');
  expect(await dataplane.find(attachment)).toMatchObject({ attachment, link: { name: 'renamed0' } });
  await dataplane.detach(detachment({ attachment, ...network }), never());
  expect(await dataplane.find(attachment)).toBeUndefined();
  expect(await dataplane.find(other.attachment)).toMatchObject({ attachment: other.attachment });
});
