import {
  NodeServiceService,
  RoutingState,
  type GetNodeStatusResponse,
  type RoutingCounts,
} from '@podwire/proto/podwire/dataplane/v1/node';
import { readChainVersions } from '@podwire/shared/chain/chain-versions';
import { excessOf, excessText, programFaults, type Chain } from '@podwire/shared/chain/chain';
import { programVersions } from '@podwire/shared/chain/program-versions';
import type { Clock } from '@podwire/shared/runtime/clock';
import { formatCount } from '@podwire/shared/words/format-count';

import { PLAIN_MEMBER, readNetworkConfiguration } from '../clients/network-config.js';
import { text } from '../command-line/forms.js';
import type { Option, Verb } from '../command-line/verb.js';
import { DONE, FOUND_WRONG, sentence, type Fields, type Section } from '../output/report.js';
import { momentAndAge, wordOf } from '../output/words.js';

export const nodeStatus: Verb = {
  name: 'node status',
  about: 'the state of this node: what is wrong, its routes to other nodes, its tunnels and BGP sessions',
  details:
    'It is what the dataplane knows; whether pods can be added is told by "podwirectl node ready".\nExit code 4: there is something that an operator should know.',
  run: async (_, { dataplane, json, clock }) => {
    const answer = await dataplane.call(NodeServiceService.getNodeStatus, {});
    return {
      sections: [statusFields(answer, clock.nowMs()), ...tables(answer)],
      data: () => json.of(NodeServiceService.getNodeStatus, answer),
      exitCode: answer.conditions.length > 0 ? FOUND_WRONG : DONE,
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
      ['Drift mended', `${formatCount(answer.driftCount, 'time')} since the dataplane started`],
      ['Pods', `${formatCount(answer.attachmentCount, 'attachment')}, MTU ${answer.podMtuBytes}`],
    ],
  };
}

function countsText(counts: RoutingCounts | undefined): string {
  return counts
    ? [
        formatCount(counts.routes, 'route'),
        formatCount(counts.tunnels, 'tunnel'),
        formatCount(counts.peers, 'far end of tunnels', 'far ends of tunnels'),
      ].join(', ')
    : 'not known';
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
    columns: ['NEIGHBOUR', 'WHO', 'STATE', { right: 'IMPORTED' }, { right: 'EXPORTED' }],
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
    columns: ['CONDITION', 'WHAT'],
    rows: conditions.map(({ reason, message }) => [reason, message]),
    none: 'The dataplane has nothing to complain of.',
  };
  return [...[tunnelTable, sessionTable].filter(({ rows }) => rows.length > 0), conditionTable];
}

const USUAL_CONFIG = '/etc/cni/net.d/10-podwire.conflist';
const USUAL_PROGRAMS = '/opt/cni/bin';

const CONFIG: Option<string> = {
  name: '--config',
  form: text('FILE'),
  about: `the network configuration that the runtime has, as its families and pools count (${USUAL_CONFIG})`,
};

const PROGRAMS: Option<string> = {
  name: '--bin-dir',
  form: text('DIRECTORY'),
  about: `where the runtime looks for CNI programs (${USUAL_PROGRAMS})`,
};

export const nodeReady: Verb = {
  name: 'node ready',
  about: 'whether pods can be added on this node, as the container runtime is told it, and why not',
  details:
    "It is CNI's STATUS in its strict reading, which names every reason why an ADD would fail. The runtime itself is answered\n" +
    'less strictly, so that healthy pods are not evicted: without PODWIRE_PLUGIN_STRICT_STATUS a node that was ready once since\n' +
    'its boot is NetworkPluginNotReady only while its dataplane cannot wire pods. VERSION of each program in the chain is run, and\n' +
    'the program loopback is looked for. What the dataplane knows of the node is told by "podwirectl node status".\n' +
    'Exit code 4: no pod can be added, or the node cannot keep account of what it deletes.',
  options: [CONFIG, PROGRAMS],
  run: async (input, { plugin, clock }) => {
    const file = input.get(CONFIG) ?? USUAL_CONFIG;
    const found = await readNetworkConfiguration(file);
    // An installer writes it last, once STATUS is ready: what STATUS says is then the reason behind the missing file.
    const member = found?.member ?? PLAIN_MEMBER;
    const { reason: refusal } = await plugin.strictStatus(member);
    const told = found === undefined ? withoutConfiguration(file, refusal) : refusal;
    const faults = await chainFaults(found?.chain, { file, directory: input.get(PROGRAMS) ?? USUAL_PROGRAMS, clock });
    const reasons = [...(told === null ? [] : [told]), ...faults.versions, ...faults.programs];
    const reason = reasons.length === 0 ? null : reasons.join('; ');
    const hasStatus = found !== undefined && faults.versions.length === 0;
    const isReady = hasStatus && (refusal === null || (await plugin.status(member)).reason === null);
    return {
      sections: [sentence(textOf(isReady, reason))],
      data: () => ({ ready: isReady, reason }),
      exitCode: reason === null ? DONE : FOUND_WRONG,
    };
  },
};

function textOf(isReady: boolean, reason: string | null): string {
  if (reason === null) return 'Ready: pods can be added.';
  return isReady ? `Ready for the pods that it has, but none can be added: ${reason}` : `Not ready: ${reason}`;
}

interface Place {
  readonly file: string;
  readonly directory: string;
  readonly clock: Clock;
}

interface ChainFaults {
  /** The runtime asks for what a program refuses, STATUS among it. */
  readonly versions: readonly string[];
  /** A pod's sandbox fails, and no program says so before. */
  readonly programs: readonly string[];
}

/** What the runtime would meet in the programs of the chain. */
async function chainFaults(chain: Chain | undefined, { file, directory, clock }: Place): Promise<ChainFaults> {
  const asked = chain ?? { plugins: [] };
  const versions = await readChainVersions(asked, directory, (path) => programVersions(path, clock));
  const excess = excessOf(asked, versions);
  const remedy = `"podwire install" leaves them out, or put newer programs into ${directory}`;
  return {
    versions:
      excess.length === 0
        ? []
        : [`${file} offers versions of CNI that its chain does not support (${excessText(excess)}): ${remedy}`],
    programs: programFaults(asked, versions, directory),
  };
}

function withoutConfiguration(file: string, told: string | null): string {
  const missing = `there is no network configuration ${file}, and a runtime without one adds no pod`;
  const remedy = '"podwire install" puts it there; one that has another name is told with --config';
  return told === null ? `${missing}: ${remedy}` : `${told}; and ${missing}: ${remedy}, once the former is mended`;
}
