import type { GetNodeStatusResponse } from '@podwire/proto/podwire/dataplane/v1/node';
import type { Peer } from '@podwire/shared/rpc/client';
import type { RecordedAllocation } from '@podwire/shared/attachment/allocation';
import { RpcServer, type RpcService } from '@podwire/shared/rpc/server';
import type { Streaming } from '@podwire/shared/rpc/streaming';
import type { Unary } from '@podwire/shared/rpc/unary';
import type { Clock } from '@podwire/shared/runtime/clock';
import type { Running } from '@podwire/shared/runtime/lifecycle';
import type { Logger } from '@podwire/shared/runtime/log';
import { readProcessRelease } from '@podwire/shared/runtime/process-release';
import { observeReadiness } from '@podwire/shared/telemetry/instruments';

import { BirdEvents } from './bird/bird-events.js';
import { Bird } from './bird/bird.js';
import type { PeerPlan } from './bird/peers-file.js';
import { birdSettings, readPeerPlan } from './bird/settings.js';
import { canWirePods, distinctConditions, observeConditions, type Condition } from './conditions/conditions.js';
import type { Config } from './config.js';
import { ForwardPath } from './filters/forward-path.js';
import type { ConnectionKernel } from './network-policy/live-connections.js';
import type { Nft, PacketLog } from './nft/nft.js';
import { PolicyClient } from './network-policy/policy-client.js';
import { NetlinkConnections } from './kernel/connections.js';
import { NetlinkLinks } from './kernel/links.js';
import { NetlinkNft } from './kernel/netlink-nft.js';
import { NetlinkPacketLog } from './kernel/packet-log.js';
import { ProgramNft } from './nft/nft-program.js';
import { NodeNetlinkKernel } from './kernel/node-kernel.js';
import { NodeMonitor } from './kernel/node-monitor.js';
import { NetlinkNodeNetwork } from './kernel/node-network.js';
import { NetlinkKernel } from './kernel/pod-kernel.js';
import { useProcDirectory } from './kernel/proc-directory.js';
import type { NodeAddressHooks, OpenNodeAddresses } from './node-addresses.js';
import type { LinkSource, NodeNetwork, NodeNetworkState } from './node/links.js';
import { statusMessage, type NodeOverview } from './node/node-rpc.js';
import { NodeSysctls, type SettingsCheck, type SettingsRequirements } from './node/sysctls.js';
import { AttachmentEvents, Events } from './pods/events.js';
import { GarbageCollector } from './pods/garbage.js';
import type { Kernel } from './pods/kernel.js';
import { PodWiring } from './pods/pods.js';
import { DirectoryRecordStore } from './records/record-store.js';
import type { AttachmentRecord } from './records/record.js';
import { AttachmentRegistry } from './records/registry.js';
import { TABLES } from './removal.js';
import type { Boot } from '@podwire/shared/runtime/boot';
import { AttachmentReconciler } from './repair/reconciler.js';
import { observeRoutes, ReconcileEvents } from './routes/events.js';
import type { NodeKernel } from './routes/kernel.js';
import { RoutePlanner } from './routes/planner.js';
import { RouteReconciler } from './routes/reconciler.js';
import { VXLAN_DEVICE } from './routes/wanted.js';
import { dataplaneServices, NodeSide, PodEnvironment, type ReportingFollower, type ServedParts } from './startup.js';
import { DEFAULT_MTU_BYTES } from './wiring/network.js';
import { familiesOf } from '@podwire/shared/net/address';

/** The service's dependencies on its process. */
export interface ServiceDeps {
  readonly log: Logger;
  readonly clock: Clock;
  /** Uniform in [0, 1). */
  readonly random: () => number;
  /** The current boot of the machine. */
  readonly boot: Boot;
  /** podwire-ipam. It need not run yet. */
  readonly ipam: Peer;
  /** Opens a further connection to podwire-ipam. */
  readonly connectIpam: () => Peer;
  /** Opens the part that has podwire-ipam's addresses of this node. */
  readonly openAddresses: OpenNodeAddresses;
  /** Makes further gRPC services of the process. */
  readonly services?: (parts: FurtherServiceParts) => readonly RpcService[];
}

/** The parts that services of the process besides the dataplane's use. */
export interface FurtherServiceParts {
  readonly unary: Unary;
  readonly streaming: Streaming;
  /** The node's state, as GetNodeStatus returns it. */
  readonly status: () => GetNodeStatusResponse;
  readonly records: () => readonly AttachmentRecord[];
}

/** A running service. */
export interface RunningService extends Running {
  /** Listening addresses, with the actual ports for port 0. */
  readonly addresses: readonly string[];
  /** Wiring of pods for callers in this process. */
  readonly dataplane: PodWiring;
  readonly garbage: GarbageCollector;
  /** The node's state, as GetNodeStatus returns it. */
  readonly status: () => GetNodeStatusResponse;
  /** Whether pods can be wired, as the gRPC health status says. */
  readonly isServing: () => boolean;
}

/**
 * Reads and checks what the service uses besides its settings.
 * @returns the BGP topology; undefined: BIRD is disabled
 * @throws Failure INVALID_SETTINGS for the peers file or the directory of proc
 */
export async function prepareService(config: Config): Promise<PeerPlan | undefined> {
  const peerPlan = await readPeerPlan(config);
  await useProcDirectory(config.procDirectory);
  return peerPlan;
}

/**
 * Starts the dataplane on this machine's kernel. No other process uses its records, its sockets and the kernel's objects of
 * Podwire.
 * @param peerPlan - of {@link prepareService}
 * @throws Failure as {@link serve}, or KERNEL_REFUSED when the kernel cannot be queried
 */
export async function startService(
  config: Config,
  deps: ServiceDeps,
  peerPlan: PeerPlan | undefined,
): Promise<RunningService> {
  const opened: { close(): Promise<void> }[] = [];
  const open = async <Part extends { close(): Promise<void> }>(opening: Promise<Part>): Promise<Part> => {
    const part = await opening;
    opened.push(part);
    return part;
  };
  try {
    const kernel = await open(NetlinkKernel.open());
    const monitor = new NodeMonitor();
    const network = await open(NetlinkNodeNetwork.open(monitor));
    const nodeKernel = await open(NodeNetlinkKernel.open(monitor));
    const links = await open(NetlinkLinks.open(monitor));
    const nft = await open(Promise.resolve(new NetlinkNft(new ProgramNft(), TABLES)));
    const connections = await open(Promise.resolve(new NetlinkConnections()));
    const packets = new NetlinkPacketLog(deps.clock);
    const nodeSide = { network, kernel: nodeKernel, links, nft, connections, packets, peerPlan };
    return await serve(kernel, { config, deps, nodeSide });
  } catch (error) {
    await Promise.all(opened.map((part) => part.close()));
    throw error;
  }
}

export interface ServeOptions {
  readonly config: Config;
  readonly deps: ServiceDeps;
  /** The node's side of the kernel, closed at the end; without it pods are served, and the node belongs to no cluster. */
  readonly nodeSide?: NodeSideKernel;
}

/** The kernel interfaces of the node's part in the cluster. */
export interface NodeSideKernel {
  readonly network: NodeNetwork;
  readonly kernel: NodeKernel;
  readonly links: LinkSource;
  readonly nft: Nft;
  readonly connections: ConnectionKernel;
  readonly packets: PacketLog;
  /** BGP topology; undefined: BIRD is disabled. */
  readonly peerPlan: PeerPlan | undefined;
}

/**
 * Serves gRPC in front of a kernel, which it closes at the end. Health checks report serving once the kernel is known to have the
 * features that pods need.
 * @throws Failure KERNEL_UNSUPPORTED, KERNEL_REFUSED, or INVALID_SETTINGS when an address is in use
 */
export async function serve(kernel: Kernel, options: ServeOptions): Promise<RunningService> {
  const { config, deps } = options;
  const { log, clock } = deps;
  const release = await readProcessRelease();
  const environment = createEnvironment(kernel, options);
  const policies = environment?.policies && policyClient(options, environment.policies, () => node.records());
  const node: Node = await openNode(kernel, { ...options, environment, policies });
  const onCheck = ({ poolFamilies }: SettingsCheck): void => {
    if (canWirePods(conditionsOf(parts), poolFamilies)) server.setServing();
    else server.setNotServing();
  };
  const clusterPart = createClusterPart(options, { kernel, node, environment, onCheck });
  const parts = { node, environment, clusterPart, policies };
  const served = { ...node, drops: environment?.policies?.drops, overview: () => overviewOf(config, parts), release };
  const status = (): GetNodeStatusResponse => statusMessage(overviewOf(config, parts));
  const server = new RpcServer({
    addresses: config.listen,
    log,
    clock,
    defaultCallTimeoutMs: config.callTimeoutMs,
    drainTimeoutMs: config.drainTimeoutMs,
    services: (unary, streaming) => [
      ...dataplaneServices(served, unary),
      ...(deps.services?.({ unary, streaming, status, records: node.records }) ?? []),
    ],
  });
  const unobserve = [
    observeReadiness(() => server.isServing),
    observeConditions(() => conditionsOf(parts)),
    observeRoutes(() => clusterPart?.routes.status()),
  ];
  const stop = async (): Promise<void> => {
    for (const end of unobserve) end();
    await Promise.all([server.stop(), node.keeper.stop(), policies?.stop(), clusterPart?.nodeSide.stop()]);
    // Cancelled calls may still be rolling back.
    await node.dataplane.idle();
    await environment?.stop();
    await Promise.all([kernel.close(), options.nodeSide?.kernel.close()]);
  };
  try {
    await environment?.start(node.records());
    const addresses = await server.listen();
    await kernel.probe();
    server.setServing();
    node.keeper.start();
    environment?.onMtuChange(() => node.keeper.checkSoon());
    clusterPart?.nodeSide.start();
    clusterPart?.sysctls.start();
    policies?.start();
    environment?.policies?.drops.start();
    const { dataplane, garbage } = node;
    return { addresses, dataplane, garbage, status, isServing: () => server.isServing, stop };
  } catch (error) {
    await stop();
    throw error;
  }
}

function createEnvironment(kernel: Kernel, { config, deps, nodeSide }: ServeOptions): PodEnvironment | undefined {
  if (!nodeSide) return undefined;
  const { log, clock, random } = deps;
  const { links, nft, connections, packets } = nodeSide;
  const parts = { kernel, links, nft, connections, packets };
  return new PodEnvironment({ config, ...parts, events: new Events(log), clock, random });
}

type PolicyParts = NonNullable<PodEnvironment['policies']>;

/** This node's part in the cluster, with its parts that report status. */
interface ClusterPart {
  readonly nodeSide: NodeSide;
  readonly routes: RouteReconciler;
  readonly bird: Bird | undefined;
  readonly sysctls: NodeSysctls;
}

interface ClusterPartOptions {
  readonly kernel: Kernel;
  readonly node: Node;
  readonly environment: PodEnvironment | undefined;
  readonly onCheck: (check: SettingsCheck) => void;
}

function createClusterPart(
  { config, deps, nodeSide }: ServeOptions,
  { kernel: podKernel, node, environment, onCheck }: ClusterPartOptions,
): ClusterPart | undefined {
  if (!nodeSide) return undefined;
  const { log, clock, random, ipam } = deps;
  const { kernel, network, links, nft, peerPlan } = nodeSide;
  const { keeper } = node;
  const planner = new RoutePlanner();
  const events = new ReconcileEvents(log);
  const onPodInterface = (name: string | undefined, isInterference: boolean): void =>
    keeper.handleLinkChange(name, isInterference);
  const { routing } = config;
  const routes = new RouteReconciler({ kernel, planner, routing, clock, random, events, onPodInterface });
  const settings = peerPlan && birdSettings(config, peerPlan);
  const bird = settings && new Bird({ settings, clock, events: new BirdEvents(log) });
  const sysctls = new NodeSysctls({
    links,
    requirements: () => settingsRequirements({ routes, node }),
    probe: () => podKernel.probe(),
    clock,
    events,
    onCheck: (check) => {
      if (check.hasRepaired) routes.check();
      for (const name of check.changedPods) keeper.repairByHostInterface(name);
      onCheck(check);
    },
  });
  const onRead = environment && ((state: NodeNetworkState) => environment.nodeRead(state));
  // Its owner stops it, after the last call.
  const addresses: ReportingFollower = {
    follow: (view, change) => node.addresses.follow(view, change),
    conditions: () => node.addresses.conditions(),
    stop: () => Promise.resolve(),
  };
  const forwardPath = new ForwardPath({
    nft,
    events: new Events(log),
    clock,
    acceptsFirst: config.firewallAccept,
    podInterfaces: () => environment?.podInterfaces ?? [],
    peerInterface: (pool) => routes.peerInterface(pool),
    uplink: (family) => routes.parents[family],
  });
  const kernelFollowers = [
    ...(environment?.followers ?? []),
    forwardPath,
    routes,
    ...(bird ? [bird] : []),
    sysctls,
    addresses,
  ];
  return {
    nodeSide: new NodeSide({ config, deps, network, name: node.addresses, onRead, ipam, kernelFollowers }),
    routes,
    bird,
    sysctls,
  };
}

function policyClient(
  { config, deps }: ServeOptions,
  policies: PolicyParts,
  records: () => readonly AttachmentRecord[],
): PolicyClient {
  const { log, clock, random, connectIpam: connect } = deps;
  const unbound = () => records().flatMap(({ allocation }) => (allocation?.isBound === false ? [allocation] : []));
  const { nodeName: self, policyWaitMs: waitMs } = config;
  return new PolicyClient({ ...policies, self, connect, unbound, waitMs, events: new Events(log), clock, random });
}

/** The records of pods with a wire. */
function alive(records: readonly AttachmentRecord[]): AttachmentRecord[] {
  return records.filter(({ state }) => state !== 'dead');
}

/** Requirements of existing pods, and of the node's part in the cluster, on the node's settings. */
function settingsRequirements({
  routes,
  node,
}: Pick<OverviewParts, 'node'> & Pick<ClusterPart, 'routes'>): SettingsRequirements {
  const networks = alive(node.records()).map(({ network }) => network);
  return {
    families: familiesOf(networks.flatMap(({ addresses }) => addresses)),
    parents: routes.parents,
    tunnels: routes.tunnels.map(({ name }) => ({ name, family: name === VXLAN_DEVICE[6] ? 6 : 4 })),
    unfiltered: networks
      .filter(({ sourcePrefixes }) => sourcePrefixes.some(({ family }) => family === 4))
      .map(({ hostInterfaceName }) => hostInterfaceName),
  };
}

interface OverviewParts {
  readonly node: Node;
  readonly environment: PodEnvironment | undefined;
  readonly clusterPart: ClusterPart | undefined;
  /** Undefined: network policies are not enforced. */
  readonly policies: PolicyClient | undefined;
}

function overviewOf(config: Config, parts: OverviewParts): NodeOverview {
  const { node, environment, clusterPart } = parts;
  return {
    nodeName: config.nodeName,
    registered: clusterPart?.nodeSide.registered,
    routing: config.routing,
    routes: clusterPart?.routes.status(),
    podMtuBytes: environment?.mtuBytes ?? DEFAULT_MTU_BYTES,
    sessions: clusterPart?.bird?.status().sessions ?? [],
    attachmentCount: alive(node.records()).length,
    podRepairCount: node.dataplane.repairCount,
    conditions: conditionsOf(parts),
    leases: node.addresses.counts(),
  };
}

function conditionsOf({ node, environment, clusterPart, policies }: OverviewParts): readonly Condition[] {
  const lists = [
    clusterPart?.nodeSide.conditions(),
    policies?.conditions(),
    environment?.conditions(),
    node.keeper.conditions(),
  ];
  return distinctConditions(lists.flatMap((conditions) => conditions ?? []));
}

/** The parts that serve and repair this node's pods. */
interface Node extends Omit<ServedParts, 'overview' | 'release' | 'drops'> {
  readonly records: () => readonly AttachmentRecord[];
  readonly keeper: AttachmentReconciler;
  readonly addresses: NodeAddressHooks;
}

interface OpenOptions extends ServeOptions, Pick<OverviewParts, 'environment' | 'policies'> {}

/** Loads the state of the previous process before the first call. @throws Failure STATE_IO */
async function openNode(kernel: Kernel, { config, deps, environment, policies }: OpenOptions): Promise<Node> {
  const { log, clock, random, boot, openAddresses } = deps;
  const events = new AttachmentEvents(log);
  const registry = new AttachmentRegistry({
    store: new DirectoryRecordStore(config.recordsDirectory),
    bootId: boot.id,
    clock,
    onStoreFailure: (attachment, failure) => events.recordNotStored(attachment, failure),
  });
  const { unreadable, fromEarlierBoots } = await registry.load();
  for (const record of unreadable) events.recordUnreadable(record);
  for (const { network } of fromEarlierBoots) events.earlierRecordDropped(network.attachment);

  const addresses = await openAddresses({ registry, links: () => kernel.attachedLinks() });
  const onUnsettled = (record: AttachmentRecord): void => addresses.settle(record);
  const podEvents = new Events(log);
  const podOptions = environment && { mtu: () => environment.mtuBytes, filters: environment.podFilters };
  const announce = policies && ((allocation: RecordedAllocation) => policies.announce(allocation));
  const wiring = { kernel, registry, events: podEvents, onUnsettled, ...podOptions };
  const dataplane = new PodWiring({ ...wiring, ...(announce && { announce }) });
  const parts = { kernel, dataplane, registry, events, clock, onUnsettled };
  const keeper = new AttachmentReconciler({
    ...parts,
    endpoint: (attachment, signal) => addresses.endpoint(attachment, signal),
    random,
  });
  const refused: Node['refused'] = (method, error) => podEvents.cniCallFailed(method, error);
  const records = () => registry.all();
  const recorded: Node['recorded'] = (attachment) => registry.get(attachment);
  return { dataplane, garbage: new GarbageCollector(parts), keeper, addresses, refused, records, recorded };
}
