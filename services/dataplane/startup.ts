import { existsSync } from 'node:fs';

import { Failure } from '@podwire/shared/failure/failure';
import type { Peer } from '@podwire/shared/rpc/client';
import { releaseService } from '@podwire/shared/common-services/release-service';
import type { RpcService } from '@podwire/shared/rpc/server';
import type { Unary } from '@podwire/shared/rpc/unary';
import type { Clock } from '@podwire/shared/runtime/clock';
import type { Logger } from '@podwire/shared/runtime/log';
import type { ProcessRelease } from '@podwire/shared/runtime/process-release';

import type { Follower, IpamFollower } from './cluster/cluster.js';
import type { Condition } from './conditions/conditions.js';
import type { Config } from './config.js';
import { HostPorts } from './filters/host-ports.js';
import { Masquerader } from './filters/masquerade.js';
import { NeighbourGuard } from './filters/neighbour-guard.js';
import { PortGuard } from './filters/port-guard.js';
import { SourceGuard } from './filters/source-guard.js';
import { TunnelGuard } from './filters/tunnel-guard.js';
import type { ConnectionKernel } from './network-policy/live-connections.js';
import { networkPolicyService } from './policy-drops/drops-rpc.js';
import { PolicyDrops } from './policy-drops/drops.js';
import { PolicyFilter } from './network-policy/policy-filter.js';
import { PolicyStore } from './network-policy/policy-store.js';
import { PolicyView } from './network-policy/policy-view.js';
import { POLICY_TABLE } from './network-policy/rules.js';
import type { Nft, PacketLog } from './nft/nft.js';
import { TableReconciler } from './nft/table-reconciler.js';
import { ClusterWatch } from './node/cluster-watch.js';
import { ClusterEvents } from './node/events.js';
import { connectedSubnets } from './node/address-method.js';
import type { LinkSource, NodeNetwork, NodeNetworkState } from './node/links.js';
import { nodeService, type NodeOverview } from './node/node-rpc.js';
import { PodMtu } from './node/pod-mtu.js';
import { Registration, type NodeNameClaim, type RegisteredAddresses } from './node/registration.js';
import { keepAcceptingAdvertisements } from './node/router-advertisements.js';
import { TunnelAddresses } from './node/tunnel-addresses.js';
import { cniService, type CniDependencies } from './pods/calico-cni-rpc.js';
import type { Events } from './pods/events.js';
import type { GarbageCollector } from './pods/garbage.js';
import type { Kernel, PodFilter } from './pods/kernel.js';
import { podService, type RecordLookup } from './pods/pods-rpc.js';
import type { PodWiring } from './pods/pods.js';
import { filteredPod, type AttachmentRecord, type RecordState } from './records/record.js';

/** A part that follows the cluster's state, and reports conditions. */
export interface ReportingFollower extends Follower {
  conditions(): readonly Condition[];
}

interface NodeSideOptions {
  readonly config: Config;
  readonly deps: { readonly log: Logger; readonly clock: Clock; readonly random: () => number };
  /** Closed at the end. */
  readonly network: NodeNetwork;
  readonly name: NodeNameClaim;
  /** Called with each reading of the node's network. Must not throw. */
  readonly onRead?: ((state: NodeNetworkState) => void) | undefined;
  /** Owned by the caller, who closes it after the node side has stopped. */
  readonly ipam: Peer;
  /** Followers called after the node side's own, and stopped with them; they reconcile the kernel. */
  readonly kernelFollowers?: readonly ReportingFollower[];
}

/**
 * This node's part in the cluster: its registration in IPAM, the watch of the cluster, and the followers of the watch. It does not
 * delay pods: it starts after their service, and waits for IPAM in the background.
 */
export class NodeSide {
  readonly #network: NodeNetwork;
  readonly #registration: Registration;
  readonly #followers: readonly IpamFollower[];
  readonly #kernelFollowers: readonly ReportingFollower[];
  readonly #cluster: ClusterWatch;

  constructor({ config, deps, network, name, onRead = () => undefined, ipam, kernelFollowers = [] }: NodeSideOptions) {
    const { log, clock, random } = deps;
    const { nodeName: self, nodeIpv4, nodeIpv6 } = config;
    const events = new ClusterEvents(log);
    const parts = { self, ipam, events, clock, random };
    this.#network = network;
    this.#registration = new Registration({ ...parts, network, name, onRead, methods: { 4: nodeIpv4, 6: nodeIpv6 } });
    // The followers, in the order in which they are called.
    this.#followers = [this.#registration, new TunnelAddresses(parts), ...kernelFollowers];
    this.#kernelFollowers = kernelFollowers;
    this.#cluster = new ClusterWatch({ ...parts, followers: this.#followers });
  }

  /** Starts; call once. */
  start(): void {
    this.#registration.start();
    this.#cluster.start();
  }

  /** This node's addresses in IPAM; undefined: it is not registered. */
  get registered(): RegisteredAddresses | undefined {
    return this.#registration.registered;
  }

  /** Conditions of the node side. */
  conditions(): readonly Condition[] {
    const conditions = this.#kernelFollowers.flatMap((follower) => follower.conditions());
    return [...this.#cluster.conditions(), ...this.#registration.conditions(), ...conditions];
  }

  /** Leaves kernel and IPAM unchanged: pods keep their network while the service is down. Idempotent. */
  async stop(): Promise<void> {
    await this.#cluster.stop();
    await Promise.all(this.#followers.map((follower) => follower.stop()));
    await this.#network.close();
  }
}

interface PodEnvironmentOptions {
  readonly config: Config;
  /** Closed at the end. */
  readonly links: LinkSource;
  readonly nft: Nft;
  readonly connections: ConnectionKernel;
  readonly packets: PacketLog;
  readonly kernel: Pick<Kernel, 'deletePortFlows'>;
  readonly events: Events;
  readonly clock: Clock;
  /** Uniform in [0, 1). */
  readonly random: () => number;
}

/** The enforcement of network policies; its view is filled by the follower of podwire-ipam. */
interface PolicyPart {
  readonly view: PolicyView;
  readonly filter: PolicyFilter;
  readonly drops: PolicyDrops;
}

/** Node-wide functions for pods: their MTU, allowed source addresses, policies, host ports, guards and masquerading. */
export class PodEnvironment {
  readonly #options: PodEnvironmentOptions;
  readonly #guard: SourceGuard;
  readonly #hostPorts: HostPorts;
  readonly #neighbourGuard: NeighbourGuard;
  readonly #mtu: PodMtu;
  readonly #tunnelGuard: TunnelGuard;
  readonly #portGuard: PortGuard;
  readonly #masquerader: Masquerader;
  readonly #policyStore: PolicyStore;
  /** Deletes the table while policies are off: it drops the packets of pods that it does not know. */
  readonly #policyTable: TableReconciler;
  /** Undefined: network policies are not enforced. */
  readonly policies: PolicyPart | undefined;

  constructor(options: PodEnvironmentOptions) {
    const { config, kernel, links, nft, events, clock, random } = options;
    this.#options = options;
    this.#guard = new SourceGuard({ nft, events, clock, random });
    this.#hostPorts = new HostPorts({ kernel, nft, events, clock, random });
    const podInterfaces = () => this.podInterfaces;
    this.#neighbourGuard = new NeighbourGuard({ nft, events, clock, random, podInterfaces });
    this.#tunnelGuard = new TunnelGuard({ nft, events, clock, random });
    this.#portGuard = new PortGuard({ nft, events, clock, random, ports: config.blockedPorts });
    const settings = { exclude: config.natExclude, interfaces: config.natInterfaces, ports: config.natPorts };
    this.#masquerader = new Masquerader({ nft, events, clock, random, settings });
    this.#policyStore = new PolicyStore({ recordsDirectory: config.recordsDirectory, clock, events });
    this.#policyTable = new TableReconciler({ nft, events, clock, random, table: POLICY_TABLE });
    this.policies = config.networkPolicies ? policyPart(options, this.#policyStore) : undefined;
    const [fixedBytes, patterns] = [config.mtuBytes, config.mtuInterfaces];
    this.#mtu = new PodMtu({ links, clock, random, events, fixedBytes, patterns });
  }

  /** Filters in the order of their installation. */
  get podFilters(): readonly PodFilter[] {
    return [this.#guard, ...(this.policies ? [this.policies.filter] : []), this.#hostPorts];
  }

  /** Interfaces of pods: names, or prefixes with a trailing `*`. */
  get podInterfaces(): readonly string[] {
    return this.#guard.interfaces;
  }

  /** Default MTU of pods in bytes. */
  get mtuBytes(): number {
    return this.#mtu.mtuBytes;
  }

  /** Followers of the cluster, in the order of their calls: the node accepts another node's packets before it has a route to it. */
  get followers(): readonly ReportingFollower[] {
    return [this.#tunnelGuard, this.#portGuard, this.#masquerader, this.#mtu];
  }

  /**
   * Starts before pods are wired: reads the node's links, and guards existing pods. Failures are reported and retried.
   * @param records - of existing and of dead pods
   */
  async start(records: readonly AttachmentRecord[]): Promise<void> {
    const { events, links, config } = this.#options;
    // The later one of two records with one interface owns it.
    const alive = records.filter(({ state }) => state !== 'dead').toSorted((a, b) => a.createdAtMs - b.createdAtMs);
    const prefixes = alive.map(({ network }) => [network.hostInterfaceName, network.sourcePrefixes] as const);
    // The guard reports its failures. Pods that need it wait for it.
    this.#guard.start(new Map(prefixes)).catch(() => undefined);
    const inState = (wanted: RecordState) => alive.filter(({ state }) => state === wanted).map(filteredPod);
    this.#hostPorts.start(inState('attached'), inState('detaching')).catch(() => undefined);
    if (!this.policies) this.#policyStore.remove();
    const policies = this.policies?.filter.start(alive.map(filteredPod)) ?? this.#policyTable.setWanted('absent');
    policies.catch(() => undefined);
    const withoutMtu = alive.filter(({ network }) => network.mtuBytes === undefined);
    await this.#mtu.start(withoutMtu.map(({ network }) => network.hostInterfaceName));
    try {
      // This must precede the activation of forwarding.
      events.advertisementsKept(await keepAcceptingAdvertisements(links, config.mtuInterfaces));
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      events.advertisementsUnknown(error);
    }
  }

  /** Adds a listener for changes of the default MTU of pods. It must not throw. */
  onMtuChange(listener: () => void): void {
    this.#mtu.onChange(listener);
  }

  /** Takes a reading of the node's network. */
  nodeRead(state: NodeNetworkState): void {
    this.#neighbourGuard.setConnected(connectedSubnets(state));
  }

  conditions(): readonly Condition[] {
    const parts = [
      this.#guard,
      this.#hostPorts,
      this.#neighbourGuard,
      ...(this.policies ? [this.policies.filter] : []),
    ];
    return parts.flatMap((part) => part.conditions());
  }

  /** Leaves everything in force. The cluster watch stops the followers. */
  async stop(): Promise<void> {
    const parts = [this.#guard, this.#hostPorts, this.#neighbourGuard, this.#policyTable];
    await Promise.all(parts.map((part) => part.stop()));
    await this.policies?.drops.stop();
    await this.policies?.filter.stop();
    await Promise.all(this.followers.map((follower) => follower.stop()));
    await this.#options.links.close();
  }
}

/** kube-proxy in mode ipvs gives it the addresses of Services. */
const IPVS_INTERFACE = '/sys/class/net/kube-ipvs0';

function policyPart(options: PodEnvironmentOptions, store: PolicyStore): PolicyPart {
  const { connections: kernel, packets, nft, events, clock, random } = options;
  const view = new PolicyView();
  const usesIpvs = () => existsSync(IPVS_INTERFACE);
  const filter = new PolicyFilter({ view, store, kernel, usesIpvs, nft, events, clock, random });
  return { view, filter, drops: new PolicyDrops({ packets, filter, view, events, clock, random }) };
}

/** Dependencies of the RPC methods. */
export interface ServedParts extends CniDependencies {
  readonly dataplane: PodWiring;
  readonly garbage: GarbageCollector;
  readonly overview: () => NodeOverview;
  readonly recorded: RecordLookup;
  readonly release: ProcessRelease;
  /** Undefined: network policies are not enforced. */
  readonly drops: PolicyDrops | undefined;
}

/** Every gRPC method that the dataplane serves. */
export function dataplaneServices(parts: ServedParts, unary: Unary): readonly RpcService[] {
  return [
    podService(parts, unary),
    nodeService(parts.overview, unary),
    networkPolicyService(parts.drops, unary),
    cniService(parts, unary),
    releaseService(parts.release, unary),
  ];
}
