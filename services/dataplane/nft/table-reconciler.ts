import { Failure } from '@podwire/shared/failure/failure';
import { WorkQueue } from '@podwire/shared/reconcile/work-queue';
import { backoffMs } from '@podwire/shared/reconcile/schedule';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { Nft } from './nft.js';
import {
  formatTableName,
  objectsOf,
  removal,
  replacement,
  type NftCommand,
  type NftTable,
  type TableName,
} from './table.js';
import { formOf } from './table-form.js';

/** Why a table was written: a new wanted state, a difference at the start, or a change by another program. */
type TableReason = 'wanted' | 'found' | 'drift';

/** Receives the reconciler's events. */
export interface TableEvents {
  tableWritten(table: string, reason: TableReason): void;
  /** Called once for each message, however often it recurs. */
  tableFailed(table: string, failure: Failure): void;
  /** Called on the first success after failures. */
  tableRecovered(table: string): void;
}

export interface TableReconcilerOptions {
  readonly nft: Nft;
  readonly events: TableEvents;
  readonly clock: Clock;
  /** Uniform in [0, 1). */
  readonly random: () => number;
  readonly table: TableName;
}

/**
 * Polling interval for changes of the table. A restart of nftables.service or of a firewall begins with `flush ruleset`, without a
 * notification about links. Until the next check, pods reach nothing outside the cluster. A check takes 4 ms of CPU time.
 */
export const CHECK_INTERVAL_MS = 15_000;

const RETRY = { baseMs: 1000, maxMs: 90_000 };

/** The wanted table, or none. */
type Wanted = NftTable | 'absent';

/**
 * Reconciles one table of nftables.
 *
 * Difficulties:
 * - Every program with root may change tables, and only reading shows it. As reading runs a program, the table is read at the
 *   start and every 15 s. In between, the last written state counts as the actual one.
 * - Other releases of nft may list a rule in another form than the written one. The form listed right after a write is accepted
 *   too.
 * - Many pods request changes at once. Changes that arrive while nft runs are combined in its next run. Each caller waits for the
 *   run with its change.
 */
export class TableReconciler {
  readonly #options: TableReconcilerOptions;
  readonly #name: string;
  readonly #queue: WorkQueue<'check'>;
  #wanted: Wanted | undefined;
  /** Commands from the actual to the wanted state; undefined: unknown, or a full replacement is needed. */
  #delta: readonly NftCommand[] | undefined;
  /** Whether the actual state is the last written one, as far as known. */
  #inForce = false;
  /** The wanted form of the last write, and the form that nft listed after it. */
  #listedForm: { readonly wanted: string; readonly listed: string } | undefined;
  #next: Promise<void> | undefined;
  #last: Promise<void> = Promise.resolve();
  /** The last failure, with the number of failed runs in a row; undefined after a success. */
  #failed: { readonly failure: Failure; readonly count: number } | undefined;

  constructor(options: TableReconcilerOptions) {
    this.#options = options;
    this.#name = formatTableName(options.table);
    this.#queue = new WorkQueue({
      reconcile: () =>
        this.check().then(
          () => ({ inMs: CHECK_INTERVAL_MS }),
          // The failure has requested the next check.
          () => undefined,
        ),
      retryInMs: () => CHECK_INTERVAL_MS,
      onFailure: () => undefined,
      clock: options.clock,
    });
  }

  /** The failure; undefined when the table matches, or none is wanted yet. */
  get failure(): Failure | undefined {
    return this.#failed?.failure;
  }

  /** Whether a wanted table exists, as far as known: the current one, or the one before. */
  get isInForce(): boolean {
    return this.#inForce;
  }

  /**
   * Sets the wanted table, or none.
   * @param delta - commands from the previous wanted table to this one; without them the whole table is replaced
   * @returns when it is in force; a failure is retried later
   * @throws Failure as {@link Nft}
   */
  setWanted(table: Wanted, delta?: readonly NftCommand[]): Promise<void> {
    const before = this.#wanted;
    this.#wanted = table;
    if (before === undefined || !isSame(before, table)) {
      this.#delta = this.#delta && delta ? [...this.#delta, ...delta] : undefined;
    }
    if (before === undefined) this.#queue.request('check', CHECK_INTERVAL_MS);
    return this.#run();
  }

  /** Reads the table, and writes it when it differs. @throws Failure as {@link Nft} */
  check(): Promise<void> {
    return this.#serially(() => this.#compare('drift'));
  }

  /** Leaves the table unchanged. Resolves when no run is in flight. */
  async stop(): Promise<void> {
    await this.#queue.stop();
    await this.#last.catch(() => undefined);
  }

  /** Combines all requests that arrive before the run begins. */
  #run(): Promise<void> {
    this.#next ??= this.#serially(() => {
      this.#next = undefined;
      return this.#inForce ? this.#update() : this.#compare('found');
    });
    return this.#next;
  }

  #serially(work: () => Promise<void>): Promise<void> {
    const turn = this.#last.catch(() => undefined).then(() => this.#attempt(work));
    this.#last = turn;
    turn.catch(() => undefined);
    return turn;
  }

  async #attempt(work: () => Promise<void>): Promise<void> {
    const { events } = this.#options;
    try {
      await work();
      if (this.#failed) events.tableRecovered(this.#name);
      this.#failed = undefined;
    } catch (error) {
      const failure = error instanceof Failure ? error : new Failure('INTERNAL', 'internal error', { cause: error });
      this.#inForce = false;
      // No table exists without nftables.
      if (this.#wanted === 'absent' && failure.code === 'KERNEL_UNSUPPORTED') {
        this.#failed = undefined;
        return;
      }
      const { failure: before, count = 0 } = this.#failed ?? {};
      if (before?.message !== failure.message) events.tableFailed(this.#name, failure);
      this.#failed = { failure, count: count + 1 };
      this.#queue.request('check', backoffMs(count, RETRY, this.#options.random()));
      throw failure;
    }
  }

  /** Commands from the last written table to the wanted one. */
  async #update(): Promise<void> {
    const delta = this.#delta;
    this.#delta = [];
    if (this.#wanted === undefined) return;
    if (!delta) return this.#write(this.#wanted, 'wanted');
    if (delta.length === 0) return;
    try {
      await this.#options.nft.apply(delta);
      this.#options.events.tableWritten(this.#name, 'wanted');
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      // The actual table differs from the assumed one.
      await this.#compare('drift');
    }
  }

  async #compare(reason: TableReason): Promise<void> {
    // The wanted state may change during the comparison: later commands build on the state compared here.
    const wanted = this.#wanted;
    if (wanted === undefined) return;
    this.#delta = [];
    const isAsWanted = await this.#isAsWanted(wanted);
    const wasInForce = this.#inForce;
    this.#inForce = isAsWanted;
    if (!isAsWanted) await this.#write(wanted, wasInForce ? reason : 'found');
  }

  async #write(wanted: Wanted, reason: TableReason): Promise<void> {
    const { nft, events, table } = this.#options;
    await nft.apply(wanted === 'absent' ? removal(table) : replacement(wanted));
    await this.#confirm(wanted);
    this.#inForce = true;
    events.tableWritten(this.#name, reason);
  }

  /** Verifies nft's work by reading: nft has reported success for input that it did not understand. */
  async #confirm(wanted: Wanted): Promise<void> {
    const objects = await this.#options.nft.read(this.#options.table);
    if (wanted === 'absent') {
      if (objects) throw mismatch(this.#name);
      return;
    }
    const [expected, actual] = [formOf(objectsOf(wanted)), objects && formOf(objects)];
    if (actual?.elements !== expected.elements) throw mismatch(this.#name);
    this.#listedForm = { wanted: expected.structure, listed: actual.structure };
  }

  async #isAsWanted(wanted: Wanted): Promise<boolean> {
    const objects = await this.#options.nft.read(this.#options.table);
    if (wanted === 'absent' || !objects) return wanted === 'absent' && !objects;
    const [expected, actual] = [formOf(objectsOf(wanted)), formOf(objects)];
    const structure = this.#listedForm?.wanted === expected.structure ? this.#listedForm.listed : expected.structure;
    return actual.structure === structure && actual.elements === expected.elements;
  }
}

function isSame(a: Wanted, b: Wanted): boolean {
  if (a === 'absent' || b === 'absent') return a === b;
  const [one, other] = [formOf(objectsOf(a)), formOf(objectsOf(b))];
  return one.structure === other.structure && one.elements === other.elements;
}

function mismatch(table: string): Failure {
  return new Failure(
    'KERNEL_REFUSED',
    `table ${table}: nft reported success, but lists different content; see nft list table ${table}`,
  );
}
