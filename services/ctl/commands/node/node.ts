import {
  NodeServiceService,
  RoutingState,
  type GetNodeStatusResponse,
  type RoutingCounts,
} from '@podwire/proto/podwire/dataplane/v1/node';
import { readChainVersions } from '@podwire/shared/chain/chain-versions';
import { unsupportedVersions, formatUnsupportedVersions, programFaults } from '@podwire/shared/chain/chain';
import { programVersions } from '@podwire/shared/chain/program-versions';
import { Failure } from '@podwire/shared/failure/failure';
import { formatCount } from '@podwire/shared/words/format-count';

import type { Context } from '../../clients/services.js';
import { PLAIN_MEMBER, readInstallation, readNetworkConfiguration } from '../../clients/network-config.js';
import { text } from '../../command-line/forms.js';
import { ON_NODE } from '../../command-line/options.js';
import { option, type Input, type Verb } from '../../command-line/verb.js';
import {
  checksReport,
  DONE,
  PROBLEM_FOUND,
  type Check,
  type Fields,
  type Section,
  type Table,
} from '../../output/report.js';
import { momentAndAge, wordOf } from '../../output/words.js';

export const nodeStatus: Verb = {
  name: 'node status',
  about: 'the state of this node: conditions, routes to other nodes, tunnels and BGP sessions',
  details:
    'Reported by the dataplane. "podwirectl node ready" shows whether pods can be added.\nExit code 4: there is a condition.',
  options: [ON_NODE],
  run: async (_, { dataplane, json, clock }) => {
    const answer = await dataplane.call(NodeServiceService.getNodeStatus, {});
    return {
      sections: [statusFields(answer, clock.nowMs()), ...tables(answer)],
      data: () => json.of(NodeServiceService.getNodeStatus, answer),
      exitCode: answer.conditions.length > 0 ? PROBLEM_FOUND : DONE,
    };
  },
};

function statusFields(answer: GetNodeStatusResponse, nowMs: number): Fields {
  const { nodeName, ipv4Address, ipv6Address, routing, routingState, wanted, present } = answer;
  return {
    kind: 'fields',
    fields: [
      ['Node', nodeName],
      ['IPv4', ipv4Address],
      ['IPv6', ipv6Address],
      ['Routing', `${routing}, ${wordOf(RoutingState[routingState], 'ROUTING_STATE_')}`],
      ['Wanted', countsText(wanted)],
      ['Present', countsText(present)],
      ['Kernel read', answer.checkedAt === undefined ? 'never' : momentAndAge(answer.checkedAt, nowMs)],
      [
        'Repairs',
        `${answer.driftCount} of routes and tunnels, ${answer.podRepairCount} of pods since podwire-node started`,
      ],
      ['Pods', `${formatCount(answer.attachmentCount, 'attachment')}, MTU ${answer.podMtuBytes}`],
      ['Leases', leasesText(answer)],
    ],
  };
}

/** The addresses that the next pods get, and what podwire-ipam does not know yet. */
function leasesText({ leaseCount, unboundCount, unreturnedCount }: GetNodeStatusResponse): string {
  return [
    formatCount(leaseCount, 'address', 'addresses'),
    `${formatCount(unboundCount, 'pod')} to bind`,
    `${formatCount(unreturnedCount, 'pod')} to return`,
  ].join(', ');
}

function countsText(counts: RoutingCounts | undefined): string {
  return counts
    ? [
        formatCount(counts.routes, 'route'),
        formatCount(counts.tunnels, 'tunnel'),
        formatCount(counts.peers, 'tunnel peer'),
      ].join(', ')
    : 'unknown';
}

function tables({ tunnels, bgpSessions, conditions }: GetNodeStatusResponse): Section[] {
  const tunnelTable: Section = {
    kind: 'table',
    columns: ['TUNNEL', 'KIND', 'ADDRESS', 'MAC', { right: 'MTU' }],
    rows: tunnels.map(({ name, kind, address, macAddress, mtuBytes }) => [
      name,
      kind,
      address,
      macAddress,
      String(mtuBytes),
    ]),
    none: '',
  };
  const sessionTable: Section = {
    kind: 'table',
    columns: ['NEIGHBOUR', 'PEER', 'STATE', { right: 'IMPORTED' }, { right: 'EXPORTED' }],
    rows: bgpSessions.map(({ neighbour, about, state, importedCount, exportedCount }) => [
      neighbour,
      about,
      state,
      String(importedCount),
      String(exportedCount),
    ]),
    none: '',
  };
  return [...[tunnelTable, sessionTable].filter(({ rows }) => rows.length > 0), conditionTable(conditions)];
}

export function conditionTable(conditions: GetNodeStatusResponse['conditions']): Table {
  return {
    kind: 'table',
    columns: ['CONDITION', 'MESSAGE'],
    rows: conditions.map(({ reason, message }) => [reason, message]),
    none: 'conditions: none',
  };
}

const CONFIG = option(
  '--config',
  text('FILE'),
  "the runtime's network configuration, whose families and pools are checked (of the installation)",
);

const PROGRAMS = option(
  '--bin-dir',
  text('DIRECTORY'),
  "the runtime's directory of CNI programs (of the installation)",
);

export const nodeReady: Verb = {
  name: 'node ready',
  about: 'whether pods can be added on this node, and whether the container runtime sees it as ready',
  details:
    "Calls CNI's STATUS strictly, which lists every reason why an ADD would fail. The answer to the runtime is less strict, so that\n" +
    'healthy pods are not evicted: without PODWIRE_NODE_STRICT_STATUS a node that was ready once since its boot is\n' +
    'NetworkPluginNotReady only while its dataplane cannot wire pods. Runs VERSION of each program in the chain, and checks that\n' +
    'the program loopback exists. "podwirectl node status" shows the state that the dataplane reports.\n' +
    'Exit code 4: no pod can be added, the node cannot record its pending releases, or a firewall drops the packets of pods.',
  options: [ON_NODE, CONFIG, PROGRAMS],
  run: async (input, context) => {
    const client = await context.plugin();
    const files = input.get(ON_NODE) === undefined ? await readChain(input, context) : undefined;
    const member = files?.member ?? PLAIN_MEMBER;
    const { reason: refusal } = await client.strictStatus(member);
    const isUsable = files?.isUsable ?? true;
    const isReady = isUsable && (refusal === null || (await client.status(member)).reason === null);
    const notReady = isReady ? [] : ['NetworkPluginNotReady: the other checks say why'];
    const checks = [
      ...checksOf('status', refusal === null ? [] : [refusal], 'pods can be added'),
      ...checksOf('runtime', notReady, 'STATUS reports the node as ready'),
      ...(files?.checks(refusal) ?? []),
      ...checksOf('firewall', await forwardDrops(context.dataplane), 'lets packets of pods pass'),
    ];
    return checksReport(checks, { ready: isReady });
  },
};

/** The runtime's files on this machine. */
async function readChain(input: Input, { clock, env }: Context) {
  const { binDirectory, configDirectory, configName } = await readInstallation(env);
  const file = input.get(CONFIG) ?? `${configDirectory}/${configName}`;
  const directory = input.get(PROGRAMS) ?? binDirectory;
  const found = await readNetworkConfiguration(file);
  const chain = found?.chain ?? { plugins: [] };
  const versions = await readChainVersions(chain, directory, (path) => programVersions(path, clock));
  const unsupported = formatUnsupportedVersions(unsupportedVersions(chain, versions));
  const newer = `run "podwire install", which removes them, or put newer programs into ${directory}`;
  const versionFault = `${file} offers CNI versions that its chain does not support (${unsupported}); ${newer}`;
  /** @param refusal - of STATUS. The installer writes the file last, once STATUS is ready */
  const checks = (refusal: string | null): Check[] => {
    const remedy = refusal ? 'correct status first' : 'run "podwire install", or name another file with --config';
    const missing = found ? [] : [`${file} does not exist, so the runtime adds no pods; ${remedy}`];
    return [
      ...checksOf('configuration', [...missing, ...(unsupported === '' ? [] : [versionFault])], file),
      ...checksOf('programs', programFaults(chain, versions, directory), `${directory} has all programs`),
    ];
  };
  return { member: found?.member, isUsable: found !== undefined && unsupported === '', checks };
}

/** One check that passed, or its faults. */
function checksOf(check: string, faults: readonly string[], detail: string): readonly Check[] {
  if (faults.length === 0) return [{ check, result: 'ok', detail }];
  return faults.map((fault) => ({ check, result: 'failed', detail: fault }));
}

/** Firewalls that cut off the pods of the node. A dataplane that does not answer is a reason of STATUS. */
async function forwardDrops(dataplane: Context['dataplane']): Promise<readonly string[]> {
  try {
    const { conditions } = await dataplane.call(NodeServiceService.getNodeStatus, {});
    return conditions.flatMap(({ reason, message }) => (reason === 'ForwardDropped' ? message : []));
  } catch (error) {
    if (error instanceof Failure) return [];
    throw error;
  }
}
