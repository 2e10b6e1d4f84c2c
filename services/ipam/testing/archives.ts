import { systemClock } from '@podwire/shared/runtime/clock';

import type { Store, StoredRecord } from '../engine/store.js';
import { exportDatastore } from '../transfer/export.js';
import { byteTarget } from '../transfer/import-target.js';
import { importDatastore, type ImportResult, type ImportOptions } from '../transfer/import.js';
import { rootsOf } from '../transfer/scope.js';

export const forever: AbortSignal = new AbortController().signal;

/** Records of a datastore: Calico's, Podwire's, unknown ones, history, and binary values. */
export function sampleRecords(prefix = '/calico', count = 300): Map<string, Buffer> {
  const records = new Map<string, Buffer>([
    [
      `${prefix}/ipam/v2/config`,
      Buffer.from('{"strict_affinity":false,"auto_allocate_blocks":true,"unknown":18446744073709551615}'),
    ],
    [
      `${prefix}/resources/v3/projectcalico.org/felixconfigurations/default`,
      Buffer.from(' {"kind" : "FelixConfiguration"}\n'),
    ],
    [`${prefix}/bytes`, Buffer.from([0xff, 0, 0x80, 0x0a])],
    [`${prefix}/empty`, Buffer.alloc(0)],
    [`/podwire${prefix}/history/00020687/10.65.0.1/7`, Buffer.from('{"address":"10.65.0.1"}')],
  ]);
  for (let index = 0; index < count; index++)
    records.set(
      `${prefix}/ipam/v2/handle/net.c${index}`,
      Buffer.from(JSON.stringify({ handleID: `net.c${index}`, index })),
    );
  return records;
}

export async function fill(store: Store, records: ReadonlyMap<string, Buffer>): Promise<void> {
  const entries = [...records].map(([key, value]) => ({ key, value }));
  for (let index = 0; index < entries.length; index += 100)
    await store.commit({ comparisons: [], puts: entries.slice(index, index + 100), deletes: [] }, forever);
}

/** Every stored record below the prefix, without the processes' own. */
export async function contentOf(store: Store, prefix = '/calico'): Promise<Map<string, string>> {
  const records: StoredRecord[] = [];
  for (const root of rootsOf(prefix)) records.push(...(await store.list(root, forever)).records);
  return new Map(
    records
      .filter(({ key }) => !/\/(import|barrier|(fences|releases)\/.*)$/.test(key))
      .map(({ key, value }) => [key, Buffer.from(value).toString('hex')]),
  );
}

/** An export in memory. */
export async function exported(store: Store, prefix = '/calico'): Promise<Buffer> {
  const chunks: Buffer[] = [];
  const sink = { write: (bytes: Uint8Array) => Promise.resolve(void chunks.push(Buffer.from(bytes))) };
  await exportDatastore({ store, kind: 'memory', prefix, sink, signal: forever });
  return Buffer.concat(chunks);
}

/** The records of an export, without its origin. */
export function recordLines(file: Buffer): string {
  return file.toString().split('\n').slice(1, -2).join('\n');
}

export function imported(store: Store, file: Buffer, rest: Partial<ImportOptions> = {}): Promise<ImportResult> {
  return importDatastore({
    store,
    target: byteTarget(rest.prefix ?? '/calico'),
    prefix: '/calico',
    lines: () => linesOf(file),
    maxOperationsCount: 20,
    maxTransactionBytes: 2000,
    isExclusiveWriter: true,
    rewritePrefix: false,
    merge: false,
    dryRun: false,
    newUid: () => 'uid',
    clock: systemClock,
    signal: forever,
    ...rest,
  });
}

async function* linesOf(file: Buffer): AsyncGenerator<Buffer> {
  for (let start = 0; start < file.length;) {
    const end = file.indexOf('\n', start);
    yield await Promise.resolve(file.subarray(start, end));
    start = end + 1;
  }
}
