import { NetlinkError, openNamespace, type Monitor, type MonitorEvent, type Namespace } from '@podwire/netlink';

/** Told one announcement after the other. Neither function may throw. */
interface MonitorListener {
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

/** One subscription to the kernel, and who shares it. */
interface Shared {
  readonly opened: Promise<Monitor>;
  readonly listeners: Set<MonitorListener>;
  /** Why it has ended by itself. */
  failure: NetlinkError | undefined;
}

/**
 * What the kernel announces of the node's links, addresses, routes and neighbours, for all who want to hear of it: a pod's wire is
 * a dozen announcements, and each is received and decoded once. The subscription is there as long as somebody listens.
 * The node's network namespace is that of this process.
 */
export class NodeMonitor {
  readonly #openNode: () => Promise<Pick<Namespace, 'monitor' | 'close'>>;
  #shared: Shared | undefined;

  constructor(openNode: () => Promise<Pick<Namespace, 'monitor' | 'close'>> = openNamespace) {
    this.#openNode = openNode;
  }

  /**
   * Tells a listener what is announced from the moment when the promise resolves, and maybe some of what was before.
   * @throws NetlinkError when the kernel cannot be asked, or its announcements have ended by then, which the listener is not told
   */
  async subscribe(listener: MonitorListener): Promise<MonitorSubscription> {
    const shared = (this.#shared ??= this.#share());
    const { listeners } = shared;
    listeners.add(listener);
    try {
      await shared.opened;
      if (shared.failure) throw shared.failure;
    } catch (error) {
      listeners.delete(listener);
      throw error;
    }
    return { close: () => this.#leave(shared, listener) };
  }

  #share(): Shared {
    const shared: Shared = { opened: this.#open(), listeners: new Set(), failure: undefined };
    shared.opened.then(
      (monitor) => this.#relay(monitor, shared),
      () => this.#forget(shared),
    );
    return shared;
  }

  async #open(): Promise<Monitor> {
    const node = await this.#openNode();
    try {
      return await node.monitor({ groups: ['links', 'addresses', 'routes', 'neighbours'], gatherMs: GATHER_MS });
    } finally {
      await node.close();
    }
  }

  async #relay(monitor: Monitor, shared: Shared): Promise<void> {
    const { listeners } = shared;
    try {
      for await (const event of monitor) for (const listener of [...listeners]) listener.heard(event);
    } catch (error) {
      if (!(error instanceof NetlinkError)) throw error;
      this.#forget(shared);
      shared.failure = error;
      // Whoever has just subscribed takes note of it first; who has not yet is refused.
      await new Promise((resolve) => setImmediate(resolve));
      const told = [...listeners];
      listeners.clear();
      for (const listener of told) listener.ended(error);
    }
  }

  #leave(shared: Shared, listener: MonitorListener): void {
    shared.listeners.delete(listener);
    if (shared.listeners.size > 0) return;
    this.#forget(shared);
    void shared.opened.then((monitor) => monitor.close());
  }

  /** Whoever listens next gets another. */
  #forget(shared: Shared): void {
    if (this.#shared === shared) this.#shared = undefined;
  }
}
