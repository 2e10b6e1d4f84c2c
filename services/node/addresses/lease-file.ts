import { mkdirSync, readFileSync, renameSync, writeFileSync } from 'node:fs';
import { dirname } from 'node:path';

import { codeOf } from '@podwire/shared/failure/thrown';
import { removeIfPossible } from '@podwire/shared/files/durable-file';
import { parseJson } from '@podwire/shared/json/parse';
import { parseAddress } from '@podwire/shared/net/address';
import { z } from 'zod';

import type { AddressEvents } from './events.js';
import type { Lease } from './lease.js';

/** Identifies the last session of a node, as of an answer. */
export interface StoredSession {
  readonly bootId: string;
  readonly generation: bigint;
  readonly revision: bigint;
}

/** State that the next process continues with. */
export interface StoredLeases {
  /** Leases without an attachment, unless a record or an interface in the kernel has one. */
  readonly leases: readonly Lease[];
  /** End of the leases' validity, by the clock of the boot in milliseconds. */
  readonly validUntilMs: number;
  /** Time before an address of an ended pod may be used again, in milliseconds. */
  readonly coolDownMs: number;
  /** Undefined: the node had none. */
  readonly session: StoredSession | undefined;
  /**
   * Attachments of dead records whose return was never sent, with their ends by the clock of the boot in milliseconds. The return
   * of any other dead record may have been sent.
   */
  readonly ended: readonly EndedAttachment[];
}

/** An attachment, formatted, and its end. */
type EndedAttachment = readonly [attachment: string, endedAtMs: number];

/** Stores the unbound leases and the session for the next process. Must not throw. */
export interface LeaseFile {
  load(): StoredLeases;
  save(stored: StoredLeases): void;
}

export const NOTHING_STORED: StoredLeases = {
  leases: [],
  validUntilMs: Number.NEGATIVE_INFINITY,
  coolDownMs: Number.POSITIVE_INFINITY,
  session: undefined,
  ended: [],
};

const number64 = z
  .string()
  .regex(/^\d{1,20}$/)
  .transform(BigInt);

const LEASES = z.array(
  z.strictObject({
    address: z.string().refine((text) => parseAddress(text) !== undefined),
    sequenceNumber: number64,
    poolName: z.string(),
  }),
);

/** The file, as JSON. An infinite time is null. */
const STORED = z.strictObject({
  version: z.literal(2),
  nodeName: z.string(),
  bootId: z.string(),
  leases: LEASES,
  validUntilMs: z.number().nullable(),
  coolDownMs: z.number().nullable(),
  session: z.strictObject({ bootId: z.string(), generation: number64, revision: number64 }).nullable(),
  ended: z.array(z.tuple([z.string(), z.number()])).default([]),
});

/** The process that the file belongs to. */
interface FileOwner {
  /** Leases of another node name would never be bound. */
  readonly nodeName: string;
  /** Leases end with their boot. */
  readonly bootId: string;
}

function encodeLeases({ leases, session, ...times }: StoredLeases, { nodeName, bootId }: FileOwner): string {
  const withText = ({ sequenceNumber, ...rest }: Lease) => ({ ...rest, sequenceNumber: sequenceNumber.toString() });
  const storedSession = session && {
    ...session,
    generation: session.generation.toString(),
    revision: session.revision.toString(),
  };
  return JSON.stringify({
    version: 2,
    nodeName,
    bootId,
    leases: leases.map(withText),
    session: storedSession ?? null,
    ...times,
  });
}

/** @returns nothing for any other text, and for another node name; without leases for another boot */
function decodeLeases(text: string, { nodeName, bootId }: FileOwner): StoredLeases {
  const parsed = STORED.safeParse(parseJson(text));
  if (!parsed.success || parsed.data.nodeName !== nodeName) return NOTHING_STORED;
  const { data } = parsed;
  const session = data.session ?? undefined;
  if (data.bootId !== bootId) return { ...NOTHING_STORED, session };
  return {
    leases: data.leases,
    validUntilMs: data.validUntilMs ?? NOTHING_STORED.validUntilMs,
    coolDownMs: data.coolDownMs ?? NOTHING_STORED.coolDownMs,
    session,
    ended: data.ended,
  };
}

const WRITING = '.writing';

const DIRECTORY_MODE = 0o700;
const FILE_MODE = 0o600;

interface TmpfsLeaseFileOptions extends FileOwner {
  /** Absolute path, on tmpfs beside the records. */
  readonly path: string;
  readonly events: AddressEvents;
}

/** A file on tmpfs. Synchronous, as the records' store, and not synced: a reboot ends leases and pods together. */
export class TmpfsLeaseFile implements LeaseFile {
  readonly #options: TmpfsLeaseFileOptions;

  constructor(options: TmpfsLeaseFileOptions) {
    this.#options = options;
  }

  load(): StoredLeases {
    const { path, events } = this.#options;
    try {
      return decodeLeases(readFileSync(path, 'utf8'), this.#options);
    } catch (error) {
      if (codeOf(error) !== 'ENOENT') events.fileFailed(path, error);
      return NOTHING_STORED;
    }
  }

  save(stored: StoredLeases): void {
    const { path, events } = this.#options;
    const write = (): void => {
      writeFileSync(path + WRITING, encodeLeases(stored, this.#options), { mode: FILE_MODE });
      renameSync(path + WRITING, path);
    };
    try {
      try {
        write();
      } catch (error) {
        if (codeOf(error) !== 'ENOENT') throw error;
        mkdirSync(dirname(path), { recursive: true, mode: DIRECTORY_MODE });
        write();
      }
    } catch (error) {
      events.fileFailed(path, error);
      // An outdated file would offer addresses that pods had since.
      removeIfPossible(path + WRITING);
      removeIfPossible(path);
    }
  }
}
