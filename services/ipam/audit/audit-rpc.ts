import {
  AuditServiceService,
  FindingKind as KindMessage,
  RemedyType,
  RepairOutcome,
  Severity as SeverityMessage,
  type AuditRequest,
  type AuditSummary,
  type Finding as FindingMessage,
  type RepairRequest,
  type RepairResult as RepairResultMessage,
} from '@podwire/proto/podwire/ipam/v1/maintenance';
import { readChecked, type Checks } from '@podwire/shared/requests/checks';
import { formatPageToken, readPageSize, readPageToken, type ListScope } from '@podwire/shared/requests/paging';
import type { RpcService } from '@podwire/shared/rpc/server';
import { unaryService, type Unary } from '@podwire/shared/rpc/unary';

import type { Audits } from './audit-operations.js';
import type { AuditQuery, AuditReport } from './audit.js';
import { severityOf, type Finding, type FindingKind, type Remedy, type Severity } from './finding.js';
import type { RepairedFinding, RepairOptions } from './repair.js';

export function auditService(audits: Audits, unary: Unary): RpcService {
  return unaryService(AuditServiceService, unary, {
    audit: async (message, { signal }) => {
      const report = await audits.audit(readAuditRequest(message), signal);
      return {
        findings: report.findings.map(findingMessage),
        nextPageToken: formatPageToken(auditScope(message), report.more ? report.findings.at(-1)?.id : undefined),
        summary: summaryMessage(report),
      };
    },
    repair: async (message, { signal }) => {
      const { results, more } = await audits.repair(readRepairRequest(message), signal);
      return { results: results.map(repairResultMessage), more };
    },
  });
}

const KINDS: Record<FindingKind, KindMessage> = {
  recordUnreadable: KindMessage.FINDING_KIND_RECORD_UNREADABLE,
  poolsOverlap: KindMessage.FINDING_KIND_POOLS_OVERLAP,
  blocksOverlap: KindMessage.FINDING_KIND_BLOCKS_OVERLAP,
  blockInvalid: KindMessage.FINDING_KIND_BLOCK_INVALID,
  blockWithoutPool: KindMessage.FINDING_KIND_BLOCK_WITHOUT_POOL,
  blockOfOtherSize: KindMessage.FINDING_KIND_BLOCK_OF_OTHER_SIZE,
  blockWithoutOwnerEmpty: KindMessage.FINDING_KIND_BLOCK_WITHOUT_OWNER_EMPTY,
  blockWithoutAffinity: KindMessage.FINDING_KIND_BLOCK_WITHOUT_AFFINITY,
  affinityUnconfirmed: KindMessage.FINDING_KIND_AFFINITY_UNCONFIRMED,
  affinityWithoutBlock: KindMessage.FINDING_KIND_AFFINITY_WITHOUT_BLOCK,
  affinityOfOthersBlock: KindMessage.FINDING_KIND_AFFINITY_OF_OTHERS_BLOCK,
  blockOfGoneNode: KindMessage.FINDING_KIND_BLOCK_OF_GONE_NODE,
  handleWithoutAddresses: KindMessage.FINDING_KIND_HANDLE_WITHOUT_ADDRESSES,
  handleCountsWrong: KindMessage.FINDING_KIND_HANDLE_COUNTS_WRONG,
  handleMissing: KindMessage.FINDING_KIND_HANDLE_MISSING,
  allocationUnused: KindMessage.FINDING_KIND_ALLOCATION_UNUSED,
  allocationUnexplained: KindMessage.FINDING_KIND_ALLOCATION_UNEXPLAINED,
  addressUnallocated: KindMessage.FINDING_KIND_ADDRESS_UNALLOCATED,
  addressOutsidePools: KindMessage.FINDING_KIND_ADDRESS_OUTSIDE_POOLS,
  addressOfSeveralOwners: KindMessage.FINDING_KIND_ADDRESS_OF_SEVERAL_OWNERS,
  endpointMissing: KindMessage.FINDING_KIND_ENDPOINT_MISSING,
  endpointOutdated: KindMessage.FINDING_KIND_ENDPOINT_OUTDATED,
  endpointOfGoneNode: KindMessage.FINDING_KIND_ENDPOINT_OF_GONE_NODE,
  tunnelUnallocated: KindMessage.FINDING_KIND_TUNNEL_UNALLOCATED,
  tunnelAllocationUnused: KindMessage.FINDING_KIND_TUNNEL_ALLOCATION_UNUSED,
  coolDownOver: KindMessage.FINDING_KIND_COOL_DOWN_OVER,
  reservedInUse: KindMessage.FINDING_KIND_RESERVED_IN_USE,
  leaseOfGoneNode: KindMessage.FINDING_KIND_LEASE_OF_GONE_NODE,
  leaseWithoutBoot: KindMessage.FINDING_KIND_LEASE_WITHOUT_BOOT,
  addressConflict: KindMessage.FINDING_KIND_ADDRESS_CONFLICT,
  nodeUnreported: KindMessage.FINDING_KIND_NODE_UNREPORTED,
  nodeInPool: KindMessage.FINDING_KIND_NODE_IN_POOL,
};

const SEVERITIES: Record<Severity, SeverityMessage> = {
  information: SeverityMessage.SEVERITY_INFORMATION,
  warning: SeverityMessage.SEVERITY_WARNING,
  error: SeverityMessage.SEVERITY_ERROR,
};

const REMEDIES: Record<Remedy['type'], RemedyType> = {
  none: RemedyType.REMEDY_TYPE_NONE,
  safe: RemedyType.REMEDY_TYPE_SAFE,
  release: RemedyType.REMEDY_TYPE_RELEASE,
};

const OUTCOMES: Record<RepairedFinding['result']['state'], RepairOutcome> = {
  repaired: RepairOutcome.REPAIR_OUTCOME_REPAIRED,
  possible: RepairOutcome.REPAIR_OUTCOME_POSSIBLE,
  gone: RepairOutcome.REPAIR_OUTCOME_GONE,
  refused: RepairOutcome.REPAIR_OUTCOME_REFUSED,
};

const MAX_NODES = 1000;

const DEFAULT_REPAIRS = 1000;
const MAX_REPAIRS = 10_000;

const DEFAULT_GRACE_SECONDS = 900;
const MIN_GRACE_SECONDS = 60;
const MAX_GRACE_SECONDS = 30 * 24 * 3600;

function readAuditRequest(message: AuditRequest): AuditQuery {
  return readChecked('Audit', (checks) => {
    const { topNodes } = message;
    checks.check(
      'top_nodes',
      topNodes < 0 || topNodes > MAX_NODES ? `is ${topNodes}; must be 0 to ${MAX_NODES}` : undefined,
    );
    return {
      after: readPageToken(message, auditScope(message), checks),
      limit: readPageSize(message, checks),
      kinds: readKinds(message.kinds, checks),
      information: message.includeInformation,
      nodesLimit: topNodes,
    };
  });
}

/** A page token is valid only for the same filters. */
function auditScope({ kinds, includeInformation }: AuditRequest): ListScope {
  return ['findings', kinds.join(','), String(includeInformation)];
}

function readRepairRequest(message: RepairRequest): RepairOptions {
  return readChecked('Repair', (checks) => {
    const { dryRun = true, releaseUnused, graceSeconds = DEFAULT_GRACE_SECONDS, limit } = message;
    const isGrace = graceSeconds >= MIN_GRACE_SECONDS && graceSeconds <= MAX_GRACE_SECONDS;
    const graces = `${MIN_GRACE_SECONDS} to ${MAX_GRACE_SECONDS}`;
    checks.check('grace_seconds', isGrace ? undefined : `is ${graceSeconds}; must be ${graces}`);
    const isLimit = limit >= 0 && limit <= MAX_REPAIRS;
    checks.check('limit', isLimit ? undefined : `is ${limit}; must be 0 to ${MAX_REPAIRS}`);
    return {
      kinds: readKinds(message.kinds, checks),
      dryRun,
      releases: releaseUnused,
      graceMs: graceSeconds * 1000,
      limit: limit === 0 ? DEFAULT_REPAIRS : limit,
    };
  });
}

function readKinds(messages: readonly KindMessage[], checks: Checks): FindingKind[] {
  const known = new Map(Object.entries(KINDS).map(([kind, message]) => [message, kind]));
  return messages.flatMap((message, index) => {
    const kind = known.get(message);
    if (kind !== undefined && isKind(kind)) return [kind];
    checks.check(`kinds[${index}]`, `is ${message}; unknown kind of finding`);
    return [];
  });
}

function isKind(text: string): text is FindingKind {
  return Object.hasOwn(KINDS, text);
}

function findingMessage(finding: Finding): FindingMessage {
  const { id, kind, objects, explanation, remedy } = finding;
  return {
    id,
    kind: KINDS[kind],
    severity: SEVERITIES[severityOf(finding)],
    objects: objects.map(({ type, name }) => ({ type, name })),
    explanation,
    remedy: REMEDIES[remedy.type],
    remedyExplanation: remedy.type === 'none' ? remedy.reason : remedy.effect,
  };
}

function summaryMessage(report: AuditReport): AuditSummary {
  const { counts, nodes, namespaces, blocks, addressesInUse, addressesCooling, addressesLeased } = report;
  return {
    findings: counts.map(({ kind, severity, count }) => ({
      kind: KINDS[kind],
      severity: SEVERITIES[severity],
      count: BigInt(count),
    })),
    blocks: BigInt(blocks),
    addressesInUse: BigInt(addressesInUse),
    addressesCooling: BigInt(addressesCooling),
    addressesLeased: BigInt(addressesLeased),
    namespaces: namespaces.map(({ namespace, inUse }) => ({ namespace, addressesInUse: BigInt(inUse) })),
    topNodes: nodes.map(({ nodeName, blocks: ofNode, inUse, borrowed, leased }) => ({
      nodeName,
      blocks: BigInt(ofNode),
      addressesInUse: BigInt(inUse),
      addressesBorrowed: BigInt(borrowed),
      addressesLeased: BigInt(leased),
    })),
  };
}

function repairResultMessage({ finding, result }: RepairedFinding): RepairResultMessage {
  return {
    finding: findingMessage(finding),
    outcome: OUTCOMES[result.state],
    explanation: explainResult(result),
  };
}

function explainResult(result: RepairedFinding['result']): string {
  switch (result.state) {
    case 'repaired':
    case 'possible':
      return result.effect;
    case 'gone':
      return 'the fault no longer exists';
    case 'refused':
      return result.reason;
  }
}
