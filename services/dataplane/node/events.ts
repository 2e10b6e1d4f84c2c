import type { Failure } from '@podwire/shared/failure/failure';
import type { Logger } from '@podwire/shared/runtime/log';
import { observeMetrics } from '@podwire/shared/telemetry/instruments';

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

/** The node's registration in IPAM. */
interface RegisteredNode {
  readonly name: string;
  /** Address with prefix length; empty for none. */
  readonly ipv4Address: string;
  readonly ipv6Address: string;
}

/** Reports what happens between IPAM and this node: log lines, and a gauge. */
export class ClusterEvents {
  readonly #log: Logger;

  constructor(log: Logger) {
    this.#log = log;
  }

  connected(ipam: string): void {
    this.#log.info(`watching the cluster through ${ipam}`);
  }

  /** Reported once per loss of the watch, not for each retry. */
  lost(ipam: string, error: unknown): void {
    this.#log.warn({ err: error }, `watch of ${ipam} lost; the last state of the cluster stays in use, retrying`);
  }

  /** IPAM did not answer within the first seconds. */
  connectionSlow(ipam: string): void {
    this.#log.warn(`${ipam} has not answered yet; pods are served, routes to other nodes stay unchanged`);
  }

  /** A different failure while the watch is already lost. */
  stillLost(ipam: string, error: unknown): void {
    this.#log.debug({ err: error }, `watch of ${ipam} failed again`);
  }

  snapshot(size: ClusterSize): void {
    this.#log.info({ ...size }, `the cluster has ${size.nodes} nodes, ${size.pools} pools and ${size.blocks} blocks`);
  }

  objectSkipped(object: string, failure: Failure): void {
    this.#log.error({ err: failure }, `skipped ${object}: IPAM sent an invalid object`);
  }

  /** A defect in one follower; other followers are unaffected. */
  followerFailed(error: unknown): void {
    this.#log.error({ err: error }, 'a follower failed to apply a change of the cluster');
  }

  /** IPAM has the node's current registration. */
  registered({ name, ipv4Address, ipv6Address }: RegisteredNode, created: boolean): void {
    const addresses = [ipv4Address, ipv6Address].filter((text) => text !== '').join(' and ');
    this.#log.info({ created }, `node ${name} is registered with ${addresses}`);
  }

  /** Neighbours were notified that an address of the node moved to another link or MAC address. */
  announced(address: string, link: string): void {
    this.#log.info(`address ${address} moved to ${link}; its neighbours are notified of the new MAC address`);
  }

  /** Every announcement failed: neighbours keep sending to the earlier MAC address until their entries expire. */
  notAnnounced(address: string, error: unknown): void {
    this.#log.warn({ err: error }, `address ${address}: neighbours could not be notified of the new MAC address`);
  }

  tunnelAllocated(tunnel: string, address: string): void {
    this.#log.info(`${tunnel} tunnel: address ${address} allocated`);
  }

  tunnelReleased(tunnel: string, addresses: readonly string[]): void {
    this.#log.info(
      `${tunnel} tunnel: released ${addresses.join(', ')}, as no pool of this node’s pods needs the tunnel`,
    );
  }

  /** The watch of the kernel failed. Until it is open again, polling finds changes. */
  kernelWatchFailed(objects: string, error: unknown, retryInMs: number): void {
    const fields = { err: error, retry_in_ms: Math.round(retryInMs) };
    this.#log.warn(fields, `kernel notifications about ${objects} failed; retrying`);
  }

  /** A call of podwire-ipam failed; it is made again after the wait. */
  retried(task: string, error: unknown, retryInMs: number): void {
    this.#log.warn({ err: error, retry_in_ms: Math.round(retryInMs) }, `${task}: failed; retrying`);
  }

  /** Reports at each metrics collection whether the watch is open. @returns a function that ends that */
  observe(isConnected: () => boolean): () => void {
    return observeMetrics(['podwire.dataplane.ipam.connected'], (observe) =>
      observe('podwire.dataplane.ipam.connected', isConnected() ? 1 : 0),
    );
  }
}
