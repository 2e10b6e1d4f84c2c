import { parseAddress, type Address } from '@podwire/shared/net/address';
import { formatPrefix, ordinalOf } from '@podwire/shared/net/prefix';
import { expect } from 'vitest';

import { allocationOf } from '../addresses/addresses.js';
import { assignAddresses, type AssignmentRequest, type Counts } from '../addresses/assign.js';
import { handleChanges } from '../records/handle-counts.js';
import { blockOf } from '../blocks/lookup.js';
import { inconsistencies } from '../engine/testing/consistency.js';
import type { AllocationAttributes } from '../records/attributes.js';
import { attributesAt, releaseAddresses, takeOrdinals, type Block } from '../records/block.js';
import { keyOf, type TestView } from './test-view.js';
import type { Change, RecordValue } from '../records/view.js';
import { host, NOW_MS, session } from './records.js';

/** Helpers of the tests of allocations and releases. */

export function address(text: string): Address {
  const parsed = parseAddress(text);
  if (!parsed) throw new Error(`${text} is not an address`);
  return parsed;
}

/** Attributes as Calico's own plugin writes them. */
export function calico(
  handleId: string | undefined,
  owner: Readonly<Record<string, string>> = {},
): AllocationAttributes {
  return { handleId, owner, releasedAtMs: undefined };
}

interface BlockAllocation {
  readonly ordinals: readonly number[];
  readonly attributes: AllocationAttributes;
}

/** The block with further allocations. */
export function withAllocations(block: Block, ...allocations: readonly BlockAllocation[]): Block {
  return allocations.reduce((current, { ordinals, attributes }) => takeOrdinals(current, ordinals, attributes), block);
}

export function handleRecord(id: string, ...counts: readonly (readonly [string, number])[]): RecordValue {
  return { kind: 'handle', value: { id, blocks: new Map(counts) } };
}

/**
 * Releases an address as another tool would: removes it from its block and handle, and leaves endpoints as they are.
 */
export function releaseOutOfBand(view: TestView, text: string): void {
  const block = blockOf(view, address(text));
  const ordinal = block ? ordinalOf(block.prefix, address(text)) : 0;
  const id = block && attributesAt(block, ordinal)?.handleId;
  if (!block || id === undefined) throw new Error(`nothing holds ${text}`);
  const value = releaseAddresses(block, [ordinal]);
  view.apply({
    changes: [{ type: 'put', record: { kind: 'block', value } }, ...handleChanges(view, id, [value])],
    outcome: undefined,
  });
}

/** The counts of handles, computed from all blocks. */
export function countedHandles(view: TestView): Record<string, Record<string, number>> {
  const counts: Record<string, Record<string, number>> = {};
  for (const { prefix, allocations, attributes } of view.blocks()) {
    for (const index of allocations) {
      const id = index === null ? undefined : attributes[index]?.handleId;
      if (id === undefined) continue;
      const blocks = (counts[id] ??= {});
      const cidr = formatPrefix(prefix);
      blocks[cidr] = (blocks[cidr] ?? 0) + 1;
    }
  }
  return counts;
}

/** Number of addresses that name a node, with cooling ones and the free ones in its list. */
export function usedBy(view: TestView, nodeName: string): number {
  const names = view
    .blocks()
    .flatMap(({ allocations, attributes }) => allocations.map((index) => attributes[index ?? -1]?.owner.node));
  const listed = view.session(nodeName)?.leases ?? [];
  const freeListed = listed.filter((lease) => !allocationOf(view, lease.address));
  return names.filter((name) => name === nodeName).length + freeListed.length;
}

/** The session of a node's boot, which is opened if the node's current one is of another boot. */
export function sessionOf(view: TestView, nodeName = 'n1', bootId = 'b1') {
  const stored = view.session(nodeName);
  const isCurrent = stored?.bootId === bootId;
  const current = isCurrent ? stored : session(nodeName, { bootId, generation: (stored?.generation ?? 0) + 1 });
  if (!isCurrent) view.put({ kind: 'nodeSession', value: current });
  const { generation, revision } = current;
  return { bootId, generation, revision };
}

export function storedHandles(view: TestView): Record<string, Record<string, number>> {
  return Object.fromEntries(view.all('handle').map(({ value }) => [value.id, Object.fromEntries(value.blocks)]));
}

/** etcd's limit on the comparisons of one transaction, and on its writes. */
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

interface Assigned {
  /** New addresses of full length. */
  readonly newAddresses: readonly string[];
  readonly blocks: readonly string[];
  readonly pools: readonly string[];
  readonly held: readonly string[];
  /** Shortage texts by family. */
  readonly short: Readonly<Record<string, string>>;
  readonly steps: number;
}

/** Runs all steps of an assignment. Expects that each fits one transaction and leaves consistent records. */
export function assign(view: TestView, request: AssignmentRequest, nowMs = NOW_MS): Assigned {
  const newAddresses = [];
  const held = [];
  const short: Record<string, string> = {};
  let left: Counts | undefined;
  let steps = 0;
  do {
    const decision = assignAddresses(view, { request, nowMs, left });
    expect(operationsOf(decision.changes)).toBeLessThanOrEqual(MAX_OPERATIONS);
    const outcome = view.apply(decision);
    expect(inconsistencies(view, nowMs)).toEqual([]);
    newAddresses.push(...outcome.newAddresses);
    held.push(...outcome.held);
    for (const [family, { text }] of outcome.shortages) short[family] = text;
    left = outcome.left;
    steps++;
  } while (left);
  return {
    newAddresses: newAddresses.map(({ address }) => formatPrefix(address)),
    blocks: [...new Set(newAddresses.map(({ block }) => formatPrefix(block)))],
    pools: [...new Set(newAddresses.map(({ poolName }) => poolName))],
    held: held.map(({ address }) => formatPrefix(address)),
    short,
    steps,
  };
}

/** Operations of the transaction: the larger number of comparisons and writes. Every record is compared once. */
function operationsOf(changes: readonly Change[]): number {
  const named = changes.flatMap((change) => ('record' in change ? [keyOf(change.record)] : []));
  return new Set(named).size + changes.filter((change) => !('record' in change)).length;
}
