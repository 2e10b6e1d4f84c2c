import { readFile, utimes } from 'node:fs/promises';

import { codeOf, messageOf } from '@podwire/shared/failure/thrown';
import type { Clock } from '@podwire/shared/runtime/clock';
import { putDurably } from '@podwire/shared/runtime/durable-file';
import type { Logger } from '@podwire/shared/runtime/log';
import { z } from 'zod';

import type { Share } from '../addresses/mode.js';

/** What of a pod's network a request leaves to Podwire. */
type ShareKind = Share['kind'];

/** The file: JSON. */
const STORED = z.strictObject({
  version: z.literal(1),
  bootId: z.string(),
  shares: z.array(z.enum(['all', 'addresses', 'wire'] satisfies readonly ShareKind[])),
});

interface ReadyMarkOptions {
  /** Absolute path of the file, in a directory that exists when something is marked. */
  readonly path: string;
  /** Identity of this boot: a file of an earlier one says nothing. */
  readonly bootId: string;
  readonly log: Logger;
}

/** Whether the node has been ready since its boot, for each share. The file outlives the process; the boot's identity ends it. */
export class ReadyMark {
  readonly #options: ReadyMarkOptions;
  readonly #marked = new Set<ShareKind>();
  #storing: Promise<void> = Promise.resolve();

  constructor(options: ReadyMarkOptions) {
    this.#options = options;
  }

  /** Reads what earlier processes marked. A file that cannot be read counts as none. */
  async load(): Promise<void> {
    const { path, bootId, log } = this.#options;
    try {
      const stored = STORED.parse(JSON.parse(await readFile(path, 'utf8')));
      if (stored.bootId === bootId) for (const kind of stored.shares) this.#marked.add(kind);
    } catch (error) {
      if (codeOf(error) === 'ENOENT') return;
      log.warn({ err: error, path }, `${path} cannot be read: STATUS fails until an ADD can succeed`);
    }
  }

  /** For any share. */
  get isSet(): boolean {
    return this.#marked.size > 0;
  }

  has(kind: ShareKind): boolean {
    return this.#marked.has(kind);
  }

  /** Marks the node as ready. */
  set(kind: ShareKind): void {
    if (this.#marked.has(kind)) return;
    this.#marked.add(kind);
    this.#storing = this.#storing.then(() => this.#store());
  }

  /** Resolves once all marks are in the file, or the log says why not. */
  stored(): Promise<void> {
    return this.#storing;
  }

  async #store(): Promise<void> {
    const { path, bootId, log } = this.#options;
    try {
      await putDurably(path, `${JSON.stringify({ version: 1, bootId, shares: [...this.#marked] })}\n`);
    } catch (error) {
      const reason = messageOf(error);
      log.warn(`${path} cannot be written: ${reason}; after a restart STATUS fails until an ADD can succeed`);
    }
  }
}

/** How long a restart of this process may take before STATUS fails: as long as podwire-dataplane may be away. */
const LEASE_MS = 30_000;

const RENEWAL_MS = 5_000;

const MS_PER_SECOND = 1000;

interface ReadyLeaseOptions {
  /** The file of the {@link ReadyMark}. */
  readonly path: string;
  /** Whether STATUS succeeds, and may do so without this process. */
  readonly isReady: () => boolean;
  readonly clock: Clock;
}

/**
 * How long the shim may answer STATUS on its own while no plugin listens: the file's modification time, in the future
 * while the node is ready (HoldsReadyLease, shim/src/ready_lease.cc). It is kept when the process ends.
 */
export class ReadyLease {
  readonly #options: ReadyLeaseOptions;
  readonly #stopped = new AbortController();
  #running: Promise<void> = Promise.resolve();

  constructor(options: ReadyLeaseOptions) {
    this.#options = options;
  }

  start(): void {
    this.#running = this.#run();
  }

  async stop(): Promise<void> {
    this.#stopped.abort();
    await this.#running;
  }

  async #run(): Promise<void> {
    const { clock } = this.#options;
    do await this.#renew();
    while ((await clock.sleep(RENEWAL_MS, this.#stopped.signal)) === 'elapsed');
  }

  async #renew(): Promise<void> {
    const { path, isReady, clock } = this.#options;
    const nowMs = clock.nowMs();
    const untilMs = isReady() ? nowMs + LEASE_MS : nowMs;
    try {
      await utimes(path, nowMs / MS_PER_SECOND, untilMs / MS_PER_SECOND);
    } catch (error) {
      // Before the node was ready there is no file; one that cannot be touched is a lease that ends.
      if (codeOf(error) === undefined) throw error;
    }
  }
}
