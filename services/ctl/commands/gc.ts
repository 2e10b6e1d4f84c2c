import { NodeServiceService } from '@podwire/proto/podwire/dataplane/v1/node';
import { PodServiceService, type AttachedPod, type DetachPodResponse } from '@podwire/proto/podwire/dataplane/v1/pod';
import { EndpointServiceService, type Endpoint } from '@podwire/proto/podwire/ipam/v1/endpoint';
import { AddressServiceService } from '@podwire/proto/podwire/ipam/v1/address';
import type { Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';

import { text } from '../command-line/forms.js';
import type { Option, Verb } from '../command-line/verb.js';
import type { Context } from '../context.js';
import { DONE, FAILED } from '../exit-codes.js';
import type { Section } from '../output/report.js';
import { attachmentText } from './attachment-of.js';
import { unconfirmed, YES } from './confirm.js';
import { podText } from './endpoint-text.js';
import { listEndpoints } from './endpoints-list.js';
import { failureText } from './failure-text.js';
import { listPods } from './pods-list.js';

const NETWORK: Option<string> = {
  name: '--network',
  form: text('NAME'),
  about: 'only this network; it has to be named where another IPAM plugin gives its addresses (those that IPAM knows)',
};

/** What does not belong together on this node. */
interface Stray {
  /** Wires whose attachment holds no address in IPAM. */
  readonly wires: readonly Attachment[];
  /** What holds addresses, and has no wire. */
  readonly endpoints: readonly Endpoint[];
  /** Networks of which no wire has an address in IPAM, and that nobody named, with their wires. */
  readonly leftAlone: readonly LeftAlone[];
}

interface LeftAlone {
  readonly network: string;
  readonly wiresCount: number;
}

export const gc: Verb = {
  name: 'gc',
  about: 'find wires on this node whose pods no longer hold an address; --yes removes them',
  details:
    'A pod gets its address before its wire and loses it after, so that such a wire is left over. Networks of which no\nwire has an address in IPAM are told, and left alone unless they are named. Addresses without a wire are told and kept: an ADD\nmay be under way.',
  options: [NETWORK],
  flags: [YES],
  run: async (input, context) => {
    const stray = await findStray(input.get(NETWORK), context);
    const { json } = context;
    const hints = [
      ...stray.leftAlone.map(({ network }) => `no other IPAM plugin gives them? podwirectl gc --network ${network}`),
      ...stray.endpoints.map(
        ({ attachment }) =>
          `no wire, and no ADD under way? podwirectl release attachment ${attachmentText(attachment)} --yes`,
      ),
    ];
    const data = () => ({
      wires: stray.wires.map(attachmentText),
      leftAlone: stray.leftAlone.map(({ network, wiresCount }) => ({ network, wiresCount })),
      endpoints: json.of(EndpointServiceService.listEndpoints, { endpoints: [...stray.endpoints], nextPageToken: '' }),
    });
    if (!input.has(YES)) {
      const report = { sections: [wireTable(stray), ...others(stray)], hints, data };
      return stray.wires.length === 0 ? report : unconfirmed(report, input.typed());
    }
    const removals = await removeAll(stray.wires, context);
    return {
      sections: [removalTable(removals, stray), ...others(stray)],
      hints,
      data: () => ({ ...data(), removals: removals.map(({ attachment, told }) => ({ attachment, told })) }),
      exitCode: removals.some(({ isDone }) => !isDone) ? FAILED : DONE,
    };
  },
};

/** Looks at the wires first: whatever has one by then had its address before. */
async function findStray(network: string | undefined, { ipam, dataplane }: Context): Promise<Stray> {
  const pods = await listPods(dataplane);
  const { nodeName } = await dataplane.call(NodeServiceService.getNodeStatus, {});
  const filter = { nodeName, namespace: '', podName: '', poolName: '' };
  const endpoints = await listEndpoints(ipam, filter);
  const held = new Set(endpoints.map(({ attachment }) => attachmentText(attachment)));
  const wired = new Set(pods.map(({ attachment }) => attachmentText(attachment)));
  const known = networksOf(pods, held);
  const isMeant = (name: string): boolean => (network === undefined ? known.has(name) : name === network);
  const candidates = pods.flatMap(({ attachment }) => (attachment && isMeant(attachment.network) ? [attachment] : []));
  const wires: Attachment[] = [];
  for (const attachment of candidates) {
    if (held.has(attachmentText(attachment))) continue;
    if (!(await holdsAddress(attachment, { ipam }))) wires.push(attachment);
  }
  const isListed = ({ attachment }: Endpoint): boolean => network === undefined || attachment?.network === network;
  return {
    wires,
    leftAlone: network === undefined ? leftAloneOf(pods, known) : [],
    endpoints: endpoints.filter((each) => isListed(each) && !wired.has(attachmentText(each.attachment))),
  };
}

/** Networks of which a wire has an address in IPAM. */
function networksOf(pods: readonly AttachedPod[], held: ReadonlySet<string>): Set<string> {
  const known = pods.filter(({ attachment }) => held.has(attachmentText(attachment)));
  return new Set(known.flatMap(({ attachment }) => (attachment ? [attachment.network] : [])));
}

function leftAloneOf(pods: readonly AttachedPod[], known: ReadonlySet<string>): LeftAlone[] {
  const counts = new Map<string, number>();
  for (const { attachment } of pods) {
    if (!attachment || known.has(attachment.network)) continue;
    counts.set(attachment.network, (counts.get(attachment.network) ?? 0) + 1);
  }
  return [...counts].map(([network, wiresCount]) => ({ network, wiresCount }));
}

/** Asked of each by itself, as the list may be older than the wire, and another node's name may be recorded. */
async function holdsAddress(attachment: Attachment, { ipam }: Pick<Context, 'ipam'>): Promise<boolean> {
  try {
    await ipam.call(AddressServiceService.getEndpoint, { attachment });
    return true;
  } catch (error) {
    if (error instanceof Failure && error.code === 'ENDPOINT_NOT_FOUND') return false;
    throw error;
  }
}

interface Removal {
  readonly attachment: string;
  readonly told: string;
  readonly isDone: boolean;
}

async function removeAll(wires: readonly Attachment[], { dataplane }: Context): Promise<Removal[]> {
  const removals: Removal[] = [];
  for (const attachment of wires) {
    const name = attachmentText(attachment);
    const told = ({ removed }: DetachPodResponse): string => (removed ? 'removed' : 'was gone');
    removals.push(
      await dataplane.call(PodServiceService.detachPod, { attachment, hostInterfaceName: '' }).then(
        (answer) => ({ attachment: name, told: told(answer), isDone: true }),
        (error: unknown) => ({ attachment: name, told: failureText(error), isDone: false }),
      ),
    );
  }
  return removals;
}

const noneOf = ({ leftAlone }: Stray): string =>
  leftAlone.length === 0 ? 'Every wire has an address.' : 'No other wire is without an address.';

function wireTable(stray: Stray): Section {
  return {
    kind: 'table',
    columns: ['WIRE WITHOUT AN ADDRESS'],
    rows: stray.wires.map((attachment) => [attachmentText(attachment)]),
    none: noneOf(stray),
  };
}

function removalTable(removals: readonly Removal[], stray: Stray): Section {
  return {
    kind: 'table',
    columns: ['OUTCOME', 'WIRE WITHOUT AN ADDRESS'],
    rows: removals.map(({ attachment, told }) => [told, attachment]),
    none: noneOf(stray),
  };
}

function others(stray: Stray): Section[] {
  const { leftAlone, endpoints } = stray;
  return [...(leftAlone.length === 0 ? [] : [leftAloneTable(leftAlone)]), endpointTable(endpoints)];
}

function leftAloneTable(leftAlone: readonly LeftAlone[]): Section {
  return {
    kind: 'table',
    columns: ['NETWORK OF WHICH NO WIRE HAS AN ADDRESS IN IPAM', { right: 'WIRES' }],
    rows: leftAlone.map(({ network, wiresCount }) => [network, String(wiresCount)]),
    none: 'No network is left alone.',
  };
}

function endpointTable(endpoints: readonly Endpoint[]): Section {
  return {
    kind: 'table',
    columns: ['ADDRESS WITHOUT A WIRE', 'POD', 'ATTACHMENT'],
    rows: endpoints.map((endpoint) => [
      endpoint.addresses.map(({ address }) => address).join(', '),
      podText(endpoint),
      attachmentText(endpoint.attachment),
    ]),
    none: 'Every address has a wire.',
  };
}
