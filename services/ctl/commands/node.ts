import {
  NodeServiceService,
  RoutingState,
  type GetNodeStatusResponse,
  type RoutingCounts,
} from '@podwire/proto/podwire/dataplane/v1/node';
import { readChainVersions } from '@podwire/shared/chain/chain-versions';
import { unsupportedVersions, formatUnsupportedVersions, programFaults, type Chain } from '@podwire/shared/chain/chain';
import { programVersions } from '@podwire/shared/chain/program-versions';
import { Failure } from '@podwire/shared/failure/failure';
import type { Clock } from '@podwire/shared/runtime/clock';
import { formatCount } from '@podwire/shared/words/format-count';

import type { Context } from '../clients/services.js';
import { PLAIN_MEMBER, readNetworkConfiguration } from '../clients/network-config.js';
import { text } from '../command-line/forms.js';
import { ON_NODE } from '../command-line/options.js';
import { option, type Verb } from '../command-line/verb.js';
import { DONE, PROBLEM_FOUND, sentence, type Fields, type Section } from '../output/report.js';
import { momentAndAge, wordOf } from '../output/words.js';

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
      ['Drift repaired', `${formatCount(answer.driftCount, 'time')} since the dataplane started`],
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
  const conditionTable: Section = {
    kind: 'table',
    columns: ['CONDITION', 'MESSAGE'],
    rows: conditions.map(({ reason, message }) => [reason, message]),
    none: 'conditions: none',
  };
  return [...[tunnelTable, sessionTable].filter(({ rows }) => rows.length > 0), conditionTable];
}

const DEFAULT_CONFIG = '/etc/cni/net.d/10-podwire.conflist';
const DEFAULT_PROGRAMS = '/opt/cni/bin';

const CONFIG = option(
  '--config',
  text('FILE'),
  `the runtime's network configuration, whose families and pools are checked (${DEFAULT_CONFIG})`,
);

const PROGRAMS = option(
  '--bin-dir',
  text('DIRECTORY'),
  `the runtime's directory of CNI programs (${DEFAULT_PROGRAMS})`,
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
  run: async (input, { plugin, dataplane, clock }) => {
    const file = input.get(CONFIG) ?? DEFAULT_CONFIG;
    const found = await readNetworkConfiguration(file);
    // The installer writes the file last, once STATUS is ready. So the reason of STATUS explains the missing file.
    const member = found?.member ?? PLAIN_MEMBER;
    const { reason: refusal } = await (await plugin()).strictStatus(member);
    const statusReason = found === undefined ? missingConfigurationText(file, refusal) : refusal;
    const faults = await chainFaults(found?.chain, { file, directory: input.get(PROGRAMS) ?? DEFAULT_PROGRAMS, clock });
    const reasons = [...(statusReason === null ? [] : [statusReason]), ...faults.versions, ...faults.programs];
    const reason = reasons.length === 0 ? null : reasons.join('; ');
    const hasStatus = found !== undefined && faults.versions.length === 0;
    const isReady = hasStatus && (refusal === null || (await (await plugin()).status(member)).reason === null);
    const drops = await forwardDrops(dataplane);
    const allReasons = [...reasons, ...drops];
    return {
      sections: [readinessText(isReady, reason), ...drops].map(sentence),
      data: () => ({ ready: isReady, reason: allReasons.length === 0 ? null : allReasons.join('; ') }),
      exitCode: allReasons.length === 0 ? DONE : PROBLEM_FOUND,
    };
  },
};

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

function readinessText(isReady: boolean, reason: string | null): string {
  if (reason === null) return 'ready: pods can be added';
  return isReady ? `ready for existing pods, but no pod can be added: ${reason}` : `not ready: ${reason}`;
}

interface ChainFiles {
  readonly file: string;
  readonly directory: string;
  readonly clock: Clock;
}

interface ChainFaults {
  /** The runtime uses a version that a program refuses, STATUS included. */
  readonly versions: readonly string[];
  /** Pod sandboxes will fail; no program reports it in advance. */
  readonly programs: readonly string[];
}

/** Faults of the chain's programs that the runtime would run into. */
async function chainFaults(chain: Chain | undefined, { file, directory, clock }: ChainFiles): Promise<ChainFaults> {
  const checkedChain = chain ?? { plugins: [] };
  const versions = await readChainVersions(checkedChain, directory, (path) => programVersions(path, clock));
  const unsupported = unsupportedVersions(checkedChain, versions);
  const remedy = `run "podwire install", which removes them, or put newer programs into ${directory}`;
  return {
    versions:
      unsupported.length === 0
        ? []
        : [
            `${file} offers CNI versions that its chain does not support (${formatUnsupportedVersions(unsupported)}): ${remedy}`,
          ],
    programs: programFaults(checkedChain, versions, directory),
  };
}

function missingConfigurationText(file: string, refusal: string | null): string {
  const missing = `network configuration ${file} does not exist, so the runtime adds no pods`;
  const remedy = 'run "podwire install", or name another file with --config';
  return refusal === null
    ? `${missing}: ${remedy}`
    : `${refusal}; ${missing}: first correct the former, then ${remedy}`;
}
