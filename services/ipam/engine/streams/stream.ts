import type { Item, RecentChanges } from './recent-changes.js';

/** The kinds of objects that a client wants, at least one. */
export type StreamQuery = ReadonlySet<string>;

/** The query of a stream, with its key. */
export interface Stream {
  readonly query: StreamQuery;
  /** Equal for equal queries: {@link queryKey}. */
  readonly key: string;
}

/** Equal for queries with the same kinds in any order. */
export function queryKey(query: StreamQuery): string {
  return [...query].sort().join('+');
}

/** The objects that streams show, all at the revision of the recent changes. */
export interface StreamedObjects {
  readonly recent: RecentChanges;
  /**
   * The objects that a query wants, or all. They may change during the iteration: objects removed before their turn are
   * left out, new objects come last.
   */
  items(query?: StreamQuery): Iterator<Item, void>;
  /**
   * Encodes the change to the present state of an object, or its removal; undefined for a key that no object can have.
   * The bytes are shared among streams and never changed.
   */
  encode(key: string): Uint8Array | undefined;
}

/** The phase of a stream, as in the contract. */
export type StreamPhase = 'snapshot' | 'snapshotComplete' | 'changes' | 'bookmark';

export interface StreamMessage {
  readonly phase: StreamPhase;
  readonly reset: boolean;
  readonly changes: readonly Uint8Array[];
  /** Empty for none. */
  readonly resumeToken: string;
  /** Whether Calico's tools have locked the datastore. */
  readonly isLocked: boolean;
}
