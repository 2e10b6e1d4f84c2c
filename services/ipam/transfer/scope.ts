import { Failure } from '@podwire/shared/failure/failure';
import { parseJson } from '@podwire/shared/json/parse';
import { z } from 'zod';

import type { Store } from '../engine/store.js';

/** Keys that belong to a datastore. */

/** The key prefixes of a datastore: Calico's and Podwire's own, in key order. */
export function rootsOf(prefix: string): readonly string[] {
  const roots = [`${prefix}/`, `/podwire${prefix}/`];
  // The second lies within the first if the prefix is /podwire.
  return roots.filter((root) => !roots.some((other) => other !== root && root.startsWith(other))).sort();
}

/** Key of the mark of a running or completed import. */
export function importMarkKey(prefix: string): string {
  return `/podwire${prefix}/import`;
}

/**
 * Keys of running processes, which are meaningless in a copy: the import's mark, the fence against late transactions of
 * etcd, and the key by which a replica advances its watch.
 */
export function isEphemeral(prefix: string, key: string): boolean {
  const own = `/podwire${prefix}/`;
  if (key === importMarkKey(prefix) || key === `${prefix}/podwire/barrier`) return true;
  return key.startsWith(`${own}fences/`) || key.startsWith(`${own}releases/`);
}

/** A key rewritten for another prefix; undefined for a key outside the datastore. */
export function rewriteKey(key: string, from: string, to: string): string | undefined {
  for (const [source, target] of [
    [`${from}/`, `${to}/`],
    [`/podwire${from}/`, `/podwire${to}/`],
  ] as const)
    if (key.startsWith(source)) return target + key.slice(source.length);
  return undefined;
}

/** The mark of the last import into the datastore. */
export interface ImportMark {
  /** `running` until the last record is verified. */
  readonly state: 'running' | 'complete';
  /** New for each import, because revisions before and after it are not comparable. */
  readonly uid: string;
  /** Checksum of the imported file. */
  readonly sha256: string;
  /** Records of the file that are imported already, for operators. */
  readonly records: number;
}

export interface StoredMark {
  readonly mark: ImportMark;
  readonly modRevision: number;
}

const markSchema = z.object({
  state: z.enum(['running', 'complete']),
  uid: z.string(),
  sha256: z.string(),
  records: z.number(),
});

/** @throws Failure STORE_CORRUPT when the mark cannot be read */
export async function readMark(store: Store, prefix: string, signal: AbortSignal): Promise<StoredMark | undefined> {
  const key = importMarkKey(prefix);
  const { records } = await store.read([key], signal);
  const [record] = records;
  if (!record) return undefined;
  const parsed = markSchema.safeParse(parseJson(Buffer.from(record.value).toString()));
  if (parsed.success) return { mark: parsed.data, modRevision: record.modRevision };
  throw new Failure(
    'STORE_CORRUPT',
    `record ${key} cannot be read: it is not an import mark; check the records, then delete it`,
    {
      details: { key },
    },
  );
}

export function encodeMark(mark: ImportMark): Uint8Array {
  return Buffer.from(JSON.stringify(mark));
}

/**
 * Requires that the datastore is not a partial import.
 * @returns the ID of its last import; empty where there was none
 * @throws Failure IMPORT_INCOMPLETE
 */
export async function requireCompleteImport(store: Store, prefix: string, signal: AbortSignal): Promise<string> {
  const stored = await readMark(store, prefix, signal);
  if (stored?.mark.state !== 'running') return stored?.mark.uid ?? '';
  throw new Failure(
    'IMPORT_INCOMPLETE',
    `an import into the datastore is incomplete: it has ${stored.mark.records} records so far; wait for it, or run "podwire-ipam import" with the same file again`,
    { details: { sha256: stored.mark.sha256 } },
  );
}
