import { setImmediate } from 'node:timers/promises';

import { Failure } from '@podwire/shared/failure/failure';
import { isAborted } from '@podwire/shared/failure/signal';
import { backoffMs, type BackoffBounds } from '@podwire/shared/reconcile/schedule';
import type { Clock } from '@podwire/shared/runtime/clock';
import { z } from 'zod';

import { pauseMs, type KubernetesApi } from './api.js';
import { listPages } from './lists.js';

export interface ObjectFeedOptions<Value> {
  readonly api: KubernetesApi;
  /** Path of the list: `/api/v1/nodes`. */
  readonly path: string;
  /** Whether the API server may have no definition of the objects: the list is empty then, and is read again after a minute. */
  readonly isOptional?: boolean;
  /** Empty for all objects. */
  readonly labelSelector?: string;
  readonly fieldSelector?: string;
  readonly clock: Clock;
  /** A number from 0 (included) to 1 (excluded). */
  readonly random: () => number;
  /**
   * Converts each object once its page is read, so that a large list is never in memory as objects. Must not throw.
   * @returns undefined for an object that is to be left out
   */
  readonly read: (object: unknown) => Value | undefined;
  /** Objects of a page of a list. Default: 500. */
  readonly pageSize?: number;
  /** Receives each whole list with its version. The watch waits for its promise. Must not throw or reject. */
  readonly listed: (values: readonly Value[], version: string) => void | Promise<void>;
  /** Receives each change after a list: `ADDED`, `MODIFIED` or `DELETED`. Must not throw. */
  readonly changed: (type: string, value: Value) => void;
  /** Called when a list is of an earlier version than before: the API server's etcd was restored. Default: nothing. */
  readonly restored?: () => void;
  /** Receives each failure, which is retried, and undefined when a watch is open. Must not throw. */
  readonly report: (failure: unknown) => void;
}

const BACKOFF: BackoffBounds = { baseMs: 1000, maxMs: 60_000 };

/** Pause between a watch without events and the next: the API server ends watches at once while it stops. */
const SILENT_WATCH_PAUSE_MS = 1000;

/** The API server ends a watch after a random time in this range, in seconds, as for its own clients. */
const WATCH_SECONDS = { min: 300, range: 300 };

/** So many failed watches in a row, and the list is read again: a restored API server may not know the version. */
const MAX_FAILED_WATCHES = 3;

/** After such a silence the list is read again: the API server reports nothing for a version that is ahead of it. */
const MAX_SILENCE_MS = 170_000;

/** Pause before the API server is asked again for a definition that it does not have. */
const ABSENT_PAUSE_MS = 60_000;

/**
 * Time after which applying events leaves a turn of the event loop to other work, in milliseconds: Node.js reads a burst of them in one
 * turn, and each takes from 0.05 ms to tens of milliseconds.
 */
const TURN_MS = 2;

/** HTTP status of a resource version that the API server does not keep any more. */
const GONE = 410;

const versionedSchema = z.object({ metadata: z.object({ resourceVersion: z.string().min(1) }) });
const statusSchema = z.object({ code: z.number().default(0), message: z.string().default('no reason') });

/**
 * The API server's objects of one kind, by list and watch: it begins with a consistent list, follows it by a watch, continues an
 * interrupted watch where it ended, and lists again if that is not possible.
 */
export class ObjectFeed<Value> {
  readonly #options: ObjectFeedOptions<Value>;
  readonly #stop = new AbortController();
  readonly #done: Promise<void>;
  /** Where the next watch begins; undefined to list first. */
  #resourceVersion: string | undefined;
  /** Version of the latest list, or of the latest event. */
  #latestVersion = '';
  #isCurrent = false;
  #failedWatchesCount = 0;
  /** When the API server last reported something, by the monotonic clock. */
  #heardMs: number;

  /** The creator stops it before it closes the API server. */
  constructor(options: ObjectFeedOptions<Value>) {
    this.#options = options;
    this.#heardMs = options.clock.monotonicMs();
    this.#done = this.#run(this.#stop.signal);
  }

  /** Whether it follows the API server: false before the first watch, and from a failure to the next watch. */
  get isCurrent(): boolean {
    return this.#isCurrent;
  }

  /** How long ago the API server reported something: an event, a bookmark, or that a watch is open. */
  get ageMs(): number {
    return this.#options.clock.monotonicMs() - this.#heardMs;
  }

  /** Idempotent. */
  async stop(): Promise<void> {
    this.#stop.abort();
    await this.#done;
  }

  async #run(signal: AbortSignal): Promise<void> {
    const { clock, random } = this.#options;
    for (let attempt = 0; !signal.aborted; attempt++) {
      let waitMs = backoffMs(attempt, BACKOFF, random());
      try {
        if (this.#resourceVersion === undefined) await this.#list(signal);
        if (this.#resourceVersion === undefined) {
          this.#opened();
          waitMs = ABSENT_PAUSE_MS;
        } else waitMs = (await this.#watch(signal)) ? 0 : random() * 2 * SILENT_WATCH_PAUSE_MS;
        attempt = -1;
      } catch (failure) {
        if (isAborted(signal)) return;
        this.#isCurrent = false;
        this.#options.report(failure);
        waitMs = pauseMs(failure, waitMs);
      }
      if (waitMs > 0) await clock.sleep(waitMs, signal);
    }
  }

  async #list(signal: AbortSignal): Promise<void> {
    const {
      api,
      path,
      isOptional = false,
      labelSelector = '',
      fieldSelector = '',
      pageSize = 500,
      read,
    } = this.#options;
    const values: Value[] = [];
    let version: string | undefined;
    for await (const page of listPages(api, {
      path,
      isOptional,
      labelSelector,
      fieldSelector,
      limit: pageSize,
      signal,
    })) {
      version ??= page.resourceVersion;
      for (const item of page.items) {
        const value = read(item);
        if (value !== undefined) values.push(value);
      }
    }
    if (version !== undefined && isLater(this.#latestVersion, version)) this.#options.restored?.();
    this.#resourceVersion = version;
    this.#latestVersion = version ?? '';
    this.#failedWatchesCount = 0;
    await this.#options.listed(values, version ?? '');
  }

  /** @returns whether there was an event */
  async #watch(signal: AbortSignal): Promise<boolean> {
    const { api, path, labelSelector = '', fieldSelector = '', random, clock } = this.#options;
    const timeoutSeconds = Math.floor(WATCH_SECONDS.min + random() * WATCH_SECONDS.range);
    const query = new URLSearchParams({
      watch: '1',
      allowWatchBookmarks: 'true',
      resourceVersion: this.#resourceVersion ?? '',
      timeoutSeconds: String(timeoutSeconds),
    });
    if (labelSelector !== '') query.set('labelSelector', labelSelector);
    if (fieldSelector !== '') query.set('fieldSelector', fieldSelector);
    let hasEvent = false;
    let turnMs = clock.monotonicMs();
    try {
      const opened = (): void => this.#opened();
      for await (const { type, object } of api.watch({ path: `${path}?${query.toString()}`, signal, opened })) {
        if (type === 'ERROR') {
          this.#restart(object);
          return false;
        }
        hasEvent = true;
        this.#apply(type, object);
        if (clock.monotonicMs() - turnMs < TURN_MS) continue;
        await setImmediate(undefined, { signal });
        turnMs = clock.monotonicMs();
      }
    } catch (failure) {
      const isLost = ++this.#failedWatchesCount >= MAX_FAILED_WATCHES || this.ageMs >= MAX_SILENCE_MS;
      if (isLost) this.#resourceVersion = undefined;
      throw failure;
    }
    return hasEvent;
  }

  /** The API server ended the watch with a Status. Only for an expired version is it not a failure. */
  #restart(object: unknown): void {
    const { data } = statusSchema.safeParse(object);
    this.#resourceVersion = undefined;
    if (data?.code === GONE) return;
    const { api, path } = this.#options;
    throw new Failure('UNREACHABLE', `${api.subject}: watch of ${path}: ended: ${data?.message ?? 'no reason'}`);
  }

  #apply(type: string, object: unknown): void {
    this.#heardMs = this.#options.clock.monotonicMs();
    const version = versionedSchema.safeParse(object).data?.metadata.resourceVersion;
    if (version !== undefined) this.#resourceVersion = this.#latestVersion = version;
    const value = type === 'BOOKMARK' ? undefined : this.#options.read(object);
    if (value !== undefined) this.#options.changed(type, value);
  }

  #opened(): void {
    this.#heardMs = this.#options.clock.monotonicMs();
    this.#isCurrent = true;
    this.#failedWatchesCount = 0;
    this.#options.report(undefined);
  }
}

/** Whether a version is later than another one of the same resource (KEP-5504). */
export function isLater(version: string, than: string): boolean {
  return version.length === than.length ? version > than : version.length > than.length;
}
