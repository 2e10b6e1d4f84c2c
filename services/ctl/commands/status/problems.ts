import { RoutingState } from '@podwire/proto/podwire/dataplane/v1/node';
import { NodeContact, type GetClusterInfoResponse, type NodeState } from '@podwire/proto/podwire/ipam/v1/cluster';
import { Severity, type AuditSummary } from '@podwire/proto/podwire/ipam/v1/maintenance';
import type { GetPolicyStatusResponse } from '@podwire/proto/podwire/ipam/v1/network_policy';
import { PoolState, type Pool } from '@podwire/proto/podwire/ipam/v1/pool';
import { formatCount } from '@podwire/shared/words/format-count';

import { age, lengthOfTime, percent } from '../../output/words.js';
import { isNearlyFull } from '../../resources/ippool.js';

/** State of the cluster as podwire-ipam knows it, at one time. */
export interface ClusterFacts {
  readonly info: GetClusterInfoResponse;
  readonly nodes: readonly NodeState[];
  readonly pools: readonly Pool[];
  readonly audit: AuditSummary | undefined;
  /** Undefined: this podwire-ipam serves no network policies. */
  readonly policies: GetPolicyStatusResponse | undefined;
  readonly nowMs: number;
}

/** Something that an operator should correct. */
export interface Problem {
  /** `error`: pods cannot start, or may have the wrong network; `warning`: this comes, or something works only in part. */
  readonly severity: 'error' | 'warning';
  /** `node node-1`. */
  readonly object: string;
  readonly text: string;
  /** The command that shows more, or corrects it. */
  readonly next: string;
}

/** Certificates are renewed when a third of their life is left, which is weeks. */
const CERTIFICATE_WARNING_MS = 7 * 86_400_000;

const FULL_SOON_SECONDS = 86_400;

const SLOW_STORE_US = 500_000;

/** All problems: errors first, then in the order of the screen. */
export function problemsOf(facts: ClusterFacts): Problem[] {
  const problems = [
    ...storeProblems(facts),
    ...(facts.nodes.length === 0 ? [NO_NODES] : facts.nodes.flatMap((node) => nodeProblems(node, facts.nowMs))),
    ...poolProblems(facts.pools),
    ...auditProblems(facts.audit),
    ...policyProblems(facts.policies, facts.nowMs),
  ];
  const errors = problems.filter(({ severity }) => severity === 'error');
  return [...errors, ...problems.filter(({ severity }) => severity !== 'error')];
}

const NO_NODES: Problem = {
  severity: 'error',
  object: 'nodes',
  text: 'no node is registered',
  next: 'start podwire-node on each node, and see its log',
};

function storeProblems({ info, nowMs }: ClusterFacts): Problem[] {
  const problems = certificateProblems('podwire-ipam', info.certificateEndTime, nowMs);
  if (info.storeReadUs < SLOW_STORE_US) return problems;
  const text = `the datastore took ${Math.round(info.storeReadUs / 1000)} ms for a read`;
  return [
    ...problems,
    { severity: 'warning', object: `datastore ${info.store}`, text, next: "see the datastore's own metrics" },
  ];
}

function certificateProblems(object: string, end: Date | undefined, nowMs: number): Problem[] {
  if (!end || end.getTime() - nowMs > CERTIFICATE_WARNING_MS) return [];
  const leftMs = end.getTime() - nowMs;
  const next = `renew its certificate, and see the log of ${object}`;
  return leftMs > 0
    ? [{ severity: 'warning', object, text: `its certificate expires in ${lengthOfTime(leftMs)}`, next }]
    : [{ severity: 'error', object, text: `its certificate expired ${age(end, nowMs)} ago`, next }];
}

function nodeProblems({ name, contact, contactTime, report }: NodeState, nowMs: number): Problem[] {
  const object = `node ${name}`;
  if (contact === NodeContact.NODE_CONTACT_SILENT) {
    const since = contactTime ? `silent for ${age(contactTime, nowMs)}` : 'never heard of';
    const next =
      `see podwire-node there; its pods: podwirectl get wep -A --node ${name}; ` +
      `if the machine is gone for 4 minutes: podwirectl delete node ${name}`;
    return [{ severity: 'error', object, text: since, next }];
  }
  if (!report) return [];
  const next = `podwirectl node status --node ${name}`;
  const conditions = (report.status?.conditions ?? []).map(({ reason, message }): Problem => {
    return { severity: report.ready ? 'warning' : 'error', object, text: `${reason}: ${message}`, next };
  });
  const unready: Problem = { severity: 'error', object, text: 'no pod can be wired', next };
  const missing = missingRoutes(report.status);
  const routes: Problem = { severity: 'warning', object, text: `${formatCount(missing, 'route')} missing`, next };
  return [
    ...(report.ready ? [] : [unready]),
    ...conditions,
    ...(missing > 0 ? [routes] : []),
    ...certificateProblems(object, report.certificateEndTime, nowMs),
  ];
}

/** Routes, tunnels and tunnel peers that the kernel of a node lacks. */
export function missingRoutes(status: NonNullable<NodeState['report']>['status']): number {
  const { wanted, present, routingState } = status ?? {};
  if (!wanted || !present || routingState === RoutingState.ROUTING_STATE_AS_WANTED) return 0;
  const missing = (['routes', 'tunnels', 'peers'] as const).map((kind) => Math.max(0, wanted[kind] - present[kind]));
  return missing.reduce((sum, count) => sum + count, 0);
}

function poolProblems(pools: readonly Pool[]): Problem[] {
  const active = pools.filter(({ state }) => state === PoolState.POOL_STATE_ACTIVE);
  if (active.length === 0) {
    const next = 'podwirectl create ippool NAME cidr=RANGE';
    return [{ severity: 'error', object: 'pools', text: 'no pool allocates addresses', next }];
  }
  return active.flatMap((pool) => {
    const { available = '', capacity = '0', allocated = 0n, fullInSeconds } = pool.utilization ?? {};
    const object = `pool ${pool.name}`;
    const next = `podwirectl describe ippool ${pool.name}; add a pool, or release addresses`;
    if (available === '0') return { severity: 'error', object, text: 'no address is available', next };
    if (fullInSeconds !== undefined && fullInSeconds < FULL_SOON_SECONDS)
      return { severity: 'warning', object, text: `full in ${lengthOfTime(fullInSeconds * 1000)}`, next };
    if (!isNearlyFull(pool)) return [];
    return { severity: 'warning', object, text: `${percent(allocated, capacity)} of its addresses are used`, next };
  });
}

function auditProblems(audit: AuditSummary | undefined): Problem[] {
  return [Severity.SEVERITY_ERROR, Severity.SEVERITY_WARNING].flatMap((severity) => {
    const count = findingsOf(audit, severity);
    const isError = severity === Severity.SEVERITY_ERROR;
    const text = formatCount(count, isError ? 'error' : 'warning');
    const problem: Problem = {
      severity: isError ? 'error' : 'warning',
      object: 'audit',
      text,
      next: 'podwirectl audit',
    };
    return count > 0n ? [problem] : [];
  });
}

/** Number of findings of a severity. */
export function findingsOf(audit: AuditSummary | undefined, severity: Severity): bigint {
  const findings = (audit?.findings ?? []).filter((finding) => finding.severity === severity);
  return findings.reduce((sum, { count }) => sum + count, 0n);
}

function policyProblems(policies: GetPolicyStatusResponse | undefined, nowMs: number): Problem[] {
  if (!policies) return [];
  const nodes = policies.nodes.flatMap(({ name, following, since, behind, behindSince }): Problem[] => {
    const next = 'podwirectl policy status';
    const problem = { severity: 'warning', object: `node ${name}`, next } as const;
    if (!following) return [{ ...problem, text: `does not follow network policies${sinceText(since, nowMs)}` }];
    return behind ? [{ ...problem, text: `network policies are not in force${sinceText(behindSince, nowMs)}` }] : [];
  });
  const faulty = policies.faultyPolicies.map(({ name }): Problem => {
    return { severity: 'warning', object: name, text: 'a part is not understood', next: 'podwirectl policy status' };
  });
  return [...nodes, ...faulty];
}

function sinceText(since: Date | undefined, nowMs: number): string {
  return since ? `, for ${age(since, nowMs)}` : '';
}
