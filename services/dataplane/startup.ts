import { NodeServiceService, type NodeServiceServer } from '@podwire/proto/podwire/dataplane/v1/node';
import { PodServiceService, type PodServiceServer } from '@podwire/proto/podwire/dataplane/v1/pod';
import { Failure } from '@podwire/shared/failure/failure';
import type { Peer } from '@podwire/shared/rpc/client';
import type { RpcService } from '@podwire/shared/rpc/server';
import type { Unary } from '@podwire/shared/rpc/unary';
import type { Clock } from '@podwire/shared/runtime/clock';
import type { Logger } from '@podwire/shared/runtime/log';

import type { Follower, KnownFollower } from './cluster/cluster.js';
import type { Condition } from './conditions/conditions.js';
import type { Config } from './config.js';
import { Masquerader } from './filters/masquerade.js';
import { SourceGuard } from './filters/source-guard.js';
import type { Nft } from './filters/table.js';
import { TunnelGuard } from './filters/tunnel-guard.js';
import { IpamCluster } from './node/cluster-watch.js';
import { ClusterEvents } from './node/events.js';
import type { LinkSource, NodeNetwork } from './node/links.js';
import { getNodeStatus, type NodeOverview } from './node/node-rpc.js';
import { PodMtu } from './node/pod-mtu.js';
import { Registration, type RegisteredAddresses } from './node/registration.js';
import { keepFollowingAdvertisements } from './node/router-advertisements.js';
import { TunnelAddresses } from './node/tunnel-addresses.js';
import { cniService, type CniParts } from './pods/calico-cni-rpc.js';
import type { Events } from './pods/events.js';
import type { GarbageCollector } from './pods/garbage.js';
import type { PodGuard } from './pods/kernel.js';
import { attachPod, checkPod, collectGarbage, detachPod, listPods, repairPod, type Recorded } from './pods/pods-rpc.js';
import type { Dataplane } from './pods/pods.js';
import type { AttachmentRecord } from './pods/record.js';

/** Something that is kept as the cluster's state asks for, and tells what it cannot have. */
interface TellingFollower extends Follower {
  conditions(): readonly Condition[];
}

interface NodeSideOptions {
  readonly config: Config;
  readonly surroundings: { readonly log: Logger; readonly clock: Clock; readonly random: () => number };
  /** Closed in the end. */
  readonly network: NodeNetwork;
  /** The caller's, who closes it after the node side has stopped. */
  readonly ipam: Peer;
  /** Told of the cluster after the node side's own followers, and stopped with them; they keep the kernel as it asks for. */
  readonly kernelFollowers?: readonly TellingFollower[];
}

/**
 * This node as a part of the cluster: registered in IPAM, told of the others, and whatever follows from that. Nothing of it holds
 * up pods: it starts behind them, and waits for IPAM by itself.
 */
export class NodeSide {
  readonly #network: NodeNetwork;
  readonly #registration: Registration;
  readonly #followers: readonly KnownFollower[];
  readonly #kernelFollowers: readonly TellingFollower[];
  readonly #cluster: IpamCluster;

  constructor({ config, surroundings, network, ipam, kernelFollowers = [] }: NodeSideOptions) {
    const { log, clock, random } = surroundings;
    const { nodeName: self, nodeIpv4, nodeIpv6 } = config;
    const events = new ClusterEvents(log);
    const parts = { self, ipam, events, clock, random };
    this.#network = network;
    this.#registration = new Registration({ ...parts, network, methods: { 4: nodeIpv4, 6: nodeIpv6 } });
    // What is kept as the cluster's state asks for, in the order in which it is told of a change.
    this.#followers = [this.#registration, new TunnelAddresses(parts), ...kernelFollowers];
    this.#kernelFollowers = kernelFollowers;
    this.#cluster = new IpamCluster({ ...parts, followers: this.#followers });
  }

  /** Begins; once. */
  start(): void {
    this.#registration.start();
    this.#cluster.start();
  }

  /** This node's addresses in IPAM; undefined: it is not registered. */
  get registered(): RegisteredAddresses | undefined {
    return this.#registration.registered;
  }

  /** What an operator should know of it. */
  conditions(): readonly Condition[] {
    const kept = this.#kernelFollowers.flatMap((follower) => follower.conditions());
    return [...this.#cluster.conditions(), ...this.#registration.conditions(), ...kept];
  }

  /** Leaves everything in the kernel and at IPAM as it is: pods keep their network while the service is away. Idempotent. */
  async stop(): Promise<void> {
    await this.#cluster.stop();
    await Promise.all(this.#followers.map((follower) => follower.stop()));
    await this.#network.close();
  }
}

interface PodEnvironmentOptions {
  readonly config: Config;
  /** Closed in the end. */
  readonly links: LinkSource;
  readonly nft: Nft;
  readonly events: Events;
  readonly clock: Clock;
  /** From 0 (included) to 1 (excluded). */
  readonly random: () => number;
}

/** What the node does for all of its pods: the MTU they get, the addresses they may send from, and the one they have outside. */
export class PodEnvironment {
  readonly #options: PodEnvironmentOptions;
  readonly #guard: SourceGuard;
  readonly #mtu: PodMtu;
  readonly #tunnelGuard: TunnelGuard;
  readonly #masquerader: Masquerader;

  constructor(options: PodEnvironmentOptions) {
    const { config, links, nft, events, clock, random } = options;
    this.#options = options;
    this.#guard = new SourceGuard({ nft, events, clock, random });
    this.#tunnelGuard = new TunnelGuard({ nft, events, clock, random });
    const settings = { exclude: config.natExclude, interfaces: config.natInterfaces, ports: config.natPorts };
    this.#masquerader = new Masquerader({ nft, events, clock, random, settings });
    const [fixedBytes, patterns] = [config.mtuBytes, config.mtuInterfaces];
    this.#mtu = new PodMtu({ links, clock, random, events, fixedBytes, patterns });
  }

  get guard(): PodGuard {
    return this.#guard;
  }

  /** MTU of pods that ask for none, in bytes. */
  get mtuBytes(): number {
    return this.#mtu.mtuBytes;
  }

  /** What follows the cluster's pools and nodes. A node's packets are let in before there is a route to it. */
  get followers(): readonly TellingFollower[] {
    return [this.#tunnelGuard, this.#masquerader, this.#mtu];
  }

  /**
   * Begins, before pods are wired: looks at the node's links, and guards the pods that are there. What fails is told and tried again.
   * @param records - of the pods that are there, and of the dead
   */
  async start(records: readonly AttachmentRecord[]): Promise<void> {
    const { events, links, config } = this.#options;
    // Of two with one interface, the one that was wired last has it.
    const alive = records.filter(({ state }) => state !== 'dead').toSorted((a, b) => a.createdAtMs - b.createdAtMs);
    const prefixes = alive.map(({ network }) => [network.hostInterfaceName, network.sourcePrefixes] as const);
    // The guard tells of its failures; pods that need it wait for it.
    this.#guard.start(new Map(prefixes)).catch(() => undefined);
    const follow = alive.filter(({ network }) => network.mtuBytes === undefined);
    await this.#mtu.start(follow.map(({ network }) => network.hostInterfaceName));
    try {
      // Nothing of the service has switched forwarding on yet.
      events.advertisementsKept(await keepFollowingAdvertisements(links, config.mtuInterfaces));
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      events.advertisementsUnknown(error);
    }
  }

  /** Tells from here on when pods that ask for no MTU are to have another. The listener must not throw. */
  onMtuChange(listener: () => void): void {
    this.#mtu.onChange(listener);
  }

  conditions(): readonly Condition[] {
    return this.#guard.conditions();
  }

  /** Leaves everything in force. The followers are stopped by those who tell them. */
  async stop(): Promise<void> {
    await this.#guard.stop();
    await Promise.all(this.followers.map((follower) => follower.stop()));
    await this.#options.links.close();
  }
}

/** What the methods act on. */
export interface ServedParts extends CniParts {
  readonly dataplane: Dataplane;
  readonly garbage: GarbageCollector;
  readonly overview: () => NodeOverview;
  readonly recorded: Recorded;
}

/** Every method that podwire-dataplane serves. */
export function dataplaneServices(parts: ServedParts, unary: Unary): readonly RpcService[] {
  const { dataplane, garbage, overview, recorded } = parts;
  const node: NodeServiceServer = { getNodeStatus: unary(NodeServiceService.getNodeStatus, getNodeStatus(overview)) };
  const pods: PodServiceServer = {
    attachPod: unary(PodServiceService.attachPod, attachPod(dataplane)),
    detachPod: unary(PodServiceService.detachPod, detachPod(dataplane)),
    checkPod: unary(PodServiceService.checkPod, checkPod(dataplane, recorded)),
    repairPod: unary(PodServiceService.repairPod, repairPod(dataplane, recorded)),
    collectGarbage: unary(PodServiceService.collectGarbage, collectGarbage(garbage)),
    listPods: unary(PodServiceService.listPods, listPods(dataplane)),
  };
  return [
    { name: 'podwire.dataplane.v1.PodService', definition: PodServiceService, implementation: pods },
    { name: 'podwire.dataplane.v1.NodeService', definition: NodeServiceService, implementation: node },
    cniService(parts, unary),
  ];
}
