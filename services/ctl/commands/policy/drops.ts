import {
  NetworkPolicyServiceService,
  type ListPolicyDropsResponse,
  type PolicyDrop,
} from '@podwire/proto/podwire/dataplane/v1/network_policy';
import { Failure } from '@podwire/shared/failure/failure';

import type { Context } from '../../clients/services.js';
import { NAMESPACES, text } from '../../command-line/forms.js';
import { ON_NODE } from '../../command-line/options.js';
import type { Flag, Option, Verb } from '../../command-line/verb.js';
import { DONE, PROBLEM_FOUND, sentence, type Report, type Table } from '../../output/report.js';
import { moment } from '../../output/words.js';
import { PROTOCOLS } from './policy.js';

const NAMESPACE: Option<string> = {
  ...{ name: '--namespace', short: '-n', form: text('NAME', NAMESPACES) },
  about: 'only packets of pods of this namespace (all pods of the node)',
};

const FOLLOW: Flag = { name: '--follow', short: '-f', about: 'keep running, and print further packets' };

/** Interval between two reads of followed drops, in milliseconds. */
const FOLLOW_INTERVAL_MS = 1000;

/** Names by IANA's numbers; other protocols have their number. */
const PROTOCOL_NAMES: ReadonlyMap<number, string> = new Map([
  ...Object.entries(PROTOCOLS).map(([name, number]): [number, string] => [number, name]),
  [58, 'icmpv6'],
]);

export const policyDrops: Verb = {
  name: 'policy drops',
  about: 'on a node: the last packets that network policies dropped, and the policies that did',
  details:
    'Of the last 1000 since the start of podwire-node, 5 per second of each interface. POD: the pod of this node whose\n' +
    'policies dropped the packet. DESTINATION: after the translation of a Service. -o json has the pods of both ends.\n' +
    'Exit code 4: the node reports no packets.',
  options: [ON_NODE, NAMESPACE],
  flags: [FOLLOW],
  examples: ['policy drops', 'policy drops -f -n default'],
  run: async (input, context) => {
    const namespace = input.get(NAMESPACE) ?? '';
    if (input.has(FOLLOW)) return follow(namespace, context);
    return reportOf(await context.dataplane.call(METHOD, { namespace, afterNumber: 0n }), context);
  },
};

const METHOD = NetworkPolicyServiceService.listPolicyDrops;

/** Asks again and again for packets after the last one. */
async function follow(namespace: string, context: Context): Promise<Report> {
  const { output, process, dataplane, clock, print, restartTimeout } = context;
  if (output === 'yaml') throw new Failure('INVALID_REQUEST', '--follow: is not available with -o yaml; use -o json');
  const stopped = process.stopSignal();
  let hasHeadings = true;
  let afterNumber = 0n;
  do {
    restartTimeout();
    const answer = await dataplane.call(METHOD, { namespace, afterNumber });
    if (answer.unavailable !== '') return reportOf(answer, context);
    afterNumber = answer.latestNumber;
    if (answer.drops.length === 0) continue;
    print(reportOf(answer, context), { hasHeadings });
    hasHeadings = false;
  } while ((await clock.sleep(FOLLOW_INTERVAL_MS, stopped)) === 'elapsed');
  return { sections: [], data: () => null, isPrinted: true };
}

function reportOf(answer: ListPolicyDropsResponse, { json }: Context): Report {
  const { drops, unavailable, lostCount } = answer;
  const isAvailable = unavailable === '';
  return {
    sections: [
      ...(isAvailable || drops.length > 0 ? [tableOf(drops)] : []),
      ...(isAvailable ? [] : [sentence(`dropped packets are not reported: ${unavailable}`)]),
    ],
    hints: lostCount > 0n ? ['some packets are missing: podwire-node did not read all of them in time'] : [],
    data: () => json.of(METHOD, answer),
    exitCode: isAvailable ? DONE : PROBLEM_FOUND,
  };
}

function tableOf(drops: readonly PolicyDrop[]): Table {
  return {
    kind: 'table',
    columns: ['TIME', 'DIRECTION', 'SOURCE', 'DESTINATION', 'POD', 'REASON'],
    rows: drops.map((drop) => [
      ...[moment(drop.time), drop.direction, drop.sourceAddress, destinationText(drop)],
      ...[podText(drop), drop.message],
    ]),
    none: 'dropped packets: none',
  };
}

function destinationText({ destinationAddress: address, destinationPort: port, protocol }: PolicyDrop): string {
  const name = PROTOCOL_NAMES.get(protocol) ?? String(protocol);
  if (port === undefined) return `${address}/${name}`;
  return `${address.includes(':') ? `[${address}]` : address}:${port}/${name}`;
}

function podText({ direction, sourcePod, destinationPod }: PolicyDrop): string {
  const pod = direction === 'egress' ? sourcePod : destinationPod;
  return pod ? `${pod.namespace}/${pod.name}` : '';
}
