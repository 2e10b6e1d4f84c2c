import { formatAttachment } from '@podwire/shared/attachment/attachment';
import type { HostPort } from '@podwire/shared/attachment/host-port';
import { hostInterfaceName, podMac } from '@podwire/shared/attachment/names';
import { Failure } from '@podwire/shared/failure/failure';
import { formatAddress, parseAddress, type Address } from '@podwire/shared/net/address';
import type { Clock } from '@podwire/shared/runtime/clock';
import { createLogger, type Logger } from '@podwire/shared/runtime/log';
import { FakeClock } from '@podwire/shared/testing/clock';

import { AttachmentEvents, Events } from '../pods/events.js';
import { GarbageCollector } from '../pods/garbage.js';
import type { BatchOutcome, Kernel, PodFilter, PodSession } from '../pods/kernel.js';
import { PodWiring } from '../pods/pods.js';
import type { RecordStore } from '../records/record-store.js';
import type { AttachmentRecord } from '../records/record.js';
import { AttachmentRegistry } from '../records/registry.js';
import type { EndpointLookup, HeldEndpoint } from '../repair/lost-wires.js';
import { AttachmentReconciler } from '../repair/reconciler.js';
import { wantedState, type Wanted, type WantedEnd } from '../wiring/network.js';
import type { PodNetwork } from '@podwire/shared/attachment/pod-network';
import { bucketTicks } from '../wiring/token-bucket.js';
import { keyText, type Observed, type ObservedEnd, type ObservedLink, type ObservedRoute } from '../wiring/observed.js';
import type { Step } from '../wiring/step.js';
import { MemoryKernel } from './memory-kernel.js';
import { MemoryRecordStore } from './memory-record-store.js';

const NODE_NAME = 'node-1';

/** podwire-ipam's records of attachments in memory, with one address each; a test can make it unreachable. */
export class FakeEndpoints {
  readonly endpoints = new Map<string, HeldEndpoint>();
  isUnreachable = false;
  /** Called when a lookup arrived, before its answer. */
  onLookup: () => Promise<void> = () => Promise.resolve();
  #sequenceNumber = 100n;

  allocate(network: PodNetwork, netns: HeldEndpoint['netns']): HeldEndpoint {
    const sequenceNumber = this.#sequenceNumber++;
    const addresses = network.addresses.map((each) => ({ address: formatAddress(each), sequenceNumber }));
    const endpoint = { addresses, netns };
    this.endpoints.set(formatAttachment(network.attachment), endpoint);
    return endpoint;
  }

  readonly endpoint: EndpointLookup = async (attachment) => {
    await Promise.resolve();
    if (this.isUnreachable) throw new Failure('UNREACHABLE', 'podwire-ipam does not answer');
    const endpoint = this.endpoints.get(formatAttachment(attachment));
    await this.onLookup();
    return endpoint;
  };
}

/** State that survives the process: kernel, records, IPAM, and time. */
interface PersistentState {
  readonly kernel: Kernel;
  readonly store?: RecordStore;
  readonly ipam?: FakeEndpoints;
  readonly clock?: Clock;
  /** The value of every random draw, in [0, 1); default: the mean. */
  readonly chance?: number;
  readonly filters?: readonly PodFilter[];
}

/** The dataplane's process without its socket: the state that is lost when it is killed. */
export async function startNode(lasting: PersistentState) {
  const {
    kernel,
    store = new MemoryRecordStore(),
    ipam = new FakeEndpoints(),
    clock = new FakeClock(),
    chance = 0.5,
    filters = [],
  } = lasting;
  const { log, lines } = recordingLog();
  const events = new AttachmentEvents(log);
  const registry = new AttachmentRegistry({
    store,
    bootId: BOOT.id,
    clock,
    onStoreFailure: (attachment, failure) => events.recordNotStored(attachment, failure),
  });
  const loaded = await registry.load();
  /** Attachments whose addresses have to be returned, in order. */
  const ended: string[] = [];
  const onUnsettled = ({ network, state }: AttachmentRecord): void => {
    if (state === 'dead') ended.push(formatAttachment(network.attachment));
  };
  const dataplane = new PodWiring({ kernel, registry, events: new Events(log), filters, onUnsettled });
  const parts = { kernel, dataplane, registry, events, clock, onUnsettled };
  const reconciler = new AttachmentReconciler({ ...parts, endpoint: ipam.endpoint, random: () => chance });
  return { ...parts, reconciler, garbage: new GarbageCollector(parts), ipam, ended, loaded, lines };
}

/** The kernel of a process that is killed after some changes: later calls have no effect and never resolve. */
export function killableKernel(
  kernel: Kernel,
  changes: number,
): { readonly kernel: Kernel; readonly died: Promise<void> } {
  let remaining = changes;
  const death = new AbortController();
  const died = new Promise<void>((resolve) => death.signal.addEventListener('abort', () => resolve(), { once: true }));
  // A killed process closes its sessions; otherwise a namespace would outlive its pod.
  const open = new Set<PodSession>();
  const never = <Answer>(): Promise<Answer> => {
    death.abort();
    for (const session of open) void session.close();
    open.clear();
    return new Promise(() => undefined);
  };
  const ifAlive = <Answer>(ask: () => Promise<Answer>): Promise<Answer> => (death.signal.aborted ? never() : ask());

  async function apply(session: PodSession, steps: readonly Step[]): Promise<BatchOutcome> {
    if (death.signal.aborted) return never();
    const reached = steps.slice(0, remaining);
    remaining -= reached.length;
    const outcome = await session.apply(reached);
    return reached.length < steps.length && !outcome.failed ? never() : outcome;
  }

  const mortalKernel: Kernel = {
    probe: () => ifAlive(() => kernel.probe()),
    open: (netns) =>
      ifAlive(async () => {
        const session = await kernel.open(netns);
        open.add(session);
        return {
          identity: session.identity,
          observe: (wanted) => ifAlive(() => session.observe(wanted)),
          podLink: (name) => ifAlive(() => session.podLink(name)),
          rules: (table) => ifAlive(() => session.rules(table)),
          orphanRules: () => ifAlive(() => session.orphanRules()),
          apply: (steps) => apply(session, steps),
          close: () => {
            open.delete(session);
            return ifAlive(() => session.close());
          },
        };
      }),
    identify: (netns) => ifAlive(() => kernel.identify(netns)),
    hostLink: (name) => ifAlive(() => kernel.hostLink(name)),
    veths: () => ifAlive(() => kernel.veths()),
    attachedLinks: () => ifAlive(() => kernel.attachedLinks()),
    deleteFlows: (address) => ifAlive(() => kernel.deleteFlows(address)),
    deletePortFlows: (protocol, ports) => ifAlive(() => kernel.deletePortFlows(protocol, ports)),
    renameHostLink: (link, name) => ifAlive(() => (remaining-- > 0 ? kernel.renameHostLink(link, name) : never())),
    deleteHostLink: (link) => ifAlive(() => (remaining-- > 0 ? kernel.deleteHostLink(link) : never())),
    close: () => Promise.resolve(),
  };
  return { kernel: mortalKernel, died };
}

export const never = (): AbortSignal => new AbortController().signal;

export const detachRequest = ({ attachment, hostInterfaceName }: PodNetwork) => ({ attachment, hostInterfaceName });

export async function scene() {
  const lasting = {
    kernel: new MemoryKernel(),
    store: new MemoryRecordStore(),
    ipam: new FakeEndpoints(),
    clock: new FakeClock(),
  };
  const node = await startNode(lasting);
  const attachPod = async (name: string, host = 7) => {
    const network = podNetwork(name, { addresses: [address(`10.65.0.${host}`)] });
    lasting.kernel.addNamespace(network.netns);
    const identity = await lasting.kernel.identify(network.netns);
    const { addresses } = lasting.ipam.allocate(network, { bootId: BOOT.id, inode: identity!.inode });
    const allocation = { addresses, nodeName: NODE_NAME, pod: undefined, isBound: true };
    await node.dataplane.attach(network, never(), allocation);
    return network;
  };
  const advance = (durationMs: number) => lasting.clock.sleep(durationMs, never());
  /** Two checks for dead namespaces, ten seconds apart. */
  const sweepTwice = async () => {
    await node.reconciler.sweep();
    await advance(10_000);
    await node.reconciler.sweep();
  };
  return { ...lasting, lasting, node, attachPod, advance, sweepTwice, restart: () => startNode(lasting) };
}

/** The line in which a start reports its recovery. */
export const summaryOf = (lines: readonly Record<string, unknown>[]) =>
  lines.find(({ msg }) => String(msg).startsWith('attachments found at the start'));

/** A logger that keeps its lines. */
export function recordingLog(): { readonly log: Logger; readonly lines: Record<string, unknown>[] } {
  const lines: Record<string, unknown>[] = [];
  const write = (line: string) => void lines.push(JSON.parse(line));
  return { log: createLogger({ service: 'test', level: 'trace', destination: { write } }), lines };
}

/** The boot in which tests run. */
export const BOOT = { id: '0f8fad5b-d9cb-469f-a165-70867728950e', startedAtMs: 500_000 };

/** A registry whose store must not refuse a record. */
export function testRegistry(
  store: RecordStore = new MemoryRecordStore(),
  clock: Clock = new FakeClock(),
): AttachmentRegistry {
  const onRefused = (_: unknown, failure: unknown): never => {
    throw failure;
  };
  return new AttachmentRegistry({ store, bootId: BOOT.id, clock, onStoreFailure: onRefused });
}

/** The observation of a pod that matches its wanted state. Indexes: 11 on the host, 2 in the pod. */
export function matchingObservation(network: PodNetwork): Observed {
  const wanted: Wanted = wantedState(network);
  return {
    host: matchingEnd(wanted.host, { index: 11, peerIndex: 2 }),
    pod: matchingEnd(wanted.pod, { index: 2, peerIndex: 11 }),
  };
}

function matchingEnd(wanted: WantedEnd, indexes: Pick<ObservedLink, 'index' | 'peerIndex'>): ObservedEnd {
  const { txQueueLength = 1000, queueCount = 2 } = wanted.link;
  const queues = { txQueueLength, queueCount };
  return {
    link: { ...wanted.link, ...queues, ...indexes, kind: 'veth', alias: wanted.alias ?? null, up: true, running: true },
    qdisc: wanted.bucket && { kind: 'tbf', bucket: { ...wanted.bucket, bucketTicks: bucketTicks(wanted.bucket) } },
    addresses: wanted.addresses,
    routes: wanted.routes.map((route): ObservedRoute => {
      return { ...route, deviceAlias: wanted.alias ?? null, unicast: true };
    }),
    rules: wanted.rules,
    hasEarlierLink: false,
    neighbours: wanted.neighbours.map(({ address, mac }) => ({ address, mac, permanent: true })),
    sysctls: new Map(wanted.sysctls.map(({ key, value }) => [keyText(key), value])),
  };
}

/** One end with some parts replaced; parts of the link by themselves. */
export function withChanges(
  end: ObservedEnd,
  change: Partial<ObservedEnd>,
  link: Partial<ObservedLink> = {},
): ObservedEnd {
  if (!end.link) throw new Error('the end to change must have a link');
  return { ...end, link: { ...end.link, ...link }, ...change };
}

export function address(text: string): Address {
  const parsed = parseAddress(text);
  if (!parsed) throw new Error(`${text} is not an address`);
  return parsed;
}

export const DEFAULT_ROUTE = { family: 4, value: 0n, length: 0 } as const;
const DEFAULT_ROUTE_IPV6 = { family: 6, value: 0n, length: 0 } as const;

/** Addresses and routes of pods of IPv4, of IPv6 and of both families. */
export const BY_FAMILY = {
  IPv4: { addresses: [address('10.65.0.7')], routes: [DEFAULT_ROUTE] },
  IPv6: { addresses: [address('fd65::7')], routes: [DEFAULT_ROUTE_IPV6] },
  'both families': {
    addresses: [address('10.65.0.7'), address('fd65::7')],
    routes: [DEFAULT_ROUTE, DEFAULT_ROUTE_IPV6],
  },
} as const satisfies Record<string, Partial<PodNetwork>>;

/** A pod as requested by a caller, with names derived as the plugin derives them. */
export function podNetwork(containerId: string, rest: Partial<PodNetwork> = {}): PodNetwork {
  const attachment = { network: 'net', containerId, interfaceName: 'eth0' };
  return {
    attachment,
    netns: `/run/netns/${containerId}`,
    hostInterfaceName: hostInterfaceName(attachment),
    mac: podMac(attachment),
    addresses: [address('10.65.0.7')],
    routes: [DEFAULT_ROUTE],
    mtuBytes: 1500,
    ipForwarding: false,
    sourcePrefixes: [],
    hostPorts: [],
    txQueueLength: undefined,
    queueCount: undefined,
    ...rest,
  };
}

/** A host port of port 80 of a pod, by TCP and at any address unless `rest` has another one. */
export function hostPort(port: number, rest: Partial<HostPort> = {}): HostPort {
  return { protocol: 'tcp', hostPort: port, podPort: 80, hostAddress: undefined, ...rest };
}

/** Another interface of a pod, `net1`, on another network, of both families. */
export function secondInterface(pod: string): PodNetwork {
  return podNetwork(pod, {
    ...BY_FAMILY['both families'],
    addresses: [address('10.66.0.7'), address('fd66::7')],
    attachment: { ...podNetwork(pod).attachment, interfaceName: 'net1' },
    hostInterfaceName: 'podwsecond',
    mac: '02:00:00:00:01:01',
  });
}
