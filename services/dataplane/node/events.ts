import { metrics } from '@opentelemetry/api';
import type { Failure } from '@podwire/shared/failure/failure';
import type { Logger } from '@podwire/shared/runtime/log';

/** State of the watch of IPAM: no answer yet, answered at the last attempt, or disconnected since. */
export type Connection = 'connecting' | 'connected' | 'lost';

/** Numbers of the cluster's objects. */
interface ClusterSize {
  readonly nodes: number;
  readonly pools: number;
  readonly blocks: number;
  /** Invalid objects. */
  readonly skipped: number;
}

/** Values observed at each metrics collection. */
interface ClusterState extends ClusterSize {
  readonly connected: boolean;
}

/** The node's registration in IPAM. */
interface RegisteredNode {
  readonly name: string;
  /** With prefix length; empty for none. */
  readonly ipv4Address: string;
  readonly ipv6Address: string;
}

/** Reports what happens between IPAM and this node: a counter and a log line. */
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

  /** Reported once per loss of the watch, not for each retry. */
  lost(ipam: string, error: unknown): void {
    this.#losses.add(1);
    this.#log.warn(
      { err: error },
      `not told of the cluster any more by ${ipam}; what is known of it stands until it answers`,
    );
  }

  /** The watch is rejected, at once or repeatedly. */
  awaited(ipam: string): void {
    this.#log.warn(`${ipam} does not tell of the cluster yet; pods are served, routes to other nodes stay as they are`);
  }

  /** A different failure while the watch is already lost. */
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

  /** A defect in one follower; the others are unaffected. */
  followerFailed(error: unknown): void {
    this.#log.error({ err: error }, 'a part of the node side did not take over a change of the cluster');
  }

  /** IPAM has the node's current registration. */
  registered({ name, ipv4Address, ipv6Address }: RegisteredNode, created: boolean): void {
    const addresses = [ipv4Address, ipv6Address].filter((text) => text !== '').join(' and ');
    this.#log.info({ created }, `node ${name} is registered with ${addresses}`);
  }

  /** Neighbours were notified that an address of the node moved to another link or MAC address. */
  announced(address: string, link: string): void {
    this.#log.info(`${link} is new as the interface of ${address}: its neighbours are told of its MAC address`);
  }

  /** Neighbours keep sending to the earlier MAC address until their entries expire. */
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

  /** The watch of the kernel failed; until it is reopened, changes are found by polling. */
  notTold(objects: string, error: unknown, retryInMs: number): void {
    const fields = { err: error, retry_in_ms: Math.round(retryInMs) };
    this.#log.warn(fields, `changes of ${objects} are not announced by the kernel; trying again`);
  }

  /** @param task - retried after the wait */
  retried(task: string, error: unknown, retryInMs: number): void {
    this.#retries.add(1, { task });
    this.#log.warn({ err: error, retry_in_ms: Math.round(retryInMs) }, `could not ${task}; trying again`);
  }

  /** Reports the state at each metrics collection. @returns a function that ends that */
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
