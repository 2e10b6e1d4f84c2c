import { formatPrefix } from '@podwire/shared/net/prefix';
import { expect } from 'vitest';

import { assignAddresses, type AssignmentRequest, type Counts } from '../addresses/assign.js';
import { disagreements } from '../engine/testing/agreement.js';
import { keyOf, type MapView } from '../records/testing/map-view.js';
import type { Change } from '../records/view.js';
import { host, NOW_MS } from '../testing/records.js';

/** Etcd's limit on the comparisons of one transaction, and on its writes. */
const MAX_OPERATIONS = 128;

export function assignment(handleId: string, rest: Partial<AssignmentRequest> = {}): AssignmentRequest {
  return {
    handleId,
    owner: host('n1'),
    use: 'Workload',
    counts: { 4: 1, 6: 0 },
    addresses: [],
    pools: [],
    namespaceLabels: {},
    maxBlocksCount: 0,
    maxPerHandleCount: 0,
    attributes: {},
    allOrNothing: false,
    unknownNodes: { policy: 'register', uid: 'uid-node' },
    ...rest,
  };
}

export interface Assigned {
  /** Of full length. */
  readonly given: readonly string[];
  readonly blocks: readonly string[];
  readonly pools: readonly string[];
  readonly held: readonly string[];
  /** Texts, by family. */
  readonly short: Readonly<Record<string, string>>;
  readonly steps: number;
}

/** All steps of an assignment, each within what one transaction may have, and nothing wrong after any of them. */
export function assign(view: MapView, request: AssignmentRequest, nowMs = NOW_MS): Assigned {
  const given = [];
  const held = [];
  const short: Record<string, string> = {};
  let left: Counts | undefined;
  let steps = 0;
  do {
    const decision = assignAddresses(view, { request, nowMs, left });
    expect(operationsOf(decision.changes)).toBeLessThanOrEqual(MAX_OPERATIONS);
    const outcome = view.apply(decision);
    expect(disagreements(view, nowMs)).toEqual([]);
    given.push(...outcome.given);
    held.push(...outcome.held);
    for (const [family, { text }] of outcome.shortages) short[family] = text;
    left = outcome.left;
    steps++;
  } while (left);
  return {
    given: given.map(({ address }) => formatPrefix(address)),
    blocks: [...new Set(given.map(({ block }) => formatPrefix(block)))],
    pools: [...new Set(given.map(({ poolName }) => poolName))],
    held: held.map(({ address }) => formatPrefix(address)),
    short,
    steps,
  };
}

/** Operations of the transaction: comparisons or writes, whichever are more. Every record is compared, once. */
function operationsOf(changes: readonly Change[]): number {
  const named = changes.flatMap((change) => ('record' in change ? [keyOf(change.record)] : []));
  return new Set(named).size + changes.filter((change) => !('record' in change)).length;
}
