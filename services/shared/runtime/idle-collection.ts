import { getHeapSpaceStatistics, setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

import type { Clock } from './clock.js';

/** Time without a command before a collection, in milliseconds. Each command starts it again, so none comes in a storm. */
const IDLE_MS = 4;

/** V8 collects its young generation by itself at some megabytes; below this a collection would not be worth its time. */
const MIN_YOUNG_BYTES = 1_500_000;

interface Heap {
  /** Size of the young generation in use. */
  readonly youngBytes: () => number;
  /** Collects the young generation. */
  readonly collect: () => void;
}

/**
 * Collects young garbage while no caller waits for this process: V8 would do it in the middle of a command, at the cost of a
 * millisecond.
 */
export class IdleCollection {
  readonly #clock: Pick<Clock, 'after'>;
  readonly #heap: Heap;
  #cancel: () => void = () => undefined;

  constructor(clock: Pick<Clock, 'after'>, heap = systemHeap()) {
    this.#clock = clock;
    this.#heap = heap;
  }

  /** A caller waits from now on. */
  busy(): void {
    this.#cancel();
  }

  /** No caller waits any more. */
  idle(): void {
    this.#cancel();
    this.#cancel = this.#clock.after(IDLE_MS, () => {
      if (this.#heap.youngBytes() > MIN_YOUNG_BYTES) this.#heap.collect();
    });
  }
}

/** Heap of this process. V8's function to collect is global only in contexts that are made under its flag. */
export function systemHeap(): Heap {
  setFlagsFromString('--expose-gc');
  const gc: unknown = runInNewContext('gc');
  setFlagsFromString('--no-expose-gc');
  return {
    youngBytes: () =>
      getHeapSpaceStatistics().find(({ space_name }) => space_name === 'new_space')?.space_used_size ?? 0,
    collect() {
      if (typeof gc === 'function') Reflect.apply(gc, undefined, [{ type: 'minor', execution: 'sync' }]);
    },
  };
}
