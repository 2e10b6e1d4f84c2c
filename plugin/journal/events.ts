import { formatAttachment } from '@podwire/shared/attachment/attachment';
import type { Failure } from '@podwire/shared/failure/failure';
import type { Logger } from '@podwire/shared/runtime/log';
import { formatCount } from '@podwire/shared/words/format-count';
import { observeMetrics } from '@podwire/shared/telemetry/instruments';

import type { JournalEntry, UnreadableEntry } from './entry.js';

/** State of the journal, for the metrics. */
export interface JournalLevel {
  readonly entries: number;
  /** Entries that a restart would lose. */
  readonly volatileEntries: number;
  /** Damaged entries and entries of another release, which are not executed. */
  readonly unreadableEntries: number;
  /** Age of the oldest pending release in milliseconds; 0 when there is none. */
  readonly oldestAgeMs: number;
}

const MS_PER_SECOND = 1000;

/** Reports journal changes after they happen. */
export class JournalEvents {
  readonly #log: Logger;

  constructor(log: Logger) {
    this.#log = log;
  }

  /** Registers the gauges. */
  observe(level: () => JournalLevel): void {
    observeMetrics(
      [
        'podwire.plugin.journal.entries',
        'podwire.plugin.journal.volatile_entries',
        'podwire.plugin.journal.unreadable_entries',
        'podwire.plugin.journal.oldest_age',
      ],
      (observe) => {
        const { entries, volatileEntries, unreadableEntries, oldestAgeMs } = level();
        observe('podwire.plugin.journal.entries', entries);
        observe('podwire.plugin.journal.volatile_entries', volatileEntries);
        observe('podwire.plugin.journal.unreadable_entries', unreadableEntries);
        observe('podwire.plugin.journal.oldest_age', oldestAgeMs / MS_PER_SECOND);
      },
    );
  }

  written({ attachment, action, reason, order }: JournalEntry): void {
    this.#log.warn({ action, order }, `journal: release of ${formatAttachment(attachment)} is pending: ${reason}`);
  }

  done({ attachment, action, order, sinceMs }: JournalEntry, nowMs: number): void {
    this.#log.info(
      { action, order, waited_ms: nowMs - sinceMs },
      `journal: release of ${formatAttachment(attachment)} is done`,
    );
  }

  /**
   * An operator discarded an entry, or the journal had too many entries that are not expected to hold an address.
   * @param providers - names of the providers whose addresses may stay allocated
   */
  discarded(
    { attachment, action, order, sinceMs, held }: JournalEntry,
    providers: readonly string[],
    nowMs: number,
  ): void {
    const wire = action === 'detach-and-release' ? 'its wire is not removed, and ' : '';
    const addresses = held?.map(({ address }) => address);
    this.#log.warn(
      { action, order, waited_ms: nowMs - sinceMs, providers, addresses },
      `journal: release of ${formatAttachment(attachment)} is discarded: ${wire}its addresses of ${providers.join(' and ')} may stay allocated`,
    );
  }

  loaded(count: number): void {
    if (count > 0)
      this.#log.warn(
        { entries: count },
        `journal: loaded ${formatCount(count, 'pending release', 'pending releases')} of an earlier process`,
      );
  }

  /** An entry is only in memory: a restart would lose it and leak an address or an interface. */
  notStored({ attachment }: JournalEntry, reason: string): void {
    this.#log.error(
      `journal: release of ${formatAttachment(attachment)} is in memory only, and a restart loses it: ${reason}`,
    );
  }

  /** The process stops before the entry could be stored. */
  lost({ attachment, action, held }: JournalEntry, reason: string): void {
    const addresses = held?.map(({ address }) => address);
    this.#log.error(
      { action, addresses },
      `journal: release of ${formatAttachment(attachment)} is lost with this process; run GC (podwirectl gc) to release what it holds: ${reason}`,
    );
  }

  stored({ attachment }: JournalEntry): void {
    this.#log.info(`journal: release of ${formatAttachment(attachment)} is stored now`);
  }

  notRemoved(name: string, failure: Failure): void {
    this.#log.error(
      { err: failure },
      `journal: release of ${name} is closed, but its file cannot be removed: ${failure.message}`,
    );
  }

  notLoaded(failure: Failure): void {
    this.#log.error({ err: failure }, `journal: entries of earlier processes cannot be read: ${failure.message}`);
  }

  unreadable({ path, fault }: UnreadableEntry): void {
    this.#log.error(
      { path },
      `journal: an entry cannot be read and is not executed; its file ${path} is kept for another release of Podwire: ${fault}`,
    );
  }

  /** A round of the replay failed for an entry. */
  notDone({ attachment, order }: JournalEntry, error: unknown): void {
    const name = formatAttachment(attachment);
    this.#log.warn({ err: error, order, attachment: name }, `journal: release of ${name} failed; it stays pending`);
  }
}
