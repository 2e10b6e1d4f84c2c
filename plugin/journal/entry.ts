import { attachmentFaults, formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { handleId } from '@podwire/shared/attachment/names';
import { parseJson } from '@podwire/shared/json/parse';
import { z } from 'zod';

import type { Delegate } from '../addresses/mode.js';
import type { HeldAddress } from '../clients/clients.js';
import { VARIABLES } from '../cni/environment.js';

/**
 * What is still to do for an attachment, in this order: an address is given back only when no wire leads to it any more.
 * - `detach-and-release`: all of a DEL.
 * - `release`: the wire is gone.
 * - `release-unless-attached`: an ADD did not hear whether it got addresses; a wire proves that an earlier one holds them.
 */
export const TODOS = ['detach-and-release', 'release', 'release-unless-attached'] as const;

export type Todo = (typeof TODOS)[number];

/** What a DEL, or the undoing of an ADD, could not do. */
export interface Debt {
  readonly attachment: Attachment;
  readonly todo: Todo;
  /** The allocation to release; undefined if unknown, which means all addresses of the attachment. */
  readonly held: readonly HeldAddress[] | undefined;
  /** Absolute path of the pod's network namespace, where it is known and the wire is still to go. It may be another pod's by now. */
  readonly netns?: string | undefined;
  /** The other IPAM plugin that gave the addresses, and takes them back. */
  readonly delegate?: Delegate | undefined;
  /** Whether that plugin refused the ADD itself: by CNI it holds nothing then, though that need not be true. */
  readonly refused?: true | undefined;
  /** Why it could not be done, for people. */
  readonly reason: string;
}

/** A debt that is written down. */
export interface JournalEntry extends Debt {
  /** Place in the order of writing. */
  readonly order: number;
  /** When the oldest debt of the attachment was written, in epoch milliseconds. */
  readonly sinceMs: number;
}

const VERSION = 1;

const uint64 = z
  .string()
  .regex(/^\d{1,20}$/, 'is no sequence number')
  .transform(BigInt);

/**
 * The file of an entry: JSON. `handle` repeats what follows from the attachment, so that the file can be compared with IPAM's
 * records as it is. A field that is not known is a later release's, which had to raise the version where it may not be passed over.
 */
const STORED = z.object({
  version: z.literal(VERSION),
  order: z.int().nonnegative(),
  sinceMs: z.int().nonnegative(),
  attachment: z
    .strictObject({ network: z.string(), containerId: z.string(), interfaceName: z.string() })
    .refine((attachment) => attachmentFaults(attachment).length === 0, 'is no attachment'),
  handle: z.string(),
  todo: z.enum(TODOS),
  held: z.array(z.strictObject({ address: z.string().min(1), sequenceNumber: uint64 })).nullable(),
  netns: z.string().startsWith('/').optional(),
  delegate: z
    .strictObject({
      type: z.string(),
      variables: z.partialRecord(z.enum(VARIABLES), z.string()),
      configuration: z.string(),
    })
    .optional(),
  refused: z.literal(true).optional(),
  reason: z.string(),
});

export function encodeEntry({ held, ...entry }: JournalEntry): string {
  const addresses = held?.map(({ address, sequenceNumber }) => ({ address, sequenceNumber: String(sequenceNumber) }));
  const stored = { version: VERSION, ...entry, handle: handleId(entry.attachment), held: addresses ?? null };
  return `${JSON.stringify(stored)}\n`;
}

export type DecodedEntry =
  { readonly ok: true; readonly entry: JournalEntry } | { readonly ok: false; readonly fault: string };

/** What of a file that cannot be read may still say whose it is. */
const OWNER = z.object({
  attachment: z.object({ network: z.string(), containerId: z.string(), interfaceName: z.string() }),
});

/** Reads what {@link encodeEntry} wrote. Of anything else it says what is wrong. */
export function decodeEntry(text: string): DecodedEntry {
  const json = parseJson(text);
  const parsed = STORED.safeParse(json);
  if (!parsed.success) {
    const faults = parsed.error.issues.map(({ path, message }) => `${path.join('.') || 'the file'}: ${message}`);
    const owner = OWNER.safeParse(json);
    const whose = owner.success ? `of ${formatAttachment(owner.data.attachment)}: ` : '';
    return { ok: false, fault: whose + faults.join('; ') };
  }
  const { order, sinceMs, attachment, todo, held, netns, delegate, refused, reason } = parsed.data;
  const optional = {
    ...(netns !== undefined && { netns }),
    ...(delegate && { delegate }),
    ...(refused && { refused }),
  };
  return { ok: true, entry: { order, sinceMs, attachment, todo, held: held ?? undefined, ...optional, reason } };
}

/** A stored entry that cannot be read. */
export interface UnreadableEntry {
  /** Where it was set aside, or still is. */
  readonly path: string;
  /** What is wrong with it, for people. */
  readonly fault: string;
}

export interface StoredEntries {
  readonly entries: readonly JournalEntry[];
  readonly unreadable: readonly UnreadableEntry[];
}

/**
 * Where the journal outlives the process. Implementations: a directory, and memory (the fake); both pass `store.contract.ts`.
 * Methods throw a Failure STATE_IO when the storage refuses. One process at a time uses a store.
 */
export interface JournalStore {
  /**
   * Reads all entries, in no order. An unreadable entry, e.g. of a later release, is set aside, reported, and read
   * again by the next call; it never fails the call. Idempotent.
   */
  load(): Promise<StoredEntries>;

  /** Those of the last {@link JournalStore.load} that could not be read, and are still there. */
  unreadable(): readonly UnreadableEntry[];

  /** Whether one of them is the attachment's. */
  isSetAside(attachment: Attachment): boolean;

  /**
   * Stores an entry in place of the attachment's earlier one, durably: it outlives a power cut once the call is answered. Whoever
   * is killed in the middle leaves one of the two, whole. After a failure it is the earlier one. Idempotent.
   */
  put(entry: JournalEntry): Promise<void>;

  /**
   * Removes the attachment's entry, also one that was set aside. A power cut may bring it back: nothing that it could harm outlives one. Idempotent: where
   * there is none, that is success.
   */
  remove(attachment: Attachment): Promise<void>;
}
