/** Subscriptions to transactions of nf_tables. */
import { checkGatherMs } from './check.js';
import { ArgumentError } from './errors.js';
import type { NativeFailure, NativeTransaction } from './native.js';
import type { Overrun } from './objects.js';
import { checkTable, type NftTableName } from './nft-elements.js';
import { checkArray } from './scalars.js';

export interface TableMonitorOptions {
  /** Tables whose changes matter, at least one; also ones that do not exist yet. */
  readonly tables: readonly NftTableName[];
  /** As for rtnetlink's monitor: how long announcements are collected, in milliseconds. Range: 0 to 1000. Default: 0. */
  readonly gatherMs?: number;
}

const OBJECTS = ['table', 'chain', 'rule', 'set', 'elements', 'object', 'flowtable'] as const;

/** Kind of a change. A deleted table is `table.delete`, with deletions of its contents except elements. */
export type NftChangeKind = `${(typeof OBJECTS)[number]}.${'add' | 'delete'}`;

/** A transaction that changed at least one of the tables. Transactions of other tables are left out. */
export interface NftTransaction {
  readonly object: 'transaction';
  /** The number of `NftChangeResult.generation`, by which a program knows its own transactions. */
  readonly generation: number;
  /** The thread that made it, in the initial PID namespace; absent when the kernel does not say. */
  readonly threadId?: number;
  /** Its name, at most 15 bytes; any program can choose it. */
  readonly processName?: string;
  readonly changes: readonly {
    readonly family: NftTableName['family'];
    readonly table: string;
    readonly kinds: readonly NftChangeKind[];
  }[];
}

const KINDS: ReadonlySet<string> = new Set(OBJECTS.flatMap((object) => [`${object}.add`, `${object}.delete`]));

function isKind(kind: string): kind is NftChangeKind {
  return KINDS.has(kind);
}

const TABLES_MAX = 1000;

export function checkTableMonitor({ tables, gatherMs }: TableMonitorOptions) {
  checkArray('options.tables', tables);
  if (tables.length < 1 || tables.length > TABLES_MAX) {
    throw new ArgumentError('options.tables', `must have 1 to ${TABLES_MAX} elements`);
  }
  return {
    tables: tables.map((table, position) => checkTable(`options.tables[${position}]`, table)),
    gatherMs: checkGatherMs(gatherMs),
  };
}

export function toTransactions(
  events: readonly (NativeTransaction | Overrun | NativeFailure)[],
  tables: readonly NftTableName[],
): (NftTransaction | Overrun | NativeFailure)[] {
  return events.map((event) => {
    if (event.object !== 'transaction') return event;
    const { object, generation, threadId, processName, changes } = event;
    return {
      object,
      generation,
      ...(threadId === null ? {} : { threadId }),
      ...(processName === null ? {} : { processName }),
      changes: tables.flatMap(({ family, table }, position) => {
        const kinds = changes[position]?.filter(isKind) ?? [];
        return kinds.length > 0 ? [{ family, table, kinds }] : [];
      }),
    };
  });
}
