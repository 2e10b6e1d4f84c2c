import { NetlinkError } from './errors.js';
import type { NativeEvent } from './native.js';
import type { Address, FdbEntry, Link, Neighbour, Route } from './objects.js';

/** What to be told of; IPv4 and IPv6 alike. `neighbours` has the forwarding entries too (`fdb`), of the same kernel group. */
export type MonitorGroup = 'links' | 'addresses' | 'routes' | 'neighbours';

export interface MonitorOptions {
  /** At least one. */
  readonly groups: readonly MonitorGroup[];
  /**
   * How long what is announced waits for what follows it, to be read together, in milliseconds: for listeners whom that is early enough, in
   * a process that has more urgent work just then. Range: 0 to 1000. Default: 0.
   */
  readonly gatherMs?: number;
}

/**
 * A change as the kernel announced it. `overrun` says that some were lost, because they came faster than they were taken: read
 * everything anew.
 */
export type MonitorEvent =
  | { readonly object: 'link'; readonly deleted: boolean; readonly value: Link }
  | { readonly object: 'address'; readonly deleted: boolean; readonly value: Address }
  | { readonly object: 'route'; readonly deleted: boolean; readonly value: Route }
  | { readonly object: 'neighbour'; readonly deleted: boolean; readonly value: Neighbour }
  | { readonly object: 'fdb'; readonly deleted: boolean; readonly value: FdbEntry }
  | { readonly object: 'overrun' };

/** A subscription: `ip monitor`. Ends when it is closed, or is left by `break`. It does not keep the process alive. */
export interface Monitor extends AsyncIterable<MonitorEvent> {
  /** The iteration ends; events not yet taken are dropped. Idempotent. */
  close(): void;
}

/** RTNLGRP_* of linux/rtnetlink.h. */
export const GROUP_NUMBERS: Readonly<Record<MonitorGroup, readonly number[]>> = {
  links: [1],
  neighbours: [3],
  addresses: [5, 9],
  routes: [7, 11],
};

/** Events that a slow reader may leave waiting; beyond it they are dropped, as the kernel does with its own queue. */
const WAITING_EVENTS_MAX = 65_536;

interface Waiter {
  readonly resolve: (result: IteratorResult<MonitorEvent, undefined>) => void;
  readonly reject: (error: Error) => void;
}

/** Turns the addon's calls into an iteration: events wait for the reader, or readers for events, never both. */
export class EventQueue implements Monitor {
  #events: MonitorEvent[] = [];
  /** How many of `#events` are taken. Shifting a long array moves all the rest of it. */
  #taken = 0;
  #waiters: Waiter[] = [];
  #failure: NetlinkError | undefined;
  #closed = false;
  #unsubscribe: () => void = () => undefined;
  readonly #object: string;

  constructor(object: string) {
    this.#object = object;
  }

  /** What ends the subscription; known only once it is made. */
  onClose(unsubscribe: () => void): void {
    this.#unsubscribe = unsubscribe;
  }

  push(events: readonly NativeEvent[]): void {
    for (const event of events) {
      if (this.#closed) return;
      if (event.object === 'failure') this.#fail(event.error.errno, event.error.text);
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

  [Symbol.asyncIterator](): AsyncIterator<MonitorEvent, undefined> {
    return {
      next: () => this.#next(),
      return: () => {
        this.close();
        return Promise.resolve({ done: true, value: undefined });
      },
    };
  }

  #next(): Promise<IteratorResult<MonitorEvent, undefined>> {
    const event = this.#take();
    if (event) return Promise.resolve({ done: false, value: event });
    if (this.#failure) return Promise.reject(this.#failure);
    if (this.#closed) return Promise.resolve({ done: true, value: undefined });
    return new Promise((resolve, reject) => this.#waiters.push({ resolve, reject }));
  }

  #offer(event: MonitorEvent): void {
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

  #take(): MonitorEvent | undefined {
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
