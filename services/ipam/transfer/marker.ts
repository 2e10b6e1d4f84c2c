import { Failure } from '@podwire/shared/failure/failure';
import { parseJson } from '@podwire/shared/json/parse';
import { z } from 'zod';

import type { Store } from '../engine/store.js';
import { markerKey } from './scope.js';

/** What the datastore says of the import that made it. */
export interface ImportMark {
  /** `running` from before the first record to after the last was checked. */
  readonly state: 'running' | 'complete';
  /** Made anew by each import: revisions of before and after do not compare. */
  readonly uid: string;
  /** Of the file, and the prefix its keys were given here: what is imported. */
  readonly sha256: string;
  /** Records of the file that are here, for people who look. */
  readonly records: number;
}

export interface StoredMark {
  readonly mark: ImportMark;
  readonly modRevision: number;
}

const schema = z.object({
  state: z.enum(['running', 'complete']),
  uid: z.string(),
  sha256: z.string(),
  records: z.number(),
});

/** @throws Failure STORE_CORRUPT when the mark cannot be read */
export async function readMark(store: Store, prefix: string, signal: AbortSignal): Promise<StoredMark | undefined> {
  const key = markerKey(prefix);
  const { records } = await store.read([key], signal);
  const [record] = records;
  if (!record) return undefined;
  const parsed = schema.safeParse(parseJson(Buffer.from(record.value).toString()));
  if (parsed.success) return { mark: parsed.data, modRevision: record.modRevision };
  throw new Failure(
    'STORE_CORRUPT',
    `record ${key} cannot be read: it is no mark of an import; delete it once the records are as they should be`,
    {
      details: { key },
    },
  );
}

export function encodeMark(mark: ImportMark): Uint8Array {
  return Buffer.from(JSON.stringify(mark));
}

/**
 * That the datastore is not half an import.
 * @returns what tells the datastore from what was there before its last import; empty where there was none
 * @throws Failure IMPORT_INCOMPLETE
 */
export async function requireWhole(store: Store, prefix: string, signal: AbortSignal): Promise<string> {
  const stored = await readMark(store, prefix, signal);
  if (stored?.mark.state !== 'running') return stored?.mark.uid ?? '';
  throw new Failure(
    'IMPORT_INCOMPLETE',
    `an import into the datastore has not come to its end: it has ${stored.mark.records} records so far; wait for it, or run "podwire-ipam import" with the same file again`,
    { details: { sha256: stored.mark.sha256 } },
  );
}
