import { Failure } from '@podwire/shared/failure/failure';
import { backoffMs } from '@podwire/shared/retry/schedule';
import type { Clock } from '@podwire/shared/runtime/clock';

import {
  formatTableName,
  formOf,
  objectsOf,
  removal,
  replacement,
  type Nft,
  type NftCommand,
  type NftTable,
  type TableName,
} from './table.js';

/** Why a table was written: another was wanted, what the service found when it started was not it, or somebody changed it. */
type TableReason = 'wanted' | 'found' | 'drift';

/** What a keeper tells of its work. */
export interface TableEvents {
  tableWritten(table: string, reason: TableReason): void;
  /** Told once for each message, however often it fails with it. */
  tableFailed(table: string, failure: Failure): void;
  /** After failures. */
  tableRecovered(table: string): void;
}

export interface TableKeeperOptions {
  readonly nft: Nft;
  readonly events: TableEvents;
  readonly clock: Clock;
  /** A number from 0 (included) to 1 (excluded). */
  readonly random: () => number;
  readonly table: TableName;
}

/**
 * How often it is made sure that nobody changed the table. A restart of nftables.service or of a firewall begins with `flush ruleset`, and
 * the node's own announcements do not tell of it: pods reach nothing outside until then. A look takes 4 ms of a processor.
 */
export const CHECK_INTERVAL_MS = 15_000;

const RETRY = { baseMs: 1000, maxMs: 90_000 };

/** What is wanted: a table, or none. */
type Wanted = NftTable | 'absent';

/**
 * Keeps one table of nftables as wanted.
 *
 * What makes this hard:
 * - Tables are shared with everybody who is root. Whether one is as wanted is known from reading it alone, and reading runs a
 *   program, so it is read at the start and every 15 s; in between, what was written last counts as what is there.
 * - Other releases of nft may show a rule in another form than it was written in. The form in which a table is shown right after it
 *   was written is as good as the one in which it was written.
 * - Changes come one by one, from many pods at once. Those that come while nft runs go together in its next run; each caller waits
 *   for the run that has its change.
 */
export class TableKeeper {
  readonly #options: TableKeeperOptions;
  readonly #name: string;
  readonly #stopping = new AbortController();
  #wanted: Wanted | undefined;
  /** Commands that lead from what is there to what is wanted; undefined: not known, or not by commands. */
  #delta: readonly NftCommand[] | undefined;
  /** Whether what is there is what was written last, as far as is known. */
  #inForce = false;
  /** The form of the structure that was wanted when the table was last read after writing, and the form it was shown in. */
  #shownAs: { readonly wanted: string; readonly shown: string } | undefined;
  #next: Promise<void> | undefined;
  #last: Promise<void> = Promise.resolve();
  #failure: Failure | undefined;
  #failures = 0;
  #watching: Promise<void> | undefined;
  #wake = new AbortController();

  constructor(options: TableKeeperOptions) {
    this.#options = options;
    this.#name = formatTableName(options.table);
  }

  /** Why the table is not as wanted; undefined when it is, or when nothing is wanted yet. */
  get failure(): Failure | undefined {
    return this.#failure;
  }

  /** Whether a table that was wanted is there, as far as is known: the one wanted now, or the one before it. */
  get isInForce(): boolean {
    return this.#inForce;
  }

  /**
   * Wants this table, or none, from here on.
   * @param delta - commands that make the table wanted before into this one; without them the whole table is replaced
   * @returns when it is in force; it is tried again later when it fails
   * @throws Failure as {@link Nft}
   */
  want(table: Wanted, delta?: readonly NftCommand[]): Promise<void> {
    const before = this.#wanted;
    this.#wanted = table;
    if (before === undefined || !isSame(before, table)) {
      this.#delta = this.#delta && delta ? [...this.#delta, ...delta] : undefined;
    }
    this.#watching ??= this.#watch();
    return this.#run();
  }

  /** Reads the table, and writes it when it is not as wanted. @throws Failure as {@link Nft} */
  check(): Promise<void> {
    return this.#serially(() => this.#compare('drift'));
  }

  /** Leaves the table as it is. Resolves when nothing is under way any more. */
  async stop(): Promise<void> {
    this.#stopping.abort();
    this.#wake.abort();
    await this.#watching;
    await this.#last.catch(() => undefined);
  }

  /** One run for all who ask before it begins. */
  #run(): Promise<void> {
    this.#next ??= this.#serially(() => {
      this.#next = undefined;
      return this.#inForce ? this.#update() : this.#compare('found');
    });
    return this.#next;
  }

  #serially(work: () => Promise<void>): Promise<void> {
    const turn = this.#last.catch(() => undefined).then(() => this.#judged(work));
    this.#last = turn;
    turn.catch(() => undefined);
    return turn;
  }

  async #judged(work: () => Promise<void>): Promise<void> {
    const { events } = this.#options;
    try {
      await work();
      if (this.#failure) events.tableRecovered(this.#name);
      this.#succeeded();
    } catch (error) {
      const failure = error instanceof Failure ? error : new Failure('INTERNAL', 'a defect', { cause: error });
      this.#inForce = false;
      // Where there are no nftables, there is no table.
      if (this.#wanted === 'absent' && failure.code === 'KERNEL_UNSUPPORTED') {
        this.#succeeded();
        return;
      }
      this.#failures++;
      if (this.#failure?.message !== failure.message) events.tableFailed(this.#name, failure);
      this.#failure = failure;
      this.#wake.abort();
      throw failure;
    }
  }

  #succeeded(): void {
    this.#failure = undefined;
    this.#failures = 0;
  }

  /** Leads from the table that was written last to the one that is wanted. */
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
      // The table is not what it was thought to be.
      await this.#compare('drift');
    }
  }

  async #compare(reason: TableReason): Promise<void> {
    // Another may be wanted by the time this one is in force; its commands lead on from here.
    const wanted = this.#wanted;
    if (wanted === undefined) return;
    this.#delta = [];
    const isRight = await this.#isAsWanted(wanted);
    const wasInForce = this.#inForce;
    this.#inForce = isRight;
    if (!isRight) await this.#write(wanted, wasInForce ? reason : 'found');
  }

  async #write(wanted: Wanted, reason: TableReason): Promise<void> {
    const { nft, events, table } = this.#options;
    await nft.apply(wanted === 'absent' ? removal(table) : replacement(wanted));
    await this.#confirm(wanted);
    this.#inForce = true;
    events.tableWritten(this.#name, reason);
  }

  /** Looks whether nft did as it was told: it has ended well on input that it had not understood. */
  async #confirm(wanted: Wanted): Promise<void> {
    const shown = await this.#options.nft.read(this.#options.table);
    if (wanted === 'absent') {
      if (shown) throw notAsTold(this.#name);
      return;
    }
    const [told, seen] = [formOf(objectsOf(wanted)), shown && formOf(shown)];
    if (seen?.elements !== told.elements) throw notAsTold(this.#name);
    this.#shownAs = { wanted: told.structure, shown: seen.structure };
  }

  async #isAsWanted(wanted: Wanted): Promise<boolean> {
    const shown = await this.#options.nft.read(this.#options.table);
    if (wanted === 'absent' || !shown) return wanted === 'absent' && !shown;
    const [told, seen] = [formOf(objectsOf(wanted)), formOf(shown)];
    const known = this.#shownAs?.wanted === told.structure ? this.#shownAs.shown : told.structure;
    return seen.structure === known && seen.elements === told.elements;
  }

  async #watch(): Promise<void> {
    const { clock, random } = this.#options;
    while (!this.#stopping.signal.aborted) {
      const failures = this.#failures;
      const waitMs = failures === 0 ? CHECK_INTERVAL_MS : backoffMs(failures - 1, RETRY, random());
      this.#wake = new AbortController();
      const woken = await clock.sleep(waitMs, this.#wake.signal);
      // A failure while it slept has made the time until the next attempt shorter.
      if (woken === 'elapsed') await this.check().catch(() => undefined);
    }
  }
}

function isSame(a: Wanted, b: Wanted): boolean {
  if (a === 'absent' || b === 'absent') return a === b;
  const [one, other] = [formOf(objectsOf(a)), formOf(objectsOf(b))];
  return one.structure === other.structure && one.elements === other.elements;
}

function notAsTold(table: string): Failure {
  return new Failure('KERNEL_REFUSED', `nft took table ${table} and shows another: see nft list table ${table}`);
}
