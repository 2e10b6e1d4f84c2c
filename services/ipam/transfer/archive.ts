import { createHash, type Hash } from 'node:crypto';

import { Failure } from '@podwire/shared/failure/failure';
import { z } from 'zod';

/**
 * The export format: one JSON line each for the header, every record in key order, and the
 * trailer with count and checksum. A value is text, or base64 if it is not UTF-8.
 *
 *     {"podwireDatastore":1,"prefix":"/calico","store":"etcd","revision":4711}
 *     {"key":"/calico/ipam/v2/config","value":"{…}"}
 *     {"key":"/calico/other","base64":"/wA="}
 *     {"records":2,"sha256":"…"}
 */

/** Version of the format; another one is refused. */
const FORMAT = 1;

/** Maximum line length; etcd's values have at most 1.5 MiB by default. */
export const MAX_LINE_BYTES = 64 * 2 ** 20;

const headerSchema = z.object({
  podwireDatastore: z.number(),
  prefix: z.string().regex(/^(\/[A-Za-z0-9_.-]+)+$/),
  store: z.string(),
  revision: z.number().int().nonnegative(),
});

const recordSchema = z.union([
  z.strictObject({ key: z.string().min(1), value: z.string() }),
  z.strictObject({ key: z.string().min(1), base64: z.base64() }),
]);

const trailerSchema = z.strictObject({
  records: z.number().int().nonnegative(),
  sha256: z.string().regex(/^[0-9a-f]{64}$/),
});

export interface ArchiveHeader {
  /** Common prefix of the keys. */
  readonly prefix: string;
  /** Kind of the datastore. */
  readonly store: string;
  /** Revision of the export. */
  readonly revision: number;
}

export interface ArchivedRecord {
  readonly key: string;
  readonly value: Uint8Array;
}

export interface ArchiveTrailer {
  readonly records: number;
  /** Digest of all bytes before the trailer, in hexadecimal digits. */
  readonly sha256: string;
}

/** Encodes the lines of an export file. */
export class ArchiveEncoder {
  readonly #hash: Hash = createHash('sha256');
  #records = 0;

  header({ prefix, store, revision }: ArchiveHeader): Buffer {
    return this.#line({ podwireDatastore: FORMAT, prefix, store, revision });
  }

  record({ key, value }: ArchivedRecord): Buffer {
    this.#records++;
    const bytes = Buffer.from(value.buffer, value.byteOffset, value.byteLength);
    const text = bytes.toString();
    return this.#line(
      Buffer.from(text).equals(bytes) ? { key, value: text } : { key, base64: bytes.toString('base64') },
    );
  }

  /** The last line and its content. */
  trailer(): { readonly line: Buffer; readonly trailer: ArchiveTrailer } {
    const trailer = { records: this.#records, sha256: this.#hash.copy().digest('hex') };
    return { line: Buffer.from(`${JSON.stringify(trailer)}\n`), trailer };
  }

  #line(value: object): Buffer {
    const line = Buffer.from(`${JSON.stringify(value)}\n`);
    this.#hash.update(line);
    return line;
  }
}

export type ArchivePart =
  | { readonly type: 'header'; readonly header: ArchiveHeader }
  | { readonly type: 'record'; readonly record: ArchivedRecord }
  | { readonly type: 'trailer'; readonly trailer: ArchiveTrailer };

/**
 * Reads a file line by line. Only the trailer proves that the preceding records are complete.
 * @param lines - each without its end
 * @throws Failure EXPORT_INVALID that names the line
 */
export async function* readArchive(lines: AsyncIterable<Buffer>): AsyncGenerator<ArchivePart, void, void> {
  const hash = createHash('sha256');
  let records = 0;
  let number = 0;
  let previous: string | undefined;
  let pending: Buffer | undefined;
  for await (const line of lines) {
    number++;
    if (pending && number === 2) yield { type: 'header', header: readHeader(pending) };
    else if (pending) {
      const record = readRecord(pending, number - 1);
      checkOrder(previous, record.key, number - 1);
      previous = record.key;
      records++;
      yield { type: 'record', record };
    }
    if (pending) hash.update(pending).update('\n');
    pending = line;
  }
  if (!pending) throw invalidLine(1, 'is missing: the file is empty');
  if (number === 1) readHeader(pending);
  const trailer = parse(trailerSchema, pending);
  if (!trailer || number === 1) throw invalidLine(number, 'is not the trailer of an export: the file is truncated');
  if (trailer.records !== records)
    throw invalidLine(number, `counts ${trailer.records} records, but the file has ${records}`);
  if (trailer.sha256 !== hash.digest('hex'))
    throw invalidLine(number, 'has a SHA-256 that differs from the digest of the preceding lines');
  yield { type: 'trailer', trailer };
}

function readHeader(line: Buffer): ArchiveHeader {
  const header = parse(headerSchema, line);
  if (!header) throw invalidLine(1, 'is not a header: the file is not an export of podwire-ipam');
  if (header.podwireDatastore !== FORMAT)
    throw invalidLine(
      1,
      `has format ${header.podwireDatastore}, but this release reads ${FORMAT}: use the release that wrote it`,
    );
  const { prefix, store, revision } = header;
  return { prefix, store, revision };
}

function readRecord(line: Buffer, number: number): ArchivedRecord {
  const record = parse(recordSchema, line);
  if (!record) throw invalidLine(number, 'is not a record');
  const { key } = record;
  return { key, value: 'value' in record ? Buffer.from(record.value) : Buffer.from(record.base64, 'base64') };
}

/** Requires ascending byte order, as in stores, and so unique keys. */
function checkOrder(previous: string | undefined, key: string, number: number): void {
  if (previous === undefined || Buffer.compare(Buffer.from(previous), Buffer.from(key)) < 0) return;
  throw invalidLine(number, `has the key ${key} after ${previous}; keys must be in ascending order, each once`);
}

function parse<Value>(schema: z.ZodType<Value>, line: Buffer): Value | undefined {
  try {
    const result = schema.safeParse(JSON.parse(line.toString()));
    return result.success ? result.data : undefined;
  } catch (error) {
    if (error instanceof SyntaxError) return undefined;
    throw error;
  }
}

export function invalidLine(line: number, reason: string): Failure {
  return new Failure('EXPORT_INVALID', `line ${line} ${reason}; nothing was imported; use a complete export`, {
    details: { line: String(line) },
  });
}
