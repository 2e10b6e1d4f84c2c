import { forwardingKey, neighbourKey } from '../routes/known-node.js';
import { ownerOf, type NodeChange } from '../routes/observed.js';

/** What has been announced since it was last taken. */
export interface Taken {
  readonly changes: readonly NodeChange[];
  /** Whether some of it was lost. */
  readonly hasOverrun: boolean;
}

/** Beyond it the kernel is read anew instead, so that a storm takes no memory without end. */
const CHANGES_MAX = 20_000;

/**
 * Changes that the kernel announced and nobody has looked at yet, the last of each object alone: what was there in between is of
 * no account, and the echoes of a route that was set, deleted and set again within milliseconds cancel out.
 */
export class Inbox {
  readonly #changes = new Map<string, NodeChange>();
  #hasOverrun = false;

  get isEmpty(): boolean {
    return this.#changes.size === 0 && !this.#hasOverrun;
  }

  put(change: NodeChange): void {
    if (change.object === 'overrun' || this.#changes.size >= CHANGES_MAX) {
      this.#hasOverrun = true;
      return;
    }
    const key = keyOf(change);
    const before = this.#changes.get(key);
    // Behind the others: their order is that of their last change.
    this.#changes.delete(key);
    this.#changes.set(key, before ? together(before, change) : change);
  }

  /** Empties it. */
  take(): Taken {
    const taken = { changes: [...this.#changes.values()], hasOverrun: this.#hasOverrun };
    this.clear();
    return taken;
  }

  clear(): void {
    this.#changes.clear();
    this.#hasOverrun = false;
  }
}

/** What somebody did to a pod's interface is not undone by what is told of it later. */
function together(before: NodeChange, change: NodeChange): NodeChange {
  if (change.object !== 'pod-interface' || before.object !== 'pod-interface') return change;
  return { ...change, isMeddledWith: change.isMeddledWith || before.isMeddledWith };
}

function keyOf(change: Exclude<NodeChange, { readonly object: 'overrun' }>): string {
  switch (change.object) {
    case 'route': {
      const { destination, metric } = change.route;
      return `route ${destination} ${metric} ${ownerOf(change.route)}`;
    }
    case 'device':
      return `device ${change.device.name}`;
    case 'address':
      return `address ${change.device} ${change.address}`;
    case 'neighbour':
      return `neighbour ${neighbourKey(change)}`;
    case 'forwarding':
      return `forwarding ${forwardingKey(change)} ${change.nodeAddress}`;
    case 'pod-interface':
      return `pod ${change.name}`;
  }
}
