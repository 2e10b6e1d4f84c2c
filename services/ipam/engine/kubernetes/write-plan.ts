import { compareTexts } from '@podwire/shared/words/order';

import type { RecordKeys, RecordName } from '../../records/json/keys.js';
import { decodeRecord } from '../../records/json/registry.js';
import { formatJson, isObject, parseJson } from '../../records/json/json.js';
import type { Transaction } from '../store.js';

/** The changes of one object, which are written together. */
export interface ObjectChange {
  readonly object: string;
  readonly puts: ReadonlyMap<string, Uint8Array>;
  readonly deletes: ReadonlySet<string>;
}

/**
 * The order of a transaction's writes. If the process dies between two of them, the decision can be repeated, or an audit repairs
 * the records:
 *
 * - An epoch before the session that saw the restore: the next session would not see it again.
 * - An affinity that is given up is marked first, so that no allocator of Calico uses its block.
 * - A new node before its blocks. The address of a tunnel is allocated before the node has it, and freed after the node has
 *   lost it.
 * - Blocks before affinities: a block with a node and without an affinity is the node's own.
 * - Blocks before sessions: the session lists the leases that the blocks have.
 * - The parts of a split pool before the deletion of the whole one.
 */
const Rank = {
  First: 0,
  AffinityMark: 1,
  NodeBeforeBlocks: 2,
  Block: 3,
  Affinity: 4,
  NodeAfterBlocks: 5,
  Session: 6,
  Other: 7,
  PoolDeletion: 8,
} as const;

type Rank = (typeof Rank)[keyof typeof Rank];

interface PlanOptions {
  readonly keys: RecordKeys;
  readonly objectOf: (key: string) => string | undefined;
  /** The stored value of a record. */
  readonly stored: (key: string) => Uint8Array | undefined;
}

/**
 * The writes of a transaction in their order, one for each object; two for an affinity that is given up. Records without an
 * object are left out.
 */
export function planWrites(transaction: Transaction, { keys, objectOf, stored }: PlanOptions): readonly ObjectChange[] {
  const changes = new Map<string, { readonly rank: number; puts: Map<string, Uint8Array>; deletes: Set<string> }>();
  const changeOf = (key: string, value: Uint8Array | undefined) => {
    const object = objectOf(key);
    if (object === undefined) return undefined;
    const rank = rankOf({ keys, key, before: stored(key), after: value });
    const known = changes.get(object) ?? { rank, puts: new Map(), deletes: new Set() };
    changes.set(object, known);
    return known;
  };
  for (const { key, value } of transaction.puts) changeOf(key, value)?.puts.set(key, value);
  for (const key of transaction.deletes) if (stored(key)) changeOf(key, undefined)?.deletes.add(key);
  const marks = transaction.deletes.flatMap((key) => {
    const [object, value] = [objectOf(key), stored(key)];
    if (object === undefined || !value || keys.parse(key)?.kind !== 'affinity') return [];
    return [
      { object, rank: Rank.AffinityMark, puts: new Map([[key, asPendingDeletion(value)]]), deletes: new Set<string>() },
    ];
  });
  return [...marks, ...[...changes].map(([object, change]) => ({ object, ...change }))]
    .toSorted((a, b) => a.rank - b.rank || compareTexts(a.object, b.object))
    .map(({ object, puts, deletes }) => ({ object, puts, deletes }));
}

interface KeyChange {
  readonly keys: RecordKeys;
  readonly key: string;
  readonly before: Uint8Array | undefined;
  readonly after: Uint8Array | undefined;
}

function rankOf(change: KeyChange): Rank {
  const { keys, key, before, after } = change;
  const kind = keys.parse(key)?.kind;
  if (kind === 'node') return !before || (after && losesTunnel(change)) ? Rank.NodeBeforeBlocks : Rank.NodeAfterBlocks;
  if (kind === 'pool') return after ? Rank.Other : Rank.PoolDeletion;
  return kind === undefined ? Rank.Other : (RANKS[kind] ?? Rank.Other);
}

/** Ranks that do not depend on the change. */
const RANKS: Readonly<Partial<Record<RecordName['kind'], Rank>>> = {
  storeEpoch: Rank.First,
  config: Rank.First,
  requestPolicies: Rank.First,
  revokedCertificates: Rank.First,
  block: Rank.Block,
  affinity: Rank.Affinity,
  nodeSession: Rank.Session,
};

/** Whether a node loses the address of a tunnel. */
function losesTunnel({ keys, key, before, after }: KeyChange): boolean {
  const tunnelsIn = (value: Uint8Array | undefined): ReadonlyMap<string, unknown> => {
    const name = keys.parse(key);
    const record = name && value && decodeRecord(key, name, value).record;
    return record?.kind === 'node' ? record.value.tunnels : new Map();
  };
  const left = tunnelsIn(after);
  return [...tunnelsIn(before).keys()].some((kind) => !left.has(kind));
}

/** The stored form of an affinity whose block its owner gives up. */
function asPendingDeletion(value: Uint8Array): Uint8Array {
  const text = Buffer.from(value).toString();
  const raw = text === '' ? {} : parseJson(text);
  return Buffer.from(formatJson({ ...(isObject(raw) ? raw : {}), state: 'pendingDeletion' }));
}
