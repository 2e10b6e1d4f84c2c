import { isDeepStrictEqual } from 'node:util';

import { formatAttachment } from '@podwire/shared/attachment/attachment';

import { attachmentOf } from '../records/attributes.js';
import type { RecordKeys } from '../records/json/keys.js';
import { decodeIfReadable, decodeRecord } from '../records/json/registry.js';
import type { RecordValue } from '../records/view.js';
import type { ArchivedRecord } from './archive.js';
import type { HistoryImport } from './history-import.js';
import { rootsOf } from './scope.js';

/** The kind of datastore into which a file is imported. */
export interface ImportTarget {
  /** Prefixes below which an empty datastore has no record. */
  readonly emptyRoots: readonly string[];
  /** Whether it keeps every record of a file, and nothing else. */
  readonly keepsAll: boolean;
  /** Takes the records of the history; undefined where transactions write them. */
  readonly history?: HistoryImport;
  /** Receives each record once, before anything is written. @throws Failure STORE_CORRUPT for a record that it cannot take */
  prepare(record: ArchivedRecord): void;
  /** Whether the record follows from written ones. */
  isDerived(key: string): boolean;
  /** Why a record is not written; undefined if it is. */
  obstacle(key: string, isStored: boolean): string | undefined;
  isSame(record: ArchivedRecord, stored: Uint8Array): boolean;
  /** Whether a record is written over another value. */
  replaces(record: ArchivedRecord, stored: Uint8Array): boolean;
  /** Records that a transaction needs besides this one. */
  companionsOf(record: ArchivedRecord): readonly ArchivedRecord[];
}

/** Embedded or etcd: any record, to the byte. */
export function byteTarget(prefix: string): ImportTarget {
  return {
    emptyRoots: rootsOf(prefix),
    keepsAll: true,
    prepare: () => undefined,
    isDerived: () => false,
    obstacle: () => undefined,
    isSame: ({ value }, stored) => Buffer.compare(value, stored) === 0,
    replaces: () => false,
    companionsOf: () => [],
  };
}

/** Kinds of which a datastore in Kubernetes has values before it is used. */
const REPLACED: ReadonlySet<RecordValue['kind']> = new Set(['node', 'nodeSession', 'storeEpoch']);

/**
 * The API server of Kubernetes. Difficulties:
 *
 * - It sets fields of pools and reservations, and it has Nodes: they get the file's values as annotations.
 * - Handles and endpoints follow from the blocks. What only the endpoints of a file have, such as the UID of the pod, comes to the
 *   blocks if both are in one transaction.
 * - It has no place for endpoints of Calico's plugin, and for kinds that Podwire does not know.
 */
export class ObjectTarget implements ImportTarget {
  readonly keepsAll = false;
  readonly emptyRoots: readonly string[];
  readonly history: HistoryImport;
  readonly #keys: RecordKeys;
  /** Records of endpoints by formatted attachment. */
  readonly #endpoints = new Map<string, ArchivedRecord>();

  constructor(keys: RecordKeys, history: HistoryImport) {
    this.#keys = keys;
    this.history = history;
    const areas = ['assignment', 'host', 'virtual'].map((area) => `${keys.root}ipam/v2/${area}/`);
    this.emptyRoots = [keys.pools, ...areas];
  }

  prepare(record: ArchivedRecord): void {
    if (this.#keys.isOfHandle(record.key)) return;
    if (this.history.covers(record.key)) {
      this.history.prepare(record);
      return;
    }
    if (!this.isDerived(record.key)) {
      const name = this.#keys.parse(record.key);
      if (name) decodeRecord(record.key, name, record.value);
      return;
    }
    const endpoint = decodeIfReadable(this.#keys, record.key, record.value);
    if (endpoint?.kind !== 'endpoint') return;
    for (const one of [{ kind: 'endpoint', value: endpoint.value } as const, ...(endpoint.value.replaced ?? [])])
      if (one.kind === 'endpoint') this.#endpoints.set(formatAttachment(one.value.attachment), record);
  }

  isDerived(key: string): boolean {
    return this.#keys.isOfHandle(key) || key.startsWith(this.#keys.endpoints);
  }

  obstacle(key: string, isStored: boolean): string | undefined {
    const keys = this.#keys;
    if (this.isDerived(key)) return isStored ? undefined : 'of handles and endpoints without addresses';
    const name = keys.parse(key);
    if (name?.kind === 'node') return isStored ? undefined : 'of nodes that Kubernetes does not have';
    return name ? undefined : 'of kinds that this store does not have';
  }

  isSame({ key, value }: ArchivedRecord, stored: Uint8Array): boolean {
    // The cluster has one identity, from Calico or from the first start.
    if (key === this.#keys.clusterInformation) return true;
    const [wanted, found] = [decodeIfReadable(this.#keys, key, value), decodeIfReadable(this.#keys, key, stored)];
    return isDeepStrictEqual(wanted && comparable(wanted), found && comparable(found));
  }

  replaces({ key, value }: ArchivedRecord, stored: Uint8Array): boolean {
    const [wanted, found] = [decodeIfReadable(this.#keys, key, value), decodeIfReadable(this.#keys, key, stored)];
    if (wanted?.kind !== 'pool' || found?.kind !== 'pool') return wanted !== undefined && REPLACED.has(wanted.kind);
    // An import that was interrupted has made the pool, and not yet begun its deletion.
    const withoutDeletion: RecordValue = { kind: 'pool', value: { ...wanted.value, deletionTimeMs: undefined } };
    return isDeepStrictEqual(comparable(withoutDeletion), comparable(found));
  }

  companionsOf({ key, value }: ArchivedRecord): readonly ArchivedRecord[] {
    if (this.#keys.parse(key)?.kind !== 'block') return [];
    const block = decodeIfReadable(this.#keys, key, value);
    if (block?.kind !== 'block') return [];
    const endpoints = block.value.attributes.flatMap((attributes) => {
      const attachment = attachmentOf(attributes);
      return (attachment && this.#endpoints.get(formatAttachment(attachment))) ?? [];
    });
    return [...new Set(endpoints)];
  }
}

/** The value of a record without the fields that the API server sets. */
function comparable({ kind, value }: RecordValue): object {
  const own = { uid: '', createTimeMs: 0 };
  if (kind === 'pool') {
    const isDeleted = value.deletionTimeMs !== undefined;
    return { ...value, ...own, deletionTimeMs: isDeleted, condition: undefined, notAllocatable: undefined };
  }
  if (kind === 'node') return { ...value, ...own, labels: {} };
  return kind === 'reservation' ? { ...value, ...own } : value;
}
