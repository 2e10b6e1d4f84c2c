import { compareTexts } from '@podwire/shared/words/order';

import { severityOf, type Finding, type FindingKind, type Severity } from '../../audit/finding.js';
import type { Usage } from '../../audit/usage.js';

/** Which findings to tell. */
export interface AuditQuery {
  /** ID behind which the page begins; empty for the first page. */
  readonly after: string;
  readonly limit: number;
  /** Only findings of these kinds; empty for all. */
  readonly kinds: readonly FindingKind[];
  /** Whether to tell of what is allowed and worth knowing. It is counted anyway. */
  readonly information: boolean;
  /** How many nodes to name, those with the most addresses first. */
  readonly nodesLimit: number;
}

export interface KindCount {
  readonly kind: FindingKind;
  readonly severity: Severity;
  readonly count: number;
}

/** How much a node holds. */
export interface NodeUse {
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
  /** Of all findings, asked for or not. */
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
