import { metrics } from '@opentelemetry/api';
import type { Failure } from '@podwire/shared/failure/failure';
import type { Logger } from '@podwire/shared/runtime/log';

/** How the watch of IPAM stands: not yet answered, answered last time it was asked, or cut off since. */
export type Connection = 'connecting' | 'connected' | 'lost';

/** What the cluster is, in numbers. */
interface ClusterSize {
  readonly nodes: number;
  readonly pools: number;
  readonly blocks: number;
  /** Objects that make no sense. */
  readonly skipped: number;
}

/** What is observed when metrics are read. */
interface ClusterState extends ClusterSize {
  readonly connected: boolean;
}

/** What IPAM was told of the node. */
interface RegisteredNode {
  readonly name: string;
  /** With the length of its subnet; empty for none. */
  readonly ipv4Address: string;
  readonly ipv6Address: string;
}

/** What happened between IPAM and this node, told once it is done: a counter and a log line. */
export class ClusterEvents {
  readonly #log: Logger;
  readonly #meter = metrics.getMeter('podwire-dataplane');
  readonly #losses = this.#counter('podwire.dataplane.ipam.losses', '{loss}', 'How often the watch of IPAM was lost');
  readonly #snapshots = this.#counter('podwire.dataplane.ipam.snapshots', '{snapshot}', 'Snapshots of the cluster');
  readonly #changes = this.#counter('podwire.dataplane.ipam.changes', '{message}', 'Changes of the cluster');
  readonly #skipped = this.#counter('podwire.dataplane.ipam.skipped', '{object}', 'Objects that make no sense');
  readonly #retries = this.#counter('podwire.dataplane.ipam.retries', '{retry}', 'Failed calls of IPAM, by the task');

  constructor(log: Logger) {
    this.#log = log;
  }

  connected(ipam: string): void {
    this.#log.info(`told of the cluster by ${ipam}`);
  }

  /** Told once, when the watch is lost, however often it is tried again. */
  lost(ipam: string, error: unknown): void {
    this.#losses.add(1);
    this.#log.warn(
      { err: error },
      `not told of the cluster any more by ${ipam}; what is known of it stands until it answers`,
    );
  }

  /** The watch cannot be had at all, or not without an end. */
  awaited(ipam: string): void {
    this.#log.warn(`${ipam} does not tell of the cluster yet; pods are served, routes to other nodes stay as they are`);
  }

  /** Another failure while the watch is lost already. */
  stillLost(ipam: string, error: unknown): void {
    this.#log.debug({ err: error }, `${ipam} does not tell of the cluster`);
  }

  snapshot(size: ClusterSize): void {
    this.#snapshots.add(1);
    this.#log.info({ ...size }, `the cluster has ${size.nodes} nodes, ${size.pools} pools and ${size.blocks} blocks`);
  }

  changed(): void {
    this.#changes.add(1);
  }

  objectSkipped(object: string, failure: Failure): void {
    this.#skipped.add(1);
    this.#log.error({ err: failure }, `went on without ${object}, which IPAM tells of in a way that makes no sense`);
  }

  /** A defect of a follower concerns it alone. */
  followerFailed(error: unknown): void {
    this.#log.error({ err: error }, 'a part of the node side did not take over a change of the cluster');
  }

  /** IPAM knows the node as it is. */
  registered({ name, ipv4Address, ipv6Address }: RegisteredNode, created: boolean): void {
    const addresses = [ipv4Address, ipv6Address].filter((text) => text !== '').join(' and ');
    this.#log.info({ created }, `node ${name} is registered with ${addresses}`);
  }

  /** Neighbours were told that an address of the node is at another link or MAC address than before. */
  announced(address: string, link: string): void {
    this.#log.info(`${link} is new as the interface of ${address}: its neighbours are told of its MAC address`);
  }

  /** They go on sending to the earlier MAC address until they find out by themselves. */
  notAnnounced(address: string, error: unknown): void {
    this.#log.warn(
      { err: error },
      `the neighbours of this node could not be told of the new MAC address of ${address}`,
    );
  }

  tunnelAllocated(tunnel: string, address: string): void {
    this.#log.info(`the ${tunnel} tunnel has the address ${address}`);
  }

  tunnelReleased(tunnel: string, addresses: readonly string[]): void {
    this.#log.info(
      `the ${tunnel} tunnel gave back ${addresses.join(', ')}: no pool of which this node has pods asks for it any more`,
    );
  }

  /** The kernel announces no changes until that is tried again; they are looked for now and then. */
  notTold(objects: string, error: unknown, retryInMs: number): void {
    const fields = { err: error, retry_in_ms: Math.round(retryInMs) };
    this.#log.warn(fields, `changes of ${objects} are not announced by the kernel; trying again`);
  }

  /** @param task - what is tried again after the wait */
  retried(task: string, error: unknown, retryInMs: number): void {
    this.#retries.add(1, { task });
    this.#log.warn({ err: error, retry_in_ms: Math.round(retryInMs) }, `could not ${task}; trying again`);
  }

  /** Reports the state whenever metrics are read. @returns what ends that */
  observe(state: () => ClusterState): () => void {
    const gauges = [
      { name: 'podwire.dataplane.ipam.connected', unit: '1', value: () => (state().connected ? 1 : 0) },
      { name: 'podwire.dataplane.cluster.nodes', unit: '{node}', value: () => state().nodes },
      { name: 'podwire.dataplane.cluster.blocks', unit: '{block}', value: () => state().blocks },
      { name: 'podwire.dataplane.cluster.skipped', unit: '{object}', value: () => state().skipped },
    ].map(({ name, unit, value }) => {
      const gauge = this.#meter.createObservableGauge(name, { unit });
      const callback = (result: { observe(value: number): void }): void => result.observe(value());
      gauge.addCallback(callback);
      return () => gauge.removeCallback(callback);
    });
    return () => gauges.forEach((remove) => remove());
  }

  #counter(name: string, unit: string, description: string) {
    return this.#meter.createCounter(name, { unit, description });
  }
}
