import { NetlinkError, openNamespace, type Monitor, type MonitorEvent, type Namespace } from '@podwire/netlink';

/** Told one announcement after the other. Neither function may throw. */
export interface MonitorListener {
  readonly heard: (event: MonitorEvent) => void;
  /** The kernel's announcements have ended by themselves, once, and nothing is told any more. */
  readonly ended: (failure: NetlinkError) => void;
}

export interface MonitorSubscription {
  /** Nothing is told any more. Idempotent. */
  close(): void;
}

/**
 * How long announcements gather. A pod's wire is a dozen of them within a millisecond, and to read one by one costs the time in which its
 * AttachPod or DetachPod could be answered; who mends drift comes early enough.
 */
const GATHER_MS = 5;

/**
 * What the kernel announces of the node's links, addresses, routes and neighbours, for all who want to hear of it: a pod's wire is
 * a dozen announcements, and each is received and decoded once. The subscription is there as long as somebody listens.
 * The node's network namespace is that of this process.
 */
export class NodeMonitor {
  readonly #openNode: () => Promise<Pick<Namespace, 'monitor' | 'close'>>;
  readonly #listeners = new Set<MonitorListener>();
  #monitor: Promise<Monitor> | undefined;

  constructor(openNode: () => Promise<Pick<Namespace, 'monitor' | 'close'>> = openNamespace) {
    this.#openNode = openNode;
  }

  /**
   * Tells a listener what is announced from the moment when the promise resolves, and maybe some of what was before.
   * @throws NetlinkError when the kernel cannot be asked
   */
  async subscribe(listener: MonitorListener): Promise<MonitorSubscription> {
    this.#listeners.add(listener);
    try {
      await (this.#monitor ??= this.#open());
    } catch (error) {
      this.#listeners.delete(listener);
      throw error;
    }
    return { close: () => void this.#leave(listener) };
  }

  async #open(): Promise<Monitor> {
    try {
      const node = await this.#openNode();
      const monitor = await node.monitor({
        groups: ['links', 'addresses', 'routes', 'neighbours'],
        gatherMs: GATHER_MS,
      });
      await node.close();
      void this.#relay(monitor);
      return monitor;
    } catch (error) {
      this.#monitor = undefined;
      throw error;
    }
  }

  async #relay(monitor: Monitor): Promise<void> {
    try {
      for await (const event of monitor) for (const listener of [...this.#listeners]) listener.heard(event);
    } catch (error) {
      if (!(error instanceof NetlinkError)) throw error;
      this.#monitor = undefined;
      const listeners = [...this.#listeners];
      this.#listeners.clear();
      for (const listener of listeners) listener.ended(error);
    }
  }

  async #leave(listener: MonitorListener): Promise<void> {
    this.#listeners.delete(listener);
    if (this.#listeners.size > 0) return;
    const monitor = this.#monitor;
    this.#monitor = undefined;
    (await monitor)?.close();
  }
}
