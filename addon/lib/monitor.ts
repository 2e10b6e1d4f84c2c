import { NetlinkError } from './errors.js';
import type { NativeFailure } from './native.js';
import type { ObjectChange, Overrun } from './objects.js';

/**
 * Subscribable object kinds, for both IPv4 and IPv6. `neighbours` includes forwarding entries (`fdb`), which share the kernel
 * group.
 */
export type MonitorGroup = 'links' | 'addresses' | 'routes' | 'neighbours';

export interface MonitorOptions {
  /** At least one. */
  readonly groups: readonly MonitorGroup[];
  /**
   * How long announcements are collected before they are read together, in milliseconds, for listeners without urgency in a busy
   * process. Range: 0 to 1000. Default: 0.
   */
  readonly gatherMs?: number;
}

export type MonitorEvent = ObjectChange | Overrun;

/**
 * A subscription: `ip monitor`. Ends on `close()` or when the iteration is left by `break`. It does not keep the process alive.
 */
export interface Monitor<Change = ObjectChange> extends AsyncIterable<Change | Overrun> {
  /** Ends the iteration; unread events are dropped. Idempotent. */
  close(): void;
}

/** RTNLGRP_* of linux/rtnetlink.h. */
export const GROUP_NUMBERS: Readonly<Record<MonitorGroup, readonly number[]>> = {
  links: [1],
  neighbours: [3],
  addresses: [5, 9],
  routes: [7, 11],
};

/** Most events queued for a slow reader; further ones are dropped, as in the kernel's own queue. */
const WAITING_EVENTS_MAX = 65_536;

interface Waiter<Event> {
  readonly resolve: (result: IteratorResult<Event, undefined>) => void;
  readonly reject: (error: Error) => void;
}

function isFailure(event: { readonly object: string }): event is NativeFailure {
  return event.object === 'failure';
}

/** Turns the addon's callbacks into an iteration: either events wait for the reader, or readers for events. */
export class EventQueue<Change extends { readonly object: string } = ObjectChange> implements Monitor<Change> {
  #events: (Change | Overrun)[] = [];
  /** Number of consumed entries of `#events`. Shifting a long array would move all the rest. */
  #taken = 0;
  #waiters: Waiter<Change | Overrun>[] = [];
  #failure: NetlinkError | undefined;
  #closed = false;
  #unsubscribe: () => void = () => undefined;
  readonly #object: string;

  constructor(object: string) {
    this.#object = object;
  }

  /** Sets the function that ends the subscription, known once it is open. */
  onClose(unsubscribe: () => void): void {
    this.#unsubscribe = unsubscribe;
  }

  push(events: readonly (Change | Overrun | NativeFailure)[]): void {
    for (const event of events) {
      if (this.#closed) return;
      if (isFailure(event)) this.#fail(event.error.errno, event.error.text);
      else this.#offer(event);
    }
  }

  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    this.#drop();
    this.#unsubscribe();
    for (const waiter of this.#waiters.splice(0)) waiter.resolve({ done: true, value: undefined });
  }

  [Symbol.asyncIterator](): AsyncIterator<Change | Overrun, undefined> {
    return {
      next: () => this.#next(),
      return: () => {
        this.close();
        return Promise.resolve({ done: true, value: undefined });
      },
    };
  }

  #next(): Promise<IteratorResult<Change | Overrun, undefined>> {
    const event = this.#take();
    if (event) return Promise.resolve({ done: false, value: event });
    if (this.#failure) return Promise.reject(this.#failure);
    if (this.#closed) return Promise.resolve({ done: true, value: undefined });
    return new Promise((resolve, reject) => this.#waiters.push({ resolve, reject }));
  }

  #offer(event: Change | Overrun): void {
    const waiter = this.#waiters.shift();
    if (waiter) {
      waiter.resolve({ done: false, value: event });
    } else if (this.#events.length - this.#taken < WAITING_EVENTS_MAX) {
      this.#events.push(event);
    } else {
      this.#drop();
      this.#events.push({ object: 'overrun' });
    }
  }

  #take(): Change | Overrun | undefined {
    const event = this.#events[this.#taken];
    if (event === undefined) return undefined;
    this.#taken += 1;
    if (this.#taken === this.#events.length) this.#drop();
    return event;
  }

  #drop(): void {
    this.#events = [];
    this.#taken = 0;
  }

  #fail(errno: number, text: string | null): void {
    const failure = new NetlinkError({
      operation: 'monitor',
      object: this.#object,
      errno,
      kernelMessage: text ?? undefined,
    });
    this.#failure = failure;
    for (const waiter of this.#waiters.splice(0)) waiter.reject(failure);
  }
}
