import type { AllocatedAddress } from '@podwire/shared/attachment/allocation';
import { attachmentFaults, formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { handleId } from '@podwire/shared/attachment/names';
import { parseJson } from '@podwire/shared/json/parse';
import { z } from 'zod';

import type { Delegate } from '../addresses/ipam-plugin.js';
import { VARIABLES } from '../cni/environment.js';

/**
 * The pending action of an attachment. Addresses are released only after the wire is removed.
 * - `detach-and-release`: a whole DEL.
 * - `release`: the wire is removed already.
 * - `release-unless-attached`: an ADD got no answer to Allocate. A wire proves that an earlier ADD holds the addresses.
 */
export const RELEASE_ACTIONS = ['detach-and-release', 'release', 'release-unless-attached'] as const;

export type ReleaseAction = (typeof RELEASE_ACTIONS)[number];

/** A release that a DEL or the rollback of an ADD could not complete. */
export interface PendingRelease {
  readonly attachment: Attachment;
  readonly action: ReleaseAction;
  /** The allocation to release; undefined if unknown, which means all addresses of the attachment. */
  readonly held: readonly AllocatedAddress[] | undefined;
  /** Absolute path of the pod's network namespace, if known and needed to remove the wire. Another pod may use the path by now. */
  readonly netns?: string | undefined;
  /** The delegated IPAM plugin that allocated the addresses. */
  readonly delegate?: Delegate | undefined;
  /** Whether the delegate rejected the ADD. By CNI it then holds no address, but delegates may violate that. */
  readonly refused?: true | undefined;
  /** Why the release failed; human-readable. */
  readonly reason: string;
}

/** A pending release in the journal. */
export interface JournalEntry extends PendingRelease {
  /** Sequence number of the entry in this journal. */
  readonly order: number;
  /** When the attachment's first pending release was written, in epoch milliseconds. */
  readonly sinceMs: number;
}

const VERSION = 1;

const uint64 = z
  .string()
  .regex(/^\d{1,20}$/, 'is not a sequence number')
  .transform(BigInt);

/**
 * The file of an entry, as JSON. `handle` is derived from the attachment, so that an operator can find it in podwire-ipam's
 * records. Unknown fields of a later release are ignored; a release raises the version if ignoring them is unsafe.
 */
const STORED = z.object({
  version: z.literal(VERSION),
  order: z.int().nonnegative(),
  sinceMs: z.int().nonnegative(),
  attachment: z
    .strictObject({ network: z.string(), containerId: z.string(), interfaceName: z.string() })
    .refine((attachment) => attachmentFaults(attachment).length === 0, 'is not a valid attachment'),
  handle: z.string(),
  action: z.enum(RELEASE_ACTIONS),
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

export function encodeEntry({ attachment, action, held, ...rest }: JournalEntry): string {
  const addresses = held?.map(({ address, sequenceNumber }) => ({ address, sequenceNumber: String(sequenceNumber) }));
  const handle = handleId(attachment);
  const stored = { version: VERSION, attachment, action, ...rest, handle, held: addresses ?? null };
  return `${JSON.stringify(stored)}\n`;
}

export type DecodedEntry =
  { readonly ok: true; readonly entry: JournalEntry } | { readonly ok: false; readonly fault: string };

/** The attachment of an invalid entry, for its fault. */
const OWNER = z.object({
  attachment: z.object({ network: z.string(), containerId: z.string(), interfaceName: z.string() }),
});

/** Reads what {@link encodeEntry} wrote, or reports the fault of anything else. */
export function decodeEntry(text: string): DecodedEntry {
  const json = parseJson(text);
  const parsed = STORED.safeParse(json);
  if (!parsed.success) {
    const faults = parsed.error.issues.map(({ path, message }) => `${path.join('.') || 'the file'}: ${message}`);
    const owner = OWNER.safeParse(json);
    const whose = owner.success ? `of ${formatAttachment(owner.data.attachment)}: ` : '';
    return { ok: false, fault: whose + faults.join('; ') };
  }
  const { order, sinceMs, attachment, action, held, netns, delegate, refused, reason } = parsed.data;
  const optional = {
    ...(netns !== undefined && { netns }),
    ...(delegate && { delegate }),
    ...(refused && { refused }),
  };
  return { ok: true, entry: { order, sinceMs, attachment, action, held: held ?? undefined, ...optional, reason } };
}

/** A stored entry that cannot be read. */
export interface UnreadableEntry {
  /** Path of its file. */
  readonly path: string;
  /** Human-readable. */
  readonly fault: string;
}

export interface StoredEntries {
  readonly entries: readonly JournalEntry[];
  readonly unreadable: readonly UnreadableEntry[];
}

/**
 * Persistent storage of the journal. Implementations: a directory, and a fake in memory; both pass
 * `testing/journal-store-contract.ts`. Methods throw Failure STATE_IO on a storage error. Only one process uses a store.
 */
export interface JournalStore {
  /**
   * Reads all entries, in no order. An unreadable entry, e.g. of a later release, is set aside, reported, and read
   * again by the next call; it never fails the call. Idempotent.
   */
  load(): Promise<StoredEntries>;

  /** Unreadable entries of the last {@link JournalStore.load} whose files still exist. */
  unreadable(): readonly UnreadableEntry[];

  /** Whether the attachment's entry is unreadable. */
  isSetAside(attachment: Attachment): boolean;

  /**
   * Durably replaces the attachment's entry: it survives a power cut once the call returns. A process that is killed meanwhile
   * leaves the earlier or the new entry, never a partial one. After a failure the earlier entry remains. Idempotent.
   */
  put(entry: JournalEntry): Promise<void>;

  /**
   * Removes the attachment's entry, also an unreadable one. A power cut may restore the entry, which is harmless: no pod
   * survives one. Idempotent.
   */
  remove(attachment: Attachment): Promise<void>;
}
