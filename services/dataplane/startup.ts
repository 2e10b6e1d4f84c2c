import type { Peer } from '@podwire/shared/rpc/client';
import type { Clock } from '@podwire/shared/runtime/clock';
import type { Logger } from '@podwire/shared/runtime/log';

import type { Follower } from './cluster/cluster.js';
import type { KnownFollower } from './cluster/known-cluster.js';
import type { Config } from './config.js';
import type { NodeNetwork } from './kernel/node-network-interface.js';
import { IpamCluster } from './node/cluster-watch.js';
import { ClusterEvents } from './node/events.js';
import { Registration, type RegisteredAddresses } from './node/registration.js';
import { TunnelAddresses } from './node/tunnel-addresses.js';
import type { Condition } from './routes/wanted.js';

/** Something that is kept as the cluster's state asks for, and tells what it cannot have. */
export interface TellingFollower extends Follower {
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
