import { Failure } from '@podwire/shared/failure/failure';
import { untilAborted } from '@podwire/shared/failure/signal';
import type { Clock } from '@podwire/shared/runtime/clock';
import { recordInterval } from '@podwire/shared/telemetry/intervals';

import type { RecordKeys } from '../../records/json/keys.js';
import type { Mirror } from '../mirror/mirror.js';
import { listInParts } from '../mirror/pages.js';
import type { Store, StoredRecord } from '../store.js';

interface FreshViewOptions {
  readonly store: Store;
  readonly mirror: Mirror;
  readonly keys: RecordKeys;
  readonly clock: Clock;
}

/** How long the watch may lag behind a known commit before a key is written to advance it, in milliseconds. */
const WATCH_WAIT_MS = 20;

/**
 * Brings the mirror up to everything that any replica has acknowledged. What makes it hard:
 *
 * - The store reports its revision, and the watch reports changes: if the last changes were to unwatched keys, the
 *   watch stays behind the revision until the next watched change. So a watched key is written; once it arrives,
 *   everything before it is known. (etcd answers a request for the watch's progress, but releases before 3.4.25 and
 *   3.5.8 may answer before they have sent the changes.)
 * - A store without space accepts no such key and stays at its revision. Then everything is listed, once for that
 *   revision.
 * - One round serves all requests that came before it, and one round is in flight at a time, so the cost does not grow
 *   with the number of requests.
 */
export class FreshView {
  readonly #options: FreshViewOptions;
  /** Ends the rounds. */
  readonly #stop: AbortSignal;
  /** All changes up to it are applied, possibly from a list. */
  #listedRevision = 0;
  #next: Promise<void> | undefined;
  #current: Promise<void> = Promise.resolve();

  constructor(options: FreshViewOptions, stop: AbortSignal) {
    this.#options = options;
    this.#stop = stop;
  }

  /**
   * Waits until the mirror shows all that was acknowledged before the call.
   * @throws Failure of the store, or the signal's
   */
  reach(signal: AbortSignal): Promise<void> {
    this.#next ??= this.#begin();
    const next = this.#next;
    return recordInterval('podwire.store.fresh_view', 'datastore', () => untilAborted(next, signal));
  }

  #begin(): Promise<void> {
    const round = this.#current
      .catch(() => undefined)
      .then(() => {
        this.#next = undefined;
        this.#current = this.#round();
        return this.#current;
      });
    // All waiters may have given up, which would leave the rejection unhandled.
    round.catch(() => undefined);
    return round;
  }

  async #round(): Promise<void> {
    const { store, mirror, clock, keys } = this.#options;
    const revision = await store.revision(this.#stop);
    if (Math.max(mirror.position, this.#listedRevision) >= revision) return;
    const reached = new AbortController();
    const watchWait = clock.sleep(WATCH_WAIT_MS, AbortSignal.any([this.#stop, reached.signal]));
    const watched = mirror.reach(revision, this.#stop).then(() => reached.abort());
    watched.catch(() => reached.abort());
    await watchWait;
    if (mirror.position >= revision) return;
    const puts = [{ key: keys.barrier, value: Buffer.from('{}') }];
    try {
      const result = await store.commit({ comparisons: [], puts, deletes: [] }, this.#stop);
      if (result.committed) await mirror.reach(result.revision, this.#stop);
    } catch (error) {
      if (!(error instanceof Failure && error.code === 'STORE_FULL')) throw error;
      await this.#list();
    }
  }

  /**
   * Brings the mirror up to the store where writes are impossible. Its position stays the watch's, because watchers
   * receive their changes by that position.
   */
  async #list(): Promise<void> {
    const { store, mirror, keys } = this.#options;
    let listed = new Set<string>();
    let revision = 0;
    const apply = (changed: readonly StoredRecord[], missing: readonly string[]): void =>
      mirror.applyConflict({ committed: false, revision, changed, missing }, { poolsCompared: false });
    for await (const part of listInParts(store, keys.root, this.#stop)) {
      if (part.isFirst) listed = new Set();
      revision = part.revision;
      apply(part.records, []);
      for (const { key } of part.records) listed.add(key);
    }
    apply(
      [],
      [...mirror.knownKeys()].filter((key) => key.startsWith(keys.root) && !listed.has(key)),
    );
    this.#listedRevision = revision;
  }
}
