import type { Family } from '@podwire/shared/net/address';
import { defaultRoute, formatPrefix, type Prefix } from '@podwire/shared/net/prefix';
import { compareTexts } from '@podwire/shared/words/order';

import type { Block } from '../records/block.js';
import { judgeAddress, judgeAddresses } from './address-findings.js';
import { judgeAffinity, judgeBlock } from './block-findings.js';
import { handleCounts, type Judging } from './context.js';
import { judgeEndpoint } from './endpoint-findings.js';
import { severityOf, type Finding, type FindingKind, type Severity, type Subject } from './finding.js';
import { judgeForeignEndpoint } from './foreign-endpoint-findings.js';
import { judgeHandle, judgeNode, judgePool, judgeUnreadable } from './record-findings.js';
import type { Usage } from './usage.js';

const FAMILIES: readonly Family[] = [4, 6];

/**
 * Examines everything in the datastore, one item per step, so that the caller can yield in between. The view may change
 * meanwhile, so a finding may mix two moments: judge it again at the end with {@link judgeAgain}. A permanent fault is
 * always found.
 * @returns the findings of each step
 */
export function* auditSteps(judging: Judging): Generator<readonly Finding[], void, void> {
  const { view } = judging;
  // Listed at once: what is stored in order cannot be walked through while it changes.
  const blocks = FAMILIES.flatMap((family) => [...view.blocksIn(defaultRoute(family))]);
  const [affinities, handles] = [[...view.affinities()], [...view.handles()]];
  const [endpoints, foreign] = [[...view.endpoints()], [...view.foreignEndpoints()]];
  yield [...view.unreadable()].map(judgeUnreadable);
  for (const pool of view.pools()) yield judgePool(judging, pool);
  const unnamed = new Map<string, Prefix[]>();
  for (const block of blocks) {
    noteUnnamed(judging, block, unnamed);
    yield [...judgeBlock(judging, block), ...judgeAddresses(judging, block)];
  }
  for (const affinity of affinities) yield judgeAffinity(judging, affinity);
  for (const { id } of handles) {
    yield judgeHandle(judging, { id, alsoIn: unnamed.get(id) ?? [] });
    unnamed.delete(id);
  }
  for (const [id, alsoIn] of unnamed) yield judgeHandle(judging, { id, alsoIn });
  for (const endpoint of endpoints) yield judgeEndpoint(judging, endpoint);
  for (const endpoint of foreign) yield judgeForeignEndpoint(judging, endpoint);
  for (const node of view.nodes()) yield judgeNode(judging, node);
}

/** Notes the handles that have addresses of the block and do not name it. */
function noteUnnamed({ view }: Judging, block: Block, unnamed: Map<string, Prefix[]>): void {
  const cidr = formatPrefix(block.prefix);
  for (const id of handleCounts(block).keys())
    if (view.handle(id)?.blocks.has(cidr) !== true) unnamed.set(id, [...(unnamed.get(id) ?? []), block.prefix]);
}

/** Each fault once, also where several of its objects show it. */
export function distinctFindings(findings: readonly Finding[]): Finding[] {
  return [...new Map(findings.map((finding) => [finding.id, finding])).values()];
}

/** The finding as it is now; undefined when there is no such fault any more. */
export function judgeAgain(judging: Judging, { id, subject }: Pick<Finding, 'id' | 'subject'>): Finding | undefined {
  return judgeSubject(judging, subject).find((finding) => finding.id === id);
}

function judgeSubject(judging: Judging, subject: Subject): readonly Finding[] {
  const { view } = judging;
  switch (subject.type) {
    case 'record':
      return [...view.unreadable()].map(judgeUnreadable);
    case 'pool': {
      const pool = view.pool(subject.name);
      return pool ? judgePool(judging, pool) : [];
    }
    case 'block': {
      const block = view.block(subject.prefix);
      return block ? judgeBlock(judging, block) : [];
    }
    case 'address': {
      const block = view.block(subject.block);
      return block ? judgeAddress(judging, block, subject.ordinal) : [];
    }
    case 'affinity': {
      const affinity = view.affinity(subject.owner, subject.block);
      return affinity ? judgeAffinity(judging, affinity) : [];
    }
    case 'handle':
      return judgeHandle(judging, subject);
    case 'endpoint':
      return judgeEndpointAt(judging, subject);
    case 'node': {
      const node = view.node(subject.name);
      return node ? judgeNode(judging, node) : [];
    }
  }
}

function judgeEndpointAt(judging: Judging, { key }: Subject & { type: 'endpoint' }): readonly Finding[] {
  const value = judging.view.endpoint(key);
  if (value) return judgeEndpoint(judging, { key, value });
  const foreign = judging.view.foreignEndpoint(key);
  return foreign ? judgeForeignEndpoint(judging, { key, value: foreign }) : [];
}

/** Which findings to return. */
export interface AuditQuery {
  /** ID behind which the page begins; empty for the first page. */
  readonly after: string;
  readonly limit: number;
  /** Only findings of these kinds; empty for all. */
  readonly kinds: readonly FindingKind[];
  /** Whether to include informational findings, about allowed states. They are counted anyway. */
  readonly information: boolean;
  /** How many nodes to name, those with the most addresses first. */
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
}

export interface AuditReport {
  /** A page of the findings, in the order of their IDs. */
  readonly findings: readonly Finding[];
  /** Whether there are findings behind the last. */
  readonly more: boolean;
  /** Of all findings, requested or not. */
  readonly counts: readonly KindCount[];
  readonly nodes: readonly NodeUse[];
  readonly addressesInUse: number;
  readonly addressesCooling: number;
  readonly blocks: number;
}

export function makeReport(findings: readonly Finding[], usage: Usage, query: AuditQuery): AuditReport {
  const wanted = findings
    .filter((finding) => isWanted(finding, query))
    .sort((a, b) => compareTexts(a.id, b.id))
    .filter(({ id }) => id > query.after);
  const nodes = nodeUses(usage);
  return {
    findings: wanted.slice(0, query.limit),
    more: wanted.length > query.limit,
    counts: countKinds(findings),
    nodes: nodes.slice(0, query.nodesLimit),
    addressesInUse: nodes.reduce((sum, { inUse }) => sum + inUse, 0),
    addressesCooling: usage.cooling,
    blocks: nodes.reduce((sum, { blocks }) => sum + blocks, 0),
  };
}

export function isWanted(finding: Finding, { kinds, information }: Pick<AuditQuery, 'kinds' | 'information'>): boolean {
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

/** By the number of addresses, the most first. */
function nodeUses({ shares }: Usage): NodeUse[] {
  const nodes = new Map<string, NodeUse>();
  for (const { nodeName, blocks, inUse, borrowed } of shares) {
    const known = nodes.get(nodeName) ?? { blocks: 0, inUse: 0, borrowed: 0 };
    nodes.set(nodeName, {
      nodeName,
      blocks: known.blocks + blocks,
      inUse: known.inUse + inUse,
      borrowed: known.borrowed + borrowed,
    });
  }
  return [...nodes.values()].sort((a, b) => b.inUse - a.inUse || compareTexts(a.nodeName, b.nodeName));
}
