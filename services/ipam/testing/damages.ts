import { formatPrefix, parsePrefix } from '@podwire/shared/net/prefix';

import { allocate, type AllocationRequest } from '../addresses/allocate/allocate.js';
import { auditSteps, distinctFindings } from '../audit/audit.js';
import { AuditContext } from '../audit/context.js';
import type { Finding, FindingKind } from '../audit/finding.js';
import { repair, type RepairInput, type RepairResult } from '../audit/repair.js';
import type { AllocationAttributes } from '../records/attributes.js';
import type { Block } from '../records/block.js';
import type { Node, TunnelKind } from '../records/node.js';
import type { RecordValue } from '../records/view.js';
import { NOW_MS, poolRecord, prefix, request } from './records.js';
import { TestView } from './test-view.js';

/** A damage of a healthy view, with the expected findings. */
export interface Damage {
  readonly name: string;
  readonly kind: FindingKind;
  /** The object of the finding. */
  readonly of: string;
  /** Damages a healthy view of two pools. */
  readonly damage: (view: TestView) => void;
  /** Further findings of the damage, as `kind object`. */
  readonly besides?: readonly string[];
  /** Whether a repair ends it. */
  readonly repaired: boolean;
  /** Held addresses that the repair releases or, below 0, takes again; 0 by default. */
  readonly released?: number;
}

/** The block of the first container's IPv4 address. */
function firstBlock(view: TestView): string {
  return formatPrefix(view.blocks()[0]!.prefix);
}

export function first(view: TestView) {
  return blockAt(view, firstBlock(view));
}

/** The node record that an allocation made. */
function anyNode(): Node {
  const [node] = healthyView().nodes();
  if (!node) throw new Error('allocations register their nodes');
  return node;
}

export function setNode(view: TestView, name: string, tunnels: readonly (readonly [TunnelKind, string])[] = []): void {
  const addresses = tunnels.map(([kind, cidr]) => [kind, { address: prefix(cidr) }] as const);
  view.put({ kind: 'node', value: { ...anyNode(), name, uid: `uid-${name}`, tunnels: new Map(addresses) } });
}

/** The IPv4 address of a container, of full length. */
function addressOf(view: TestView, containerId: string): string {
  const endpoint = view.endpoints().find(({ value }) => value.attachment.containerId === containerId);
  return formatPrefix(endpoint!.value.addresses[0]!.address);
}

function bare(view: TestView, containerId: string): string {
  return addressOf(view, containerId).replace('/32', '');
}

const HEALTHY = healthyView();
export const B1 = firstBlock(HEALTHY);
export const OF_C1 = bare(HEALTHY, 'c1');
export const IN_NO_BLOCK = '10.9.9.9';

/** Shared by the tests of audit and repair. */

export const GRACE_MS = 15 * 60 * 1000;

/** The time of the audits: long after everything was allocated. */
export const LATER_MS = NOW_MS + 2 * GRACE_MS;

/** Two small pools with three containers on two nodes, one of them with both families. */
export function healthyView(): TestView {
  const view = new TestView([
    poolRecord('four', '10.0.0.0/28', { blockSizeBits: 30 }),
    poolRecord('six', 'fd00::/124', { blockSizeBits: 126 }),
  ]);
  allocateFor(view, request('c1', { families: [4, 6] }));
  allocateFor(view, request('c2'));
  allocateFor(view, request('c3', { nodeName: 'n2', pod: undefined }));
  return view;
}

export function allocateFor(view: TestView, wanted: AllocationRequest): void {
  view.apply(allocate(view, { request: wanted, nowMs: NOW_MS }));
}

function context(view: TestView, nowMs = LATER_MS): AuditContext {
  return new AuditContext(view, { nowMs, graceMs: GRACE_MS });
}

/** The whole audit at once. */
export function audit(view: TestView, nowMs = LATER_MS): Finding[] {
  return distinctFindings([...auditSteps(context(view, nowMs))].flat());
}

/** The findings of an audit, each as `kind object`, sorted. */
export function found(view: TestView, nowMs = LATER_MS): string[] {
  return audit(view, nowMs)
    .map(({ kind, objects: [first] }) => `${kind} ${first!.name}`)
    .sort();
}

interface RepairAllInput extends Partial<Omit<RepairInput, 'finding'>> {
  /** Each of several passes finds damages that earlier ones have revealed. */
  readonly passes?: number;
}

/** Repairs all findings of an audit. @returns the outcome of each finding, over all passes */
export function repairAll(view: TestView, { passes = 3, ...rest }: RepairAllInput = {}): RepairResult[] {
  const input = { nowMs: LATER_MS, graceMs: GRACE_MS, releases: true, seenMs: LATER_MS, dryRun: false, ...rest };
  const results: RepairResult[] = [];
  for (let pass = 0; pass < passes; pass++)
    for (const finding of audit(view, input.nowMs)) results.push(view.apply(repair(view, { finding, ...input })));
  return results;
}

function blockAt(view: TestView, cidr: string): Block {
  const block = view.block(prefix(cidr));
  if (!block) throw new Error(`there is no block ${cidr}`);
  return block;
}

export function putBlock(view: TestView, value: Block): void {
  view.put({ kind: 'block', value });
}

/** Changes a block past its writers. */
export function change(view: TestView, cidr: string, by: (block: Block) => Partial<Block>): void {
  const block = blockAt(view, cidr);
  putBlock(view, { ...block, ...by(block) });
}

/** The records of a kind, removed. */
export function drop(view: TestView, kind: RecordValue['kind'], which: (record: RecordValue) => boolean = () => true) {
  for (const record of view.all(kind))
    if (which(record)) view.apply({ changes: [{ type: 'delete', record }], outcome: undefined });
}

/** Allocates the next free address of a block past its writers: like Calico's plugin, without a handle. */
export function takeUnrecorded(block: Block, attributes: Partial<AllocationAttributes>): Block {
  const [ordinal = 0, ...unallocated] = block.unallocated;
  const taken = { handleId: undefined, owner: {}, releasedAtMs: undefined, ...attributes };
  return {
    ...block,
    allocations: block.allocations.with(ordinal, block.attributes.length),
    unallocated,
    attributes: [...block.attributes, taken],
    sequenceNumber: block.sequenceNumber + 1n,
    sequenceNumbers: block.sequenceNumbers.with(ordinal, block.sequenceNumber),
  };
}

/** An allocation of Calico's own plugin for a pod, half an hour old. */
export function calicoAttributes(containerId: string, podName: string, nodeName = 'n1'): AllocationAttributes {
  return {
    handleId: `k8s-pod-network.${containerId}`,
    owner: { node: nodeName, namespace: 'default', pod: podName, timestamp: '2026-08-22 06:33:25.1 +0000 UTC' },
    releasedAtMs: undefined,
  };
}

export function handleRecord(id: string, counts: Readonly<Record<string, number>>): RecordValue {
  const blocks = new Map(Object.entries(counts).map(([cidr, count]) => [cidrOf(cidr), count]));
  return { kind: 'handle', value: { id, blocks } };
}

function cidrOf(text: string): string {
  const parsed = parsePrefix(text);
  if (!parsed.ok) throw new Error(`${text} ${parsed.fault}`);
  return formatPrefix(parsed.prefix);
}
