import { formatAttachment, parseAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';
import { parseJson } from '@podwire/shared/json/parse';
import { z } from 'zod';

import type { Providers } from '../addresses/providers.js';
import type { JournalEntry } from './entry.js';
import type { Journal } from './journal.js';
import type { Replay } from './replay.js';

/** The journal's part of the HTTP API, for podwirectl. */
export interface JournalApi {
  /**
   * Pending releases, oldest first, as JSON: `{"entries":[{"attachment", "action", "order", "since", "reason",
   * "lastFault", "providers", "held":[{"address","sequenceNumber"}]}], "unreadable":[{"path","fault"}], "fault"}`.
   *
   * - `lastFault`: error of the last attempt, null before one
   * - `providers`: providers that the addresses are released to
   * - `held`: the allocation to release, null if unknown
   * - `unreadable`: damaged entries and entries of another release, which are not executed
   * - `fault`: why a restart could lose or restore an entry, else null
   */
  text(): string;
  /** Starts a round of the replay now. Resolves when each entry was tried once; never rejects. */
  retry(): Promise<void>;
  /**
   * Discards one entry without executing it.
   * @param request - JSON: `{"attachment"}`, as {@link JournalApi.text} has it
   * @param cancel - fires when the caller disconnects
   * @returns JSON: `{"discarded", "fault"}`, the entry and the fault as {@link JournalApi.text} has them
   * @throws Failure INVALID_REQUEST; ATTACHMENT_NOT_FOUND if there is no such entry; STATE_IO, CANCELLED
   */
  discard(request: string, cancel: AbortController): Promise<string>;
}

interface JournalApiOptions {
  readonly journal: Journal;
  readonly replay: Replay;
  readonly providers: Pick<Providers, 'typesOf'>;
  readonly releases: {
    /**
     * Discards an entry without executing it, in the attachment's queue.
     * @returns undefined if there is none
     */
    discard(attachment: Attachment, cancel: AbortController): Promise<JournalEntry | undefined>;
  };
}

const DISCARD_REQUEST = z.strictObject({ attachment: z.string() });

export function createJournalApi(options: JournalApiOptions): JournalApi {
  const { journal, replay, releases } = options;
  return {
    text: () => {
      const entries = journal.entries().map((entry) => describeEntry(entry, options));
      return `${JSON.stringify({ entries, unreadable: journal.unreadable(), fault: journal.fault ?? null })}\n`;
    },
    retry: () => replay.runNow(),
    discard: async (request, cancel) => {
      const attachment = readDiscardRequest(request);
      const entry = await releases.discard(attachment, cancel);
      if (!entry)
        throw new Failure(
          'ATTACHMENT_NOT_FOUND',
          `the journal has no entry of ${formatAttachment(attachment)}; it may have been completed or discarded before`,
        );
      return `${JSON.stringify({ discarded: describeEntry(entry, options), fault: journal.fault ?? null })}\n`;
    },
  };
}

function readDiscardRequest(request: string): Attachment {
  const parsed = DISCARD_REQUEST.safeParse(parseJson(request));
  const attachment = parsed.success ? parseAttachment(parsed.data.attachment) : undefined;
  if (attachment) return attachment;
  throw new Failure(
    'INVALID_REQUEST',
    'send {"attachment": "<network>/<container ID>/<interface>"}, as GET /journal has it',
  );
}

function describeEntry(entry: JournalEntry, { replay, providers }: JournalApiOptions): object {
  const { attachment, action, order, sinceMs, reason, held } = entry;
  const allocation = held?.map(({ address, sequenceNumber }) => ({ address, sequenceNumber: String(sequenceNumber) }));
  return {
    attachment: formatAttachment(attachment),
    action,
    order,
    since: new Date(sinceMs).toISOString(),
    reason,
    lastFault: replay.faultOf(entry) ?? null,
    providers: providers.typesOf(entry),
    held: allocation ?? null,
  };
}
