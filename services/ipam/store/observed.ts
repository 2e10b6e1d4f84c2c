import type { RecordValue } from '../records/view.js';

/** What a mirror tells of: durable, and exactly the state at the revision, though the view may be ahead of it by own commits and reads. */
export type Observed =
  | ObservedList
  /** Without changes: there was none up to the revision. */
  | { readonly type: 'changed'; readonly revision: number; readonly changes: readonly ObservedRecord[] };

/** Without the handles: half of all records, and nobody watches them. */
export interface ObservedList {
  readonly type: 'listed';
  readonly revision: number;
  readonly records: readonly ObservedRecord[];
}

export interface ObservedRecord {
  readonly key: string;
  /** Undefined when there is no such record, when it cannot be read, or has no meaning here. */
  readonly record: RecordValue | undefined;
}
