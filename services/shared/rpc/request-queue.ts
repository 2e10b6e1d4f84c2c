import { failureOfSignal } from '../failure/signal.js';
import type { Clock } from '../runtime/clock.js';
import { formatCaller, type NetworkCaller } from '../tls/caller.js';

/** Limits of the requests that come over the network. */
export interface QueueLimits {
  /** Requests of all callers that execute at once. Range: 1 and more. */
  readonly maxExecutingCount: number;
  /** Requests of one caller that execute at once. Range: 1 and more. */
  readonly maxExecutingPerCallerCount: number;
  /**
   * Callers of which a request starts in one turn of the event loop. With one, requests of many nodes are decided in small
   * transactions, and each takes a fifth more processor time; with more, a caller that was idle waits longer. Range: 1 and more.
   */
  readonly maxCallersPerTurn: number;
}

/**
 * A node sends as many requests at once as it starts pods: up to 250 after a reboot. Twice as many as one transaction of
 * etcd takes execute, so that a node's next transaction is ready when one is committed.
 */
export const QUEUE_LIMITS: QueueLimits = {
  maxExecutingCount: 256,
  maxExecutingPerCallerCount: 32,
  maxCallersPerTurn: 8,
};

/**
 * Limits of new streams, which have a queue of their own: after a restart of the service all nodes open theirs at once, each begins
 * with a snapshot, and other requests do not wait for them.
 */
export const STREAM_QUEUE_LIMITS: QueueLimits = { ...QUEUE_LIMITS, maxCallersPerTurn: 2 };

/** Events of the queue; {@link RpcEvents} turns them into metrics and log lines. */
export interface QueueEvents {
  /** A request may execute. */
  started(caller: NetworkCaller, waitedMs: number): void;
  /**
   * A connection, request or stream was refused because of a limit of its caller, or its deadline passed while it waited.
   * @param name - of the caller, or its address while it is not known
   */
  refused(name: string, role: NetworkCaller['role'] | 'none', reason: RefusalReason): void;
}

export type RefusalReason = 'connections' | 'calls' | 'identity' | 'requests' | 'streams' | 'deadline';

export interface RequestQueueOptions {
  readonly clock: Clock;
  readonly events: QueueEvents;
  /** Default: {@link QUEUE_LIMITS}. */
  readonly limits?: QueueLimits | undefined;
  /** Calls a function in the next turn of the event loop, after its input. Default: setImmediate. */
  readonly nextTurn?: (act: () => void) => void;
}

/** Ends the execution of a request. Idempotent. */
export type Leave = () => void;

/** The requests of one caller. */
interface CallerQueue {
  readonly caller: NetworkCaller;
  executingCount: number;
  /** Starts each waiting request, in the order of their arrival. */
  readonly waiting: Set<() => void>;
  /** Number of the turn in which its last request started. */
  lastTurn: number;
}

/**
 * Gives callers turns, so that a caller that sends many requests does not delay the other callers. The service decides and
 * encodes in one thread. Difficulties:
 *
 * - A started request cannot be interrupted, and requests arrive only between two turns of the event loop. So a caller
 *   starts one request per turn: one that was idle waits for one request of each caller before it, however many they have
 *   sent. A turn costs little compared with a request.
 * - A request that waits for a slow datastore uses no processor time, so turns alone would let one caller fill the
 *   transactions. So the number of its requests that execute at once is limited.
 * - The caller of a waiting request may have given up. So a request leaves the queue when its deadline passes or its caller
 *   cancels. Their number is limited before, with the open calls of a caller.
 */
export class RequestQueue {
  readonly #options: RequestQueueOptions;
  readonly #limits: QueueLimits;
  readonly #queues = new Map<string, CallerQueue>();
  /** The callers with a request that may start, in the order of their turns. */
  readonly #turns = new Set<CallerQueue>();
  #executingCount = 0;
  #turn = 0;
  #takenInTurnCount = 0;

  constructor(options: RequestQueueOptions) {
    this.#options = options;
    this.#limits = options.limits ?? QUEUE_LIMITS;
  }

  /**
   * Waits until a request may execute.
   * @returns the function to call when the request has ended
   * @throws Failure of the signal
   */
  enter(caller: NetworkCaller, signal: AbortSignal): Promise<Leave> {
    if (signal.aborted) return Promise.reject(failureOfSignal(signal));
    const { events, clock } = this.#options;
    const queue = this.#queueOf(caller);
    return new Promise((resolve, reject) => {
      const arrivedMs = clock.monotonicMs();
      const endWait = (): void => {
        signal.removeEventListener('abort', onAbort);
        queue.waiting.delete(takeTurn);
      };
      const onAbort = (): void => {
        endWait();
        this.#update(queue);
        const failure = failureOfSignal(signal);
        if (failure.code === 'DEADLINE_EXCEEDED') events.refused(formatCaller(caller), caller.role, 'deadline');
        reject(failure);
      };
      const takeTurn = (): void => {
        endWait();
        events.started(caller, clock.monotonicMs() - arrivedMs);
        resolve(this.#execute(queue));
      };
      queue.waiting.add(takeTurn);
      signal.addEventListener('abort', onAbort, { once: true });
      this.#update(queue);
      this.#takeTurns();
    });
  }

  #queueOf(caller: NetworkCaller): CallerQueue {
    const name = formatCaller(caller);
    const queue = this.#queues.get(name) ?? {
      caller,
      executingCount: 0,
      waiting: new Set(),
      lastTurn: -1,
    };
    this.#queues.set(name, queue);
    return queue;
  }

  #execute(queue: CallerQueue): Leave {
    queue.executingCount++;
    this.#executingCount++;
    let hasLeft = false;
    return () => {
      if (hasLeft) return;
      hasLeft = true;
      queue.executingCount--;
      this.#executingCount--;
      this.#update(queue);
      this.#takeTurns();
    };
  }

  /** Gives a caller a turn if it needs one; a caller that has one keeps its place. Forgets a caller without requests. */
  #update(queue: CallerQueue): void {
    const { caller, executingCount, waiting } = queue;
    const mayStart = waiting.size > 0 && executingCount < this.#limits.maxExecutingPerCallerCount;
    if (mayStart) this.#turns.add(queue);
    else this.#turns.delete(queue);
    if (waiting.size + executingCount === 0) this.#queues.delete(formatCaller(caller));
  }

  #takeTurns(): void {
    for (const queue of this.#turns) {
      if (this.#takenInTurnCount >= this.#limits.maxCallersPerTurn) return;
      const hasPlace =
        this.#executingCount < this.#limits.maxExecutingCount &&
        queue.executingCount < this.#limits.maxExecutingPerCallerCount;
      const [start] = hasPlace ? queue.waiting : [];
      if (queue.lastTurn === this.#turn || !start) continue;
      queue.lastTurn = this.#turn;
      this.#turns.delete(queue);
      start();
      this.#update(queue);
      if (this.#takenInTurnCount++ === 0) this.#scheduleTurn();
    }
  }

  #scheduleTurn(): void {
    const { nextTurn = setImmediate } = this.#options;
    nextTurn(() => {
      this.#turn++;
      this.#takenInTurnCount = 0;
      this.#takeTurns();
    });
  }
}
