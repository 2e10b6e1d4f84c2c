import { ClusterServiceService, NodeContact, type NodeState } from '@podwire/proto/podwire/ipam/v1/cluster';
import { AuditServiceService, Severity } from '@podwire/proto/podwire/ipam/v1/maintenance';
import {
  NetworkPolicyServiceService,
  type GetPolicyStatusResponse,
} from '@podwire/proto/podwire/ipam/v1/network_policy';
import { PoolServiceService, type Pool } from '@podwire/proto/podwire/ipam/v1/pool';
import { Failure } from '@podwire/shared/failure/failure';
import { formatCount } from '@podwire/shared/words/format-count';
import { compareTexts } from '@podwire/shared/words/order';

import type { Context, Service } from '../../clients/services.js';
import { flag, type Verb } from '../../command-line/verb.js';
import {
  DONE,
  PROBLEM_FOUND,
  sentence,
  type Fields,
  type Report,
  type Section,
  type Table,
} from '../../output/report.js';
import { age, count, lengthOfTime, moment, percent } from '../../output/words.js';
import { inUseOf } from '../../resources/address-counts.js';
import { countsOf, listPools } from '../../resources/ippool.js';
import { listNodeStates } from '../../resources/node.js';
import { findingsOf, missingRoutes, problemsOf, type ClusterFacts, type Problem } from './problems.js';

const WAIT = flag('--wait', 'repeat until there is no problem, for 5 minutes or --timeout');

const WAIT_INTERVAL_MS = 2000;
const WAIT_TIMEOUT_MS = 300_000;

/** Timeout of one reading while waiting, in milliseconds. */
const READ_TIMEOUT_MS = 10_000;

/** More nodes fill more than a screen: then only nodes with a problem are listed. */
const MAX_LISTED_COUNT = 30;

const MAX_NAMESPACES_COUNT = 5;

export const status: Verb = {
  name: 'status',
  about: 'the whole cluster: nodes, pools, datastore, policies, problems and what to do about them',
  details:
    'Above 30 nodes, only nodes with a problem are listed; -o wide lists all.\nExit code 4: there is a problem. 5: podwire-ipam did not answer.',
  flags: [WAIT],
  examples: ['status', 'status --wait --timeout 10m', 'status -o json'],
  run: async (input, context) => {
    if (input.has(WAIT)) return waitForHealth(context);
    return reportOf(await readFacts(context, { hasAudit: true }), context);
  },
};

/** @param options - hasAudit: whether podwire-ipam audits its datastore, which takes seconds in a large cluster */
export async function readFacts(
  { ipam, clock }: Pick<Context, 'ipam' | 'clock'>,
  { hasAudit }: { readonly hasAudit: boolean },
): Promise<ClusterFacts> {
  const request = { pageSize: 1, pageToken: '', kinds: [], includeInformation: false, topNodes: 0 };
  const [info, nodes, pools, audit, policies] = await Promise.all([
    ipam.call(ClusterServiceService.getClusterInfo, {}),
    listNodeStates(ipam),
    listPools(ipam),
    hasAudit ? ipam.call(AuditServiceService.audit, request).then(({ summary }) => summary) : undefined,
    readPolicies(ipam),
  ]);
  return { info, nodes, pools, audit, policies, nowMs: clock.nowMs() };
}

async function readPolicies(ipam: Service): Promise<GetPolicyStatusResponse | undefined> {
  try {
    return await ipam.call(NetworkPolicyServiceService.getPolicyStatus, {});
  } catch (error) {
    if (error instanceof Failure && error.code === 'POLICIES_NOT_SERVED') return undefined;
    throw error;
  }
}

/** Prints each change of the problems to the standard error. A podwire-ipam that does not answer is a problem too. */
async function waitForHealth(context: Context): Promise<Report> {
  const { clock, process, note, restartTimeout, timeoutMs = WAIT_TIMEOUT_MS } = context;
  const stopped = process.stopSignal();
  const deadlineMs = clock.monotonicMs() + timeoutMs;
  let printed = '';
  for (;;) {
    const leftMs = deadlineMs - clock.monotonicMs();
    restartTimeout(Math.max(1, Math.min(leftMs, READ_TIMEOUT_MS)));
    let outcome: ClusterFacts | Failure;
    try {
      outcome = await readFacts(context, { hasAudit: true });
    } catch (error) {
      if (!(error instanceof Failure && ['UNREACHABLE', 'DEADLINE_EXCEEDED'].includes(error.code))) throw error;
      outcome = error;
    }
    const problems = outcome instanceof Failure ? [] : problemsOf(outcome);
    if (!(outcome instanceof Failure) && problems.length === 0) return reportOf(outcome, context);
    const text = outcome instanceof Failure ? outcome.message : problems.map(problemText).join('; ');
    const subjects = outcome instanceof Failure ? text : problems.map(({ object, next }) => object + next).join();
    if (subjects !== printed) note(`waiting: ${text}`);
    printed = subjects;
    const isOver = clock.monotonicMs() + WAIT_INTERVAL_MS > deadlineMs;
    if (isOver || (await clock.sleep(WAIT_INTERVAL_MS, stopped)) === 'aborted') {
      if (outcome instanceof Failure) throw outcome;
      return reportOf(outcome, context);
    }
  }
}

function problemText({ object, text }: Problem): string {
  return `${object}: ${text}`;
}

function reportOf(facts: ClusterFacts, context: Context): Report {
  const problems = problemsOf(facts);
  const nodes = nodeTable(facts, problems, { isWide: context.output === 'wide' });
  const omittedCount = facts.nodes.length - nodes.rows.length;
  return {
    sections: [overview(facts, problems), nodes, poolTable(facts.pools), problemSection(problems)],
    hints:
      omittedCount > 0 ? [`${omittedCount} nodes without a problem are not listed: podwirectl status -o wide`] : [],
    data: () => dataOf(facts, problems, context),
    exitCode: problems.length > 0 ? PROBLEM_FOUND : DONE,
  };
}

function overview({ info, nodes, audit, policies, nowMs }: ClusterFacts, problems: readonly Problem[]): Fields {
  const errors = problems.filter(({ severity }) => severity === 'error').length;
  const numbers = [
    ...(errors > 0 ? [formatCount(errors, 'error')] : []),
    ...(problems.length > errors ? [formatCount(problems.length - errors, 'warning')] : []),
  ];
  const { store, storeRevision, storeReadUs, instance, leader, release, startTime } = info;
  const connected = nodes.filter(({ contact }) => contact === NodeContact.NODE_CONTACT_CONNECTED);
  const releases = [...new Set(connected.map(({ report }) => report?.release ?? ''))].sort(compareTexts);
  return {
    kind: 'fields',
    fields: [
      ['State', numbers.length === 0 ? 'healthy' : numbers.join(', ')],
      ['Datastore', `${store}, revision ${storeRevision}, read in ${(storeReadUs / 1000).toFixed(1)} ms`],
      ['podwire-ipam', `${release}, started ${age(startTime, nowMs)} ago, ${instance}`],
      ['Leader', leader === instance ? 'this podwire-ipam' : leader],
      ['Nodes', `${nodes.length}, ${connected.length} connected`],
      ['Releases', releases.join(', ')],
      [
        'Addresses',
        audit
          ? `${audit.addressesInUse} in use, ${audit.addressesLeased} leased, ${audit.addressesCooling} cooling`
          : '',
      ],
      ['Namespaces', namespacesText(audit)],
      ['Policies', policiesText(policies)],
      ['Audit', auditText(audit)],
    ],
  };
}

/** The namespaces with the most addresses. */
function namespacesText(audit: ClusterFacts['audit']): string {
  const shown = (audit?.namespaces ?? []).slice(0, MAX_NAMESPACES_COUNT);
  return shown.map(({ namespace, addressesInUse }) => `${namespace} ${addressesInUse}`).join(', ');
}

function policiesText(policies: GetPolicyStatusResponse | undefined): string {
  if (!policies) return '';
  const { networkPolicyCount, clusterNetworkPolicyCount = 0, nodes } = policies;
  const inForce = nodes.filter(({ following, behind }) => following && !behind).length;
  const kinds = `${networkPolicyCount} NetworkPolicies, ${clusterNetworkPolicyCount} ClusterNetworkPolicies`;
  return `${kinds}, in force on ${inForce} of ${formatCount(nodes.length, 'node')}`;
}

function auditText(audit: ClusterFacts['audit']): string {
  if (!audit) return '';
  const severities = [
    ['error', Severity.SEVERITY_ERROR],
    ['warning', Severity.SEVERITY_WARNING],
  ] as const;
  const counts = severities.map(([name, severity]) => [name, findingsOf(audit, severity)] as const);
  const found = counts.filter(([, number]) => number > 0n).map(([name, number]) => formatCount(number, name));
  return found.length === 0 ? 'no findings' : found.join(', ');
}

const CONTACTS: Partial<Record<NodeContact, string>> = {
  [NodeContact.NODE_CONTACT_RECENT]: 'not connected',
  [NodeContact.NODE_CONTACT_SILENT]: 'silent',
};

/** `ready`, `not ready`, `silent` or `not connected`. */
function nodeStateText({ contact, report }: NodeState): string {
  return CONTACTS[contact] ?? (report?.ready ? 'ready' : 'not ready');
}

/** @param options - isWide: also nodes without a problem where there are many */
export function nodeTable(
  { nodes: all, policies, nowMs }: ClusterFacts,
  problems: readonly Problem[],
  { isWide = false } = {},
): Table {
  const withProblems = new Set(problems.map(({ object }) => object));
  const isListed = ({ name }: NodeState): boolean =>
    isWide || all.length <= MAX_LISTED_COUNT || withProblems.has(`node ${name}`);
  const enforced = new Map(policies?.nodes.map(({ name, following, behind }) => [name, following && !behind]));
  return {
    kind: 'table',
    columns: [
      ...['NODE', 'STATE', 'RELEASE', 'CONTACT', { right: 'PODS' }, { right: 'LEASES' }, { right: 'ROUTES MISSING' }],
      ...['POLICIES', 'CONDITIONS', 'CERTIFICATE'],
    ],
    rows: all.filter(isListed).map((node) => {
      const { name, contact, contactTime, report } = node;
      const isConnected = contact === NodeContact.NODE_CONTACT_CONNECTED;
      // The last report of a node that is not connected may be out of date.
      const of = isConnected ? report?.status : undefined;
      const { release = '', certificateEndTime } = report ?? {};
      const conditions = (of?.conditions ?? []).map(({ reason }) => reason);
      return [
        ...[name, nodeStateText(node), release, isConnected ? 'now' : age(contactTime, nowMs)],
        ...(of ? [String(of.attachmentCount), String(of.leaseCount), String(missingRoutes(of))] : ['', '', '']),
        ...[
          enforced.has(name) ? (enforced.get(name) ? 'in force' : 'not in force') : '',
          [...new Set(conditions)].join(', '),
        ],
        moment(certificateEndTime).slice(0, 10),
      ];
    }),
    none: all.length === 0 ? 'nodes: none' : `nodes: ${all.length}, none with a problem`,
  };
}

export function poolTable(pools: readonly Pool[]): Table {
  return {
    kind: 'table',
    columns: ['POOL', 'CIDR', { right: 'IN USE' }, { right: 'USED' }, { right: 'AVAILABLE' }, { right: 'FULL IN' }],
    rows: pools.map(({ name, cidr, utilization }) => {
      const { capacity, available, fullInSeconds, ...rest } = countsOf(utilization);
      const inUse = inUseOf(rest);
      const fullIn = fullInSeconds === undefined ? '' : lengthOfTime(fullInSeconds * 1000);
      return [name, cidr, count(inUse), percent(inUse, capacity), count(available), fullIn];
    }),
    none: 'pools: none',
  };
}

function problemSection(problems: readonly Problem[]): Section {
  if (problems.length === 0) return sentence('problems: none');
  const lines = problems.map((each) => `${each.severity.padEnd(8)} ${problemText(each)}\n         next: ${each.next}`);
  return { kind: 'text', text: `problems:\n${lines.join('\n')}` };
}

function dataOf(facts: ClusterFacts, problems: readonly Problem[], { json }: Context): ReturnType<Report['data']> {
  const { info, nodes, pools, audit, policies } = facts;
  return {
    healthy: problems.length === 0,
    problems: problems.map((problem) => ({ ...problem })),
    ipam: json.of(ClusterServiceService.getClusterInfo, info),
    nodes: json.of(ClusterServiceService.listNodeStates, { nodes: [...nodes], nextPageToken: '' }),
    pools: json.of(PoolServiceService.listPools, { pools: [...pools], nextPageToken: '' }),
    audit: json.of(AuditServiceService.audit, { findings: [], nextPageToken: '', summary: audit }),
    policies: policies ? json.of(NetworkPolicyServiceService.getPolicyStatus, policies) : null,
  };
}
