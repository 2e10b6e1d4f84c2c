import { Failure } from '@podwire/shared/failure/failure';
import type { ICompare, IKeyValue, IRangeRequest, IRequestOp, ITxnRequest, ITxnResponse } from 'etcd3';

import type { Comparison, LostComparison, StoredRecord, Transaction } from '../store.js';

/** The limits that etcd is configured with. */
export interface EtcdLimits {
  /** Operations in each list of a transaction: etcd's --max-txn-ops. */
  readonly maxOperationsCount: number;
  /** Size of a request: etcd's --max-request-bytes. */
  readonly maxRequestBytes: number;
}

/** Upper bound of protobuf's overhead for one operation: tags, lengths, and two 64-bit integers. */
const OPERATION_BYTES = 48;
/** Upper bound of the rest of a request, and of etcd's addition for its log. */
const REQUEST_BYTES = 512;

/**
 * The keys with a prefix, as etcd names a range.
 * The end is the prefix with its last byte one higher; texts never end in 0xff, as UTF-8 has no such byte.
 */
export function prefixRange(prefix: string): { readonly key: Buffer; readonly range_end: Buffer } {
  // A zero byte for both selects all keys.
  if (prefix === '') return { key: Buffer.from([0]), range_end: Buffer.from([0]) };
  const key = Buffer.from(prefix);
  const end = Buffer.from(prefix);
  end.writeUInt8(end.readUInt8(end.length - 1) + 1, end.length - 1);
  return { key, range_end: end };
}

/** The first key after this one. */
export function keyAfter(key: string): Buffer {
  return Buffer.from(`${key}\0`);
}

/** A comparison that holds while the record does not exist. */
export function absent(key: string): ICompare {
  return encodeComparison({ type: 'record', key, modRevision: 0 });
}

/**
 * Encodes a transaction for etcd.
 * @param guard - a comparison of the store's own
 * @throws Failure STORE_LIMIT when it is larger than etcd accepts; nothing is sent then
 */
export function encodeTransaction(
  { comparisons, puts, deletes }: Transaction,
  { guard, limits }: { readonly guard: ICompare; readonly limits: EtcdLimits },
): ITxnRequest {
  const success: IRequestOp[] = [
    ...puts.map(({ key, value }) => ({ request_put: { key: Buffer.from(key), value: asBuffer(value) } })),
    ...deletes.map((key) => ({ request_delete_range: { key: Buffer.from(key) } })),
  ];
  // etcd answers a transaction without operations from one server, possibly with old data.
  if (success.length === 0 && guard.key) success.push({ request_range: { key: guard.key, count_only: true } });
  const compare = [guard, ...comparisons.map(encodeComparison)];
  const failure = comparisons.map(encodeConflictRead);
  checkLimits({ compare, success, failure }, limits);
  return { compare, success, failure };
}

/**
 * Reads the conflicting records of a lost comparison: those newer than it expects. Older ones are only counted, so
 * the answer contains only the changes.
 */
function encodeConflictRead(comparison: Comparison): IRequestOp {
  if (comparison.type === 'record') {
    const { key, modRevision } = comparison;
    return { request_range: { key: Buffer.from(key), min_mod_revision: modRevision + 1 } };
  }
  const { prefix, notAfterRevision } = comparison;
  return { request_range: { ...prefixRange(prefix), min_mod_revision: notAfterRevision + 1 } };
}

/** The conflicting records of a lost transaction. */
export function decodeLostComparison(
  { comparisons }: Transaction,
  { header, responses }: ITxnResponse,
): LostComparison {
  const changed = new Map<string, StoredRecord>();
  const missing: string[] = [];
  comparisons.forEach((comparison, index) => {
    const found = responses[index]?.response_range;
    if (!found) return;
    for (const record of found.kvs.map(decodeRecord)) changed.set(record.key, record);
    const wasThere = comparison.type === 'record' && comparison.modRevision !== 0;
    if (wasThere && Number(found.count) === 0) missing.push(comparison.key);
  });
  return { committed: false, revision: Number(header.revision), changed: [...changed.values()], missing };
}

function encodeComparison(comparison: Comparison): ICompare {
  if (comparison.type === 'record') {
    const { key, modRevision } = comparison;
    return { target: 'Mod', result: 'Equal', key: Buffer.from(key), mod_revision: modRevision };
  }
  const { prefix, notAfterRevision } = comparison;
  return { target: 'Mod', result: 'Less', ...prefixRange(prefix), mod_revision: notAfterRevision + 1 };
}

interface EncodedTransaction {
  readonly compare: readonly ICompare[];
  readonly success: readonly IRequestOp[];
  readonly failure: readonly IRequestOp[];
}

function checkLimits(
  { compare, success, failure }: EncodedTransaction,
  { maxOperationsCount, maxRequestBytes }: EtcdLimits,
): void {
  const operationsCount = Math.max(compare.length, success.length, failure.length);
  if (operationsCount > maxOperationsCount)
    throw new Failure(
      'STORE_LIMIT',
      `the transaction has ${operationsCount} operations and etcd allows ${maxOperationsCount}: raise etcd's --max-txn-ops and PODWIRE_IPAM_ETCD_MAX_TXN_OPS, or request fewer addresses at once`,
    );
  const bytes = REQUEST_BYTES + sum(compare.map(comparisonBytes)) + sum([...success, ...failure].map(operationBytes));
  if (bytes > maxRequestBytes)
    throw new Failure(
      'STORE_LIMIT',
      `the transaction has up to ${bytes} bytes and etcd allows ${maxRequestBytes}: raise etcd's --max-request-bytes and PODWIRE_IPAM_ETCD_MAX_REQUEST_BYTES, or use pools with smaller blocks`,
    );
}

function comparisonBytes({ key, range_end: end }: ICompare): number {
  return OPERATION_BYTES + (key?.length ?? 0) + (end?.length ?? 0);
}

function operationBytes({ request_put: put, request_delete_range: remove, request_range: range }: IRequestOp): number {
  const keyBytes = (put ?? remove ?? range)?.key?.length ?? 0;
  return OPERATION_BYTES + keyBytes + (put?.value?.length ?? 0) + (range?.range_end?.length ?? 0);
}

function sum(numbers: readonly number[]): number {
  return numbers.reduce((total, number) => total + number, 0);
}

/** A transaction that reads keys at the newest or a given revision. */
export function encodeRead(keys: readonly string[], revision: number | undefined): ITxnRequest {
  const at: Pick<IRangeRequest, 'revision'> = revision === undefined ? {} : { revision };
  return { success: keys.map((key) => ({ request_range: { key: Buffer.from(key), ...at } })) };
}

export function decodeRecord({ key, value, mod_revision: modRevision }: IKeyValue): StoredRecord {
  return { key: key.toString(), value, modRevision: Number(modRevision) };
}

function asBuffer(bytes: Uint8Array): Buffer {
  return Buffer.isBuffer(bytes) ? bytes : Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength);
}
