import { comparePrefixes, formatPrefix } from '@podwire/shared/net/prefix';
import { compareTexts } from '@podwire/shared/words/order';

import { Snapshot, type RecordOf } from '../engine/mirror/snapshot.js';
import type { Affinity, Block, Handle } from '../records/block.js';
import type { HistoryEntry } from '../records/history.js';
import { RecordKeys } from '../records/json/keys.js';
import type {
  Change,
  Decision,
  RecordName,
  RecordValue,
  StoredEndpoint,
  StoredForeignEndpoint,
} from '../records/view.js';

const keys = new RecordKeys('/calico');

/** A snapshot for tests of decisions, which it carries out. */
export class TestView extends Snapshot {
  /** Records by {@link keyOf}. */
  readonly records = new Map<string, RecordValue>();
  /** The history that decisions wrote, in order. */
  readonly history: HistoryEntry[] = [];
  /** Whether the view may lack changes of other replicas. */
  isBehind = false;
  /** The monotonic clock. */
  monotonicMs = 0;

  constructor(records: readonly RecordValue[] = []) {
    super(
      keys,
      () => !this.isBehind,
      () => this.monotonicMs,
    );
    for (const record of records) this.put(record);
  }

  put(record: RecordValue): void {
    this.set(keys.of(record), record);
  }

  override set(key: string, record: RecordValue): void {
    super.set(key, record);
    this.records.set(keyOf(record), record);
  }

  override delete(key: string): void {
    const record = this.get(key);
    if (record) this.records.delete(keyOf(record));
    super.delete(key);
  }

  /** Removes a record. */
  remove(name: RecordName): void {
    this.delete(keys.ofName(name));
  }

  /** Makes a record unreadable. */
  setAside(name: RecordName, reason: string): void {
    this.setUnreadable({ key: keys.ofName(name), name, reason });
  }

  /** Commits a decision. @returns its outcome */
  apply<Outcome>({ changes, outcome }: Decision<Outcome>): Outcome {
    for (const change of changes) this.#applyChange(change);
    return outcome;
  }

  override handles(): Handle[] {
    return [...super.handles()];
  }

  override affinities(): Affinity[] {
    return [...super.affinities()];
  }

  override endpoints(): StoredEndpoint[] {
    return [...super.endpoints()];
  }

  override foreignEndpoints(): StoredForeignEndpoint[] {
    return [...super.foreignEndpoints()];
  }

  all<Kind extends RecordValue['kind']>(kind: Kind): RecordOf<Kind>[] {
    return [...this.records.values()].filter((record): record is RecordOf<Kind> => record.kind === kind);
  }

  /** All records, in an order independent of their writes. */
  snapshot(): readonly (readonly [string, RecordValue])[] {
    return [...this.records].sort(([a], [b]) => compareTexts(a, b));
  }

  blocks(): Block[] {
    return this.all('block')
      .map(({ value }) => value)
      .sort((a, b) => comparePrefixes(a.prefix, b.prefix));
  }

  #applyChange(change: Change): void {
    if (change.type === 'log') this.history.push(change.entry);
    if (change.type === 'put') this.put(change.record);
    if (change.type === 'delete') this.delete(keys.of(change.record));
  }
}

/** A unique short text for a record. */
export function keyOf(record: RecordValue): string {
  switch (record.kind) {
    case 'pool':
      return `pool ${record.value.name}`;
    case 'block':
      return `block ${formatPrefix(record.value.prefix)}`;
    case 'affinity':
      return `affinity ${record.value.owner.kind}:${record.value.owner.name} ${formatPrefix(record.value.block)}`;
    case 'handle':
      return `handle ${record.value.id}`;
    case 'endpoint':
    case 'foreignEndpoint':
      return `endpoint ${record.key.namespace}/${record.key.name}`;
    case 'config':
    case 'clusterInformation':
      return record.kind;
    case 'requestPolicies':
    case 'storeEpoch':
    case 'revokedCertificates':
      return record.kind;
    case 'nodeSession':
      return `session ${record.value.name}`;
    case 'reservation':
      return `reservation ${record.value.name}`;
    case 'node':
      return `node ${record.value.name}`;
  }
}
