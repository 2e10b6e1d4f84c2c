import { FAMILIES } from '@podwire/shared/net/address';
import { defaultRoute, formatPrefix, type Prefix } from '@podwire/shared/net/prefix';
import { compareTexts } from '@podwire/shared/words/order';

import type { Block } from '../records/block.js';
import { findAddressFaultsAt, findAddressFaults } from './address-findings.js';
import { findAffinityFaults, findBlockFaults } from './block-findings.js';
import { handleCounts, type AuditContext } from './context.js';
import { findEndpointFaults } from './endpoint-findings.js';
import { severityOf, type Finding, type FindingKind, type Severity, type Subject } from './finding.js';
import { findForeignEndpointFaults } from './foreign-endpoint-findings.js';
import { findHandleFaults, findNodeFaults, findPoolOverlap, unreadableFinding } from './record-findings.js';
import { findSessionFaults } from './session-findings.js';
import type { Usage } from './usage.js';

/**
 * Examines everything in the datastore, one item per step, so that the caller can yield in between. The view may change
 * meanwhile, so a finding may mix two moments: check it again at the end with {@link recheckFinding}. A permanent fault is
 * always found.
 * @returns the findings of each step
 */
export function* auditSteps(context: AuditContext): Generator<readonly Finding[], void, void> {
  const { view } = context;
  // Copied first: ordered collections must not change during iteration.
  const blocks = FAMILIES.flatMap((family) => [...view.blocksIn(defaultRoute(family))]);
  const [affinities, handles] = [[...view.affinities()], [...view.handles()]];
  const [endpoints, foreign] = [[...view.endpoints()], [...view.foreignEndpoints()]];
  const sessions = [...view.sessions()];
  yield [...view.unreadable()].map(unreadableFinding);
  for (const pool of view.pools()) yield findPoolOverlap(context, pool);
  const unnamed = new Map<string, Prefix[]>();
  for (const block of blocks) {
    collectUnnamed(context, block, unnamed);
    yield [...findBlockFaults(context, block), ...findAddressFaults(context, block)];
  }
  for (const affinity of affinities) yield findAffinityFaults(context, affinity);
  for (const { id } of handles) {
    yield findHandleFaults(context, { id, alsoIn: unnamed.get(id) ?? [] });
    unnamed.delete(id);
  }
  for (const [id, alsoIn] of unnamed) yield findHandleFaults(context, { id, alsoIn });
  for (const endpoint of endpoints) yield findEndpointFaults(context, endpoint);
  for (const endpoint of foreign) yield findForeignEndpointFaults(context, endpoint);
  for (const node of view.nodes()) yield findNodeFaults(context, node);
  for (const session of sessions) yield findSessionFaults(context, session);
}

/** Collects the handles that have addresses in the block but do not name it. */
function collectUnnamed({ view }: AuditContext, block: Block, unnamed: Map<string, Prefix[]>): void {
  const cidr = formatPrefix(block.prefix);
  for (const id of handleCounts(block).keys())
    if (view.handle(id)?.blocks.has(cidr) !== true) unnamed.set(id, [...(unnamed.get(id) ?? []), block.prefix]);
}

/** Each fault once, also if several objects report it. */
export function distinctFindings(findings: readonly Finding[]): Finding[] {
  return [...new Map(findings.map((finding) => [finding.id, finding])).values()];
}

/** The current state of the finding; undefined when the fault no longer exists. */
export function recheckFinding(
  context: AuditContext,
  { id, subject }: Pick<Finding, 'id' | 'subject'>,
): Finding | undefined {
  return findSubjectFaults(context, subject).find((finding) => finding.id === id);
}

function findSubjectFaults(context: AuditContext, subject: Subject): readonly Finding[] {
  const { view } = context;
  switch (subject.type) {
    case 'record':
      return [...view.unreadable()].map(unreadableFinding);
    case 'pool': {
      const pool = view.pool(subject.name);
      return pool ? findPoolOverlap(context, pool) : [];
    }
    case 'block': {
      const block = view.block(subject.prefix);
      return block ? findBlockFaults(context, block) : [];
    }
    case 'address': {
      const block = view.block(subject.block);
      return block ? findAddressFaultsAt(context, block, subject.ordinal) : [];
    }
    case 'affinity': {
      const affinity = view.affinity(subject.owner, subject.block);
      return affinity ? findAffinityFaults(context, affinity) : [];
    }
    case 'handle':
      return findHandleFaults(context, subject);
    case 'endpoint':
      return findEndpointFaultsAt(context, subject);
    case 'node': {
      const [node, session] = [view.node(subject.name), view.session(subject.name)];
      return [...(node ? findNodeFaults(context, node) : []), ...(session ? findSessionFaults(context, session) : [])];
    }
  }
}

function findEndpointFaultsAt(context: AuditContext, { key }: Subject & { type: 'endpoint' }): readonly Finding[] {
  const value = context.view.endpoint(key);
  if (value) return findEndpointFaults(context, { key, value });
  const foreign = context.view.foreignEndpoint(key);
  return foreign ? findForeignEndpointFaults(context, { key, value: foreign }) : [];
}

/** Filter of the findings to return. */
export interface AuditQuery {
  /** ID behind which the page begins; empty for the first page. */
  readonly after: string;
  readonly limit: number;
  /** Only findings of these kinds; empty for all. */
  readonly kinds: readonly FindingKind[];
  /** Whether to include informational findings, about allowed states. They are counted anyway. */
  readonly information: boolean;
  /** Number of nodes to name, nodes with the most addresses first. */
  readonly nodesLimit: number;
}

interface KindCount {
  readonly kind: FindingKind;
  readonly severity: Severity;
  readonly count: number;
}

/** How much a node holds. */
interface NodeUse {
  readonly nodeName: string;
  readonly blocks: number;
  readonly inUse: number;
  readonly borrowed: number;
  readonly leased: number;
}

export interface AuditReport {
  /** A page of the findings, in the order of their IDs. */
  readonly findings: readonly Finding[];
  /** Whether there are findings behind the last. */
  readonly more: boolean;
  /** Counts of all findings, requested or not. */
  readonly counts: readonly KindCount[];
  readonly nodes: readonly NodeUse[];
  readonly namespaces: Usage['namespaces'];
  readonly addressesInUse: number;
  readonly addressesCooling: number;
  readonly addressesLeased: number;
  readonly blocks: number;
}

export function makeReport(findings: readonly Finding[], usage: Usage, query: AuditQuery): AuditReport {
  const matching = findings
    .filter((finding) => matchesQuery(finding, query))
    .sort((a, b) => compareTexts(a.id, b.id))
    .filter(({ id }) => id > query.after);
  const nodes = nodeUses(usage);
  return {
    findings: matching.slice(0, query.limit),
    more: matching.length > query.limit,
    counts: countKinds(findings),
    nodes: nodes.slice(0, query.nodesLimit),
    namespaces: usage.namespaces,
    addressesInUse: nodes.reduce((sum, { inUse }) => sum + inUse, 0),
    addressesCooling: usage.cooling,
    addressesLeased: nodes.reduce((sum, { leased }) => sum + leased, 0),
    blocks: nodes.reduce((sum, { blocks }) => sum + blocks, 0),
  };
}

export function matchesQuery(
  finding: Finding,
  { kinds, information }: Pick<AuditQuery, 'kinds' | 'information'>,
): boolean {
  if (kinds.length > 0) return kinds.includes(finding.kind);
  return information || severityOf(finding) !== 'information';
}

function countKinds(findings: readonly Finding[]): KindCount[] {
  const counts = new Map<FindingKind, number>();
  for (const { kind } of findings) counts.set(kind, (counts.get(kind) ?? 0) + 1);
  return [...counts]
    .sort(([a], [b]) => compareTexts(a, b))
    .map(([kind, count]) => ({ kind, severity: severityOf({ kind }), count }));
}

/** Nodes by their number of addresses, the most first. */
function nodeUses({ nodeUsages }: Usage): NodeUse[] {
  const nodes = new Map<string, NodeUse>();
  for (const { nodeName, blocks, inUse, borrowed, leased } of nodeUsages) {
    const known = nodes.get(nodeName) ?? { blocks: 0, inUse: 0, borrowed: 0, leased: 0 };
    nodes.set(nodeName, {
      nodeName,
      blocks: known.blocks + blocks,
      inUse: known.inUse + inUse,
      borrowed: known.borrowed + borrowed,
      leased: known.leased + leased,
    });
  }
  return [...nodes.values()].sort((a, b) => b.inUse - a.inUse || compareTexts(a.nodeName, b.nodeName));
}
