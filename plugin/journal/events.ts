import { metrics, type Meter } from '@opentelemetry/api';
import { formatAttachment } from '@podwire/shared/attachment/attachment';
import type { Failure } from '@podwire/shared/failure/failure';
import type { Logger } from '@podwire/shared/runtime/log';
import { formatCount } from '@podwire/shared/words/format-count';

import type { JournalEntry, UnreadableEntry } from './entry.js';

/** How much waits, for the metrics. */
export interface JournalLevel {
  readonly entries: number;
  /** Those that a restart would lose. */
  readonly volatileEntries: number;
  /** Damaged entries and those of another release, which are not executed. */
  readonly unreadableEntries: number;
  /** Age of the oldest debt in milliseconds; 0 when there is none. */
  readonly oldestAgeMs: number;
}

const MS_PER_SECOND = 1000;

/** Reports journal changes after they happen: a counter and a log line. */
export class JournalEvents {
  readonly #log: Logger;
  readonly #meter: Meter;
  readonly #written;
  readonly #done;
  readonly #discarded;
  readonly #faults;

  constructor(log: Logger) {
    this.#log = log;
    const meter = (this.#meter = metrics.getMeter('podwire-plugin'));
    this.#written = meter.createCounter('podwire.plugin.journal.written', {
      unit: '{entry}',
      description: 'Debts of DEL written down, by what is to do',
    });
    this.#done = meter.createCounter('podwire.plugin.journal.done', {
      unit: '{entry}',
      description: 'Debts of DEL that are done',
    });
    this.#discarded = meter.createCounter('podwire.plugin.journal.discarded', {
      unit: '{entry}',
      description: 'Debts of DEL that were given up, by what was to do',
    });
    this.#faults = meter.createCounter('podwire.plugin.journal.faults', {
      unit: '{fault}',
      description: 'Entries that could not be stored, read or removed',
    });
  }

  /** Registers the gauge of pending entries. */
  observe(level: () => JournalLevel): void {
    const gauge = (name: string, unit: string, description: string) =>
      this.#meter.createObservableGauge(`podwire.plugin.journal.${name}`, { unit, description });
    const entries = gauge('entries', '{entry}', 'Debts of DEL that wait');
    const volatile = gauge('volatile_entries', '{entry}', 'Debts of DEL that a restart would lose');
    const unreadable = gauge('unreadable_entries', '{entry}', 'Debts of DEL that cannot be read, and wait for who can');
    const age = gauge('oldest_age', 's', 'Age of the oldest debt of DEL');
    this.#meter.addBatchObservableCallback(
      (result) => {
        const { entries: count, volatileEntries, unreadableEntries, oldestAgeMs } = level();
        result.observe(entries, count);
        result.observe(volatile, volatileEntries);
        result.observe(unreadable, unreadableEntries);
        result.observe(age, oldestAgeMs / MS_PER_SECOND);
      },
      [entries, volatile, unreadable, age],
    );
  }

  written({ attachment, todo, reason, order }: JournalEntry): void {
    this.#written.add(1, { todo });
    this.#log.warn({ todo, order }, `journal: ${formatAttachment(attachment)} is to be done later: ${reason}`);
  }

  done({ attachment, todo, order, sinceMs }: JournalEntry, nowMs: number): void {
    this.#done.add(1, { todo });
    this.#log.info({ todo, order, waited_ms: nowMs - sinceMs }, `journal: ${formatAttachment(attachment)} is done`);
  }

  /**
   * An operator gave an entry up, or it was one too many of those that are not expected to hold anything.
   * @param givers - names of the IPAM plugins whose addresses may stay held
   */
  discarded({ attachment, todo, order, sinceMs, held }: JournalEntry, givers: readonly string[], nowMs: number): void {
    this.#discarded.add(1, { todo });
    const wire = todo === 'detach-and-release' ? 'its wire is not taken away, and ' : '';
    const addresses = held?.map(({ address }) => address);
    this.#log.warn(
      { todo, order, waited_ms: nowMs - sinceMs, givers, addresses },
      `journal: ${formatAttachment(attachment)} is discarded: ${wire}what ${givers.join(' and ')} gave it may stay held`,
    );
  }

  /** The entries of earlier processes were read. */
  loaded(count: number): void {
    if (count > 0)
      this.#log.warn(
        { entries: count },
        `journal: ${formatCount(count, 'entry of an earlier process is', 'entries of an earlier process are')} still to be done`,
      );
  }

  /** An entry is in memory alone; a restart would lose it, and with it an address or an interface. */
  notStored({ attachment }: JournalEntry, reason: string): void {
    this.#faults.add(1, { operation: 'write' });
    this.#log.error(`journal: ${formatAttachment(attachment)} is in memory only, and a restart loses it: ${reason}`);
  }

  /** The process ends before the entry could be stored. */
  lost({ attachment, todo, held }: JournalEntry, reason: string): void {
    this.#faults.add(1, { operation: 'write' });
    const addresses = held?.map(({ address }) => address);
    this.#log.error(
      { todo, addresses },
      `journal: ${formatAttachment(attachment)} is lost with this process, and what it holds is for GC (podwirectl gc) to find: ${reason}`,
    );
  }

  stored({ attachment }: JournalEntry): void {
    this.#log.info(`journal: ${formatAttachment(attachment)} is stored after all`);
  }

  notRemoved(name: string, failure: Failure): void {
    this.#faults.add(1, { operation: 'remove' });
    this.#log.error(
      { err: failure },
      `journal: the entry of ${name} is closed, but its file cannot be removed: ${failure.message}`,
    );
  }

  notLoaded(failure: Failure): void {
    this.#faults.add(1, { operation: 'load' });
    this.#log.error({ err: failure }, `journal: what earlier processes left is not known: ${failure.message}`);
  }

  unreadable({ path, fault }: UnreadableEntry): void {
    this.#faults.add(1, { operation: 'read' });
    this.#log.error(
      { path },
      `journal: an entry cannot be read, and waits at ${path} for a release that can: ${fault}`,
    );
  }

  /** A round of the replay ended with this for an entry. */
  notDone({ attachment, order }: JournalEntry, error: unknown): void {
    const name = formatAttachment(attachment);
    this.#log.warn({ err: error, order, attachment: name }, `journal: ${name} is not done yet`);
  }
}
