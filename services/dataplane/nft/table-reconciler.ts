import { Failure } from '@podwire/shared/failure/failure';
import { WorkQueue } from '@podwire/shared/reconcile/work-queue';
import { backoffMs } from '@podwire/shared/reconcile/schedule';
import type { Clock } from '@podwire/shared/runtime/clock';

import { NO_VERDICT_DETAIL, type Nft, type TableWatch } from './nft.js';
import {
  elementChanges,
  formatTableName,
  objectsOf,
  removal,
  replacement,
  type JsonObject,
  type NftTable,
  type TableName,
} from './table.js';
import { formOf } from './table-form.js';
import { TransactionReports } from './transaction-reports.js';

/** Why a table was written: a new wanted state, a difference at the start, or a change by another program. */
type TableReason = 'wanted' | 'found' | 'drift';

/** Receives the reconciler's events. */
export interface TableEvents {
  /** @param gapMs - for `drift`: from the report of the change until the table was restored */
  tableWritten(table: string, reason: TableReason, gapMs?: number): void;
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

/** Polling interval for changes of a table while the kernel reports none. A comparison takes 4 ms of CPU time. */
export const CHECK_INTERVAL_MS = 15_000;

/** Attempts of a write, as another program may change the table before it is confirmed. */
const WRITE_ATTEMPTS_MAX = 3;

const RETRY = { baseMs: 1000, maxMs: 90_000 };

/** The wanted table, or none. */
type Wanted = NftTable | 'absent';

/**
 * Reconciles one table of nftables.
 *
 * Difficulties:
 * - Every program with root may change tables: a restart of nftables.service or of a firewall begins with `flush ruleset`. The
 *   kernel reports each transaction, own ones included, and a report may arrive before the transaction's own result. A comparison
 *   follows only a report whose number belongs to no own transaction.
 * - Other releases of nft may list a rule in another form than the written one. The form listed right after a write is accepted
 *   too.
 * - Many pods request changes at once. Changes that arrive while one is written are combined in the next one. Each caller waits
 *   for the transaction with its change.
 */
export class TableReconciler {
  readonly #options: TableReconcilerOptions;
  readonly #name: string;
  readonly #queue: WorkQueue<'check'>;
  #wanted: Wanted | undefined;
  /** The existing table, as far as known; undefined before the first comparison, and after a failure. */
  #actual: Wanted | undefined;
  /** The wanted form of the last write, and the form that nft listed after it. */
  #listedForm: { readonly wanted: string; readonly listed: string } | undefined;
  #next: Promise<void> | undefined;
  #last: Promise<void> = Promise.resolve();
  /** The last failure, with the number of failed runs in a row; undefined after a success. */
  #failed: { readonly failure: Failure; readonly count: number } | undefined;
  #watch: TableWatch | undefined;
  readonly #reports = new TransactionReports();

  constructor(options: TableReconcilerOptions) {
    this.#options = options;
    this.#name = formatTableName(options.table);
    this.#queue = new WorkQueue({
      reconcile: () =>
        this.#serially(() => this.#checkReports()).then(
          () => (this.#watch ? undefined : { inMs: CHECK_INTERVAL_MS }),
          // The failure has requested the next check.
          () => undefined,
        ),
      retryInMs: () => CHECK_INTERVAL_MS,
      onFailure: () => undefined,
      clock: options.clock,
    });
  }

  /** The condition while the table is not as wanted; its message is the effect and the failure. */
  conditions<Kind extends object>(kind: Kind, effect: string): readonly (Kind & { readonly message: string })[] {
    return this.#failed ? [{ ...kind, message: `${effect}: ${this.#failed.failure.message}` }] : [];
  }

  /** Whether a wanted table exists, as far as known: the current one, or the one before. */
  get isInForce(): boolean {
    return this.#actual !== undefined;
  }

  /**
   * Sets the wanted table, or none. If only elements differ from the existing table, only they are changed.
   * @returns when it is in force; a failure is retried later
   * @throws Failure as {@link Nft}
   */
  setWanted(table: Wanted): Promise<void> {
    const isFirst = this.#wanted === undefined;
    this.#wanted = table;
    if (isFirst) this.#queue.request('check', CHECK_INTERVAL_MS);
    return this.#run();
  }

  /** Same as {@link setWanted} for callers that do not wait. Failures are events. */
  request(table: Wanted): void {
    this.setWanted(table).catch(() => undefined);
  }

  /** Leaves the table unchanged. Resolves when no run is in flight. */
  async stop(): Promise<void> {
    await this.#queue.stop();
    await this.#last.catch(() => undefined);
    this.#watch?.close();
  }

  /** Combines all requests that arrive before the run begins. */
  #run(): Promise<void> {
    this.#next ??= this.#serially(() => {
      this.#next = undefined;
      return this.#actual === undefined ? this.#compare('found') : this.#update(this.#actual);
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
      await this.#followChanges();
      await work();
      if (this.#failed) events.tableRecovered(this.#name);
      this.#failed = undefined;
    } catch (error) {
      const failure = error instanceof Failure ? error : new Failure('INTERNAL', 'internal error', { cause: error });
      this.#actual = undefined;
      // Without nftables no table exists.
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

  /** Subscribes to reports, unless it is done. Without them the table is polled, and the next run tries again. */
  async #followChanges(): Promise<void> {
    if (this.#watch || this.#wanted === undefined) return;
    const { nft, table, clock } = this.#options;
    const onChange = (transaction: number | undefined, isDeleted: boolean) => {
      this.#reports.add(transaction, { atMs: clock.monotonicMs(), isDeleted });
      this.#queue.request('check');
    };
    const onEnd = () => {
      this.#watch = undefined;
      this.#queue.request('check');
    };
    try {
      this.#watch = await nft.watch(table, { onChange, onEnd });
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      return;
    }
    // Earlier changes were not reported.
    this.#actual = undefined;
  }

  async #checkReports(): Promise<void> {
    if (this.#watch && this.#actual !== undefined && !this.#reports.hasForeign) return;
    await this.#compare('drift');
  }

  /** Changes the existing table to the wanted one. */
  async #update(actual: Wanted): Promise<void> {
    const wanted = this.#wanted;
    if (wanted === undefined) return;
    const changes = actual === 'absent' || wanted === 'absent' ? undefined : elementChanges(actual, wanted);
    if (changes?.length === 0 || (actual === 'absent' && wanted === 'absent')) return;
    if (!changes) return this.#write(wanted, 'wanted');
    const { nft, table, events } = this.#options;
    try {
      this.#noteOwn(await nft.changeElements(table, changes));
      this.#actual = wanted;
      events.tableWritten(this.#name, 'wanted');
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      // The actual table differs from the assumed one.
      await this.#compare('drift');
    }
  }

  async #compare(reason: TableReason): Promise<void> {
    // The wanted state may change during the comparison: the next run continues from the state compared here.
    const wanted = this.#wanted;
    if (wanted === undefined) return;
    const { changedAtMs, isDeleted } = this.#reports.take();
    const wasInForce = this.#actual !== undefined;
    this.#actual = undefined;
    // Reading a deleted table would only lengthen the time without it.
    if (!(isDeleted && wanted !== 'absent') && (await this.#isAsWanted(wanted))) this.#actual = wanted;
    else await this.#write(wanted, wasInForce ? reason : 'found', changedAtMs);
  }

  async #write(wanted: Wanted, reason: TableReason, changedAtMs?: number): Promise<void> {
    const { events, clock } = this.#options;
    for (let attempt = 1; !(await this.#isWritten(wanted)); attempt++)
      if (attempt === WRITE_ATTEMPTS_MAX) throw mismatch(this.#name);
    this.#actual = wanted;
    events.tableWritten(this.#name, reason, changedAtMs === undefined ? undefined : clock.monotonicMs() - changedAtMs);
  }

  /** Writes the table. @returns whether it is as wanted afterwards */
  async #isWritten(wanted: Wanted): Promise<boolean> {
    const { nft, table } = this.#options;
    await nft.apply(wanted === 'absent' ? removal(table) : replacement(wanted));
    // If another program was faster, this is its number: the own one then counts as foreign, and a comparison follows.
    this.#noteOwn(await nft.latestTransaction());
    return this.#isConfirmed(wanted);
  }

  #noteOwn(transaction: number | undefined): void {
    if (this.#watch && transaction !== undefined) this.#reports.addOwn(transaction);
  }

  /** Verifies nft's work by reading: nft has reported success for input that it did not understand. */
  async #isConfirmed(wanted: Wanted): Promise<boolean> {
    const objects = await this.#options.nft.read(this.#options.table);
    if (wanted === 'absent') return !objects;
    const [expected, actual] = [formOf(objectsOf(wanted)), objects && formOf(objects)];
    if (actual?.elements !== expected.elements) return false;
    this.#listedForm = { wanted: expected.structure, listed: actual.structure };
    return true;
  }

  async #isAsWanted(wanted: Wanted): Promise<boolean> {
    const objects = await this.#readExisting();
    if (wanted === 'absent' || !objects) return wanted === 'absent' && !objects;
    const [expected, actual] = [formOf(objectsOf(wanted)), formOf(objects)];
    const structure = this.#listedForm?.wanted === expected.structure ? this.#listedForm.listed : expected.structure;
    return actual.structure === structure && actual.elements === expected.elements;
  }

  /** nft may fail to print what another program has made of a table: after a failure, such a table counts as one to replace. */
  async #readExisting(): Promise<readonly JsonObject[] | undefined> {
    try {
      return await this.#options.nft.read(this.#options.table);
    } catch (error) {
      const isRefused = error instanceof Failure && error.code === 'KERNEL_REFUSED';
      // A write would take too long as well, and callers wait.
      if (this.#failed && isRefused && !(NO_VERDICT_DETAIL in error.details)) return [];
      throw error;
    }
  }
}

function mismatch(table: string): Failure {
  return new Failure(
    'KERNEL_REFUSED',
    `table ${table}: nft reported success, but lists different content; see nft list table ${table}`,
  );
}
