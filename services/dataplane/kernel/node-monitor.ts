import { NetlinkError, openNamespace, type Monitor, type MonitorEvent, type Namespace } from '@podwire/netlink';

/** Receives announcements one at a time. Neither function may throw. */
interface MonitorListener {
  readonly onEvent: (event: MonitorEvent) => void;
  /** Called once when the subscription fails; no announcements follow. */
  readonly onFailure: (failure: NetlinkError) => void;
}

export interface MonitorSubscription {
  /** Ends the announcements. Idempotent. */
  close(): void;
}

/**
 * How long announcements are collected. A pod's wire causes a dozen within a millisecond, and reading them one by one would delay
 * AttachPod and DetachPod; a drift repair can wait that long.
 */
const GATHER_MS = 5;

/** One subscription to the kernel, shared by its listeners. */
interface SharedSubscription {
  readonly opened: Promise<Monitor>;
  readonly listeners: Set<MonitorListener>;
  /** The cause of its failure. */
  failure: NetlinkError | undefined;
}

/**
 * Shares the kernel's announcements of links, addresses, routes and neighbours among all listeners: a pod's wire causes a dozen,
 * and each is received and decoded once. Subscribed while there is a listener. The namespace is this process's.
 */
export class NodeMonitor {
  readonly #openNode: () => Promise<Pick<Namespace, 'monitor' | 'close'>>;
  #shared: SharedSubscription | undefined;

  constructor(openNode: () => Promise<Pick<Namespace, 'monitor' | 'close'>> = openNamespace) {
    this.#openNode = openNode;
  }

  /**
   * Delivers announcements from the moment when the promise resolves, and possibly some earlier ones.
   * @throws NetlinkError when the kernel cannot be queried, or the subscription has already failed; the listener is then not
   * called
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
    return { close: () => this.#unsubscribe(shared, listener) };
  }

  #share(): SharedSubscription {
    const shared: SharedSubscription = { opened: this.#open(), listeners: new Set(), failure: undefined };
    shared.opened.then(
      (monitor) => this.#relay(monitor, shared),
      () => this.#clear(shared),
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

  async #relay(monitor: Monitor, shared: SharedSubscription): Promise<void> {
    const { listeners } = shared;
    try {
      for await (const event of monitor) for (const listener of [...listeners]) listener.onEvent(event);
    } catch (error) {
      if (!(error instanceof NetlinkError)) throw error;
      this.#clear(shared);
      shared.failure = error;
      // New subscribers are registered before a failure is reported; later ones are refused.
      await new Promise((resolve) => setImmediate(resolve));
      const notified = [...listeners];
      listeners.clear();
      for (const listener of notified) listener.onFailure(error);
    }
  }

  #unsubscribe(shared: SharedSubscription, listener: MonitorListener): void {
    shared.listeners.delete(listener);
    if (shared.listeners.size > 0) return;
    this.#clear(shared);
    void shared.opened.then((monitor) => monitor.close());
  }

  /** The next listener opens a new subscription. */
  #clear(shared: SharedSubscription): void {
    if (this.#shared === shared) this.#shared = undefined;
  }
}
