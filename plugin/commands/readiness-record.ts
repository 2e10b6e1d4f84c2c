import { readFile, utimes } from 'node:fs/promises';

import { codeOf, messageOf } from '@podwire/shared/failure/thrown';
import type { Clock } from '@podwire/shared/runtime/clock';
import { putDurably } from '@podwire/shared/files/durable-file';
import type { Logger } from '@podwire/shared/runtime/log';
import { z } from 'zod';

import type { Mode } from '../addresses/address-provider.js';

type ModeKind = Mode['kind'];

/** Names of the modes in the file. */
const STORED_MODE = { full: 'all', 'ipam-only': 'addresses', 'delegated-ipam': 'wire' } as const satisfies Record<
  ModeKind,
  string
>;

const MODES = ['full', 'ipam-only', 'delegated-ipam'] as const satisfies readonly ModeKind[];

/** The file, as JSON. */
const STORED = z.strictObject({
  version: z.literal(1),
  bootId: z.string(),
  shares: z.array(z.enum(Object.values(STORED_MODE))),
});

interface ReadinessRecordOptions {
  /** Absolute path of the file. Its directory exists before the node is ready. */
  readonly path: string;
  /** Identity of this boot; a file of an earlier boot is ignored. */
  readonly bootId: string;
  readonly log: Logger;
}

/** Whether the node has been ready since its boot, for each mode. The file outlives the process, but is valid for one boot only. */
export class ReadinessRecord {
  readonly #options: ReadinessRecordOptions;
  readonly #ready = new Set<ModeKind>();
  #storing: Promise<void> = Promise.resolve();

  constructor(options: ReadinessRecordOptions) {
    this.#options = options;
  }

  /** Reads the record of earlier processes. A file that cannot be read is logged and ignored. */
  async load(): Promise<void> {
    const { path, bootId, log } = this.#options;
    try {
      const stored = STORED.parse(JSON.parse(await readFile(path, 'utf8')));
      if (stored.bootId !== bootId) return;
      for (const mode of MODES) if (stored.shares.includes(STORED_MODE[mode])) this.#ready.add(mode);
    } catch (error) {
      if (codeOf(error) === 'ENOENT') return;
      log.warn({ err: error, path }, `${path} cannot be read: STATUS fails until an ADD can succeed`);
    }
  }

  /** Whether the node has been ready in any mode. */
  get hasAny(): boolean {
    return this.#ready.size > 0;
  }

  has(kind: ModeKind): boolean {
    return this.#ready.has(kind);
  }

  /** Records that the node is ready. */
  add(kind: ModeKind): void {
    if (this.#ready.has(kind)) return;
    this.#ready.add(kind);
    this.#storing = this.#storing.then(() => this.#store());
  }

  /** Resolves when the record is stored, or the failure is logged. */
  stored(): Promise<void> {
    return this.#storing;
  }

  async #store(): Promise<void> {
    const { path, bootId, log } = this.#options;
    const shares = [...this.#ready].map((mode) => STORED_MODE[mode]);
    try {
      await putDurably(path, `${JSON.stringify({ version: 1, bootId, shares })}\n`);
    } catch (error) {
      const reason = messageOf(error);
      log.warn(`${path} cannot be written: ${reason}; after a restart STATUS fails until an ADD can succeed`);
    }
  }
}

/** How long a restart of this process may take before STATUS fails. Equal to the tolerated outage of the dataplane. */
const LEASE_MS = 30_000;

const RENEWAL_MS = 5_000;

const MS_PER_SECOND = 1000;

interface ReadyLeaseOptions {
  /** The file of the {@link ReadinessRecord}. */
  readonly path: string;
  /** Whether STATUS may succeed without this process. */
  readonly isReady: () => boolean;
  readonly clock: Clock;
}

/**
 * Lets the shim answer STATUS itself while no plugin listens. The lease is the file's modification time: in the future while
 * the node is ready (HoldsReadyLease, shim/src/ready_lease.cc). It outlives the process.
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
      // Until the node was ready there is no file. If it cannot be updated, the lease expires.
      if (codeOf(error) === undefined) throw error;
    }
  }
}
