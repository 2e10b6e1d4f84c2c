import {
  NodeServiceService,
  RoutingState,
  type GetNodeStatusResponse,
  type RoutingCounts,
} from '@podwire/proto/podwire/dataplane/v1/node';
import { counted } from '@podwire/shared/words/counted';

import type { Verb } from '../command-line/verb.js';
import { DONE, FOUND_WRONG } from '../exit-codes.js';
import type { Fields, Section } from '../output/report.js';
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
      ['Drift mended', `${counted(answer.driftCount, 'time')} since the dataplane started`],
      ['Pods', `${counted(answer.attachmentCount, 'attachment')}, MTU ${answer.podMtuBytes}`],
    ],
  };
}

function countsText(counts: RoutingCounts | undefined): string {
  return counts
    ? [
        counted(counts.routes, 'route'),
        counted(counts.tunnels, 'tunnel'),
        counted(counts.peers, 'far end of tunnels', 'far ends of tunnels'),
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
