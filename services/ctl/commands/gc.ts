import { NodeServiceService } from '@podwire/proto/podwire/dataplane/v1/node';
import { PodServiceService, type DetachPodResponse } from '@podwire/proto/podwire/dataplane/v1/pod';
import { AddressServiceService, AddressState } from '@podwire/proto/podwire/ipam/v1/address';
import { EndpointServiceService, type Endpoint } from '@podwire/proto/podwire/ipam/v1/endpoint';
import type { Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';

import type { Context, Service } from '../clients/services.js';
import { text } from '../command-line/forms.js';
import { unconfirmed, YES } from '../command-line/options.js';
import type { Option, Verb } from '../command-line/verb.js';
import { DONE, FAILED, type Section } from '../output/report.js';
import { attachmentText, failureText } from '../output/words.js';
import { listEndpoints, podText } from '../resources/endpoints.js';
import { listPods } from '../resources/pods.js';

const NETWORK: Option<string> = {
  name: '--network',
  form: text('NAME'),
  about: 'only this network; it has to be named where another IPAM plugin gives its addresses (those that IPAM knows)',
};

/** What does not belong together on this node. */
interface Stray {
  /** Wires of which IPAM has neither the attachment nor an address. */
  readonly wires: readonly Attachment[];
  /** What holds addresses, and has no wire. */
  readonly endpoints: readonly Endpoint[];
  /** Networks that were not named and have no address in IPAM, with their wires. */
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
    'A pod gets its address before its wire and loses it after. A wire is left over when IPAM has neither its attachment nor\none of its addresses, whoever holds that. Networks without any address in IPAM are shown, and left alone unless they are named.\nAddresses without a wire are shown and kept: an ADD may be in progress.',
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

/** Looks at the wires first: a pod that has one by then had its address before. */
async function findStray(network: string | undefined, { ipam, dataplane }: Context): Promise<Stray> {
  const pods = await listPods(dataplane);
  const { nodeName } = await dataplane.call(NodeServiceService.getNodeStatus, {});
  const endpoints = await listEndpoints(ipam, { nodeName, namespace: '', podName: '', poolName: '' });
  const isMeant = (name: string | undefined): boolean => network === undefined || name === network;
  const wires = pods.flatMap(({ attachment, addresses }) => (attachment ? [{ attachment, addresses }] : []));
  const stray: Attachment[] = [];
  const heldNetworks = new Set<string>();
  const held = holdingsOf(endpoints.map(holdingOf));
  for (const wire of wires.filter(({ attachment }) => isMeant(attachment.network))) {
    if (isAmong(held, wire) || (await isHeld(wire, ipam))) heldNetworks.add(wire.attachment.network);
    else stray.push(wire.attachment);
  }
  const isKnown = (attachment: Attachment): boolean => network !== undefined || heldNetworks.has(attachment.network);
  const wired = holdingsOf(wires);
  return {
    wires: stray.filter(isKnown),
    leftAlone: countByNetwork(stray.filter((attachment) => !isKnown(attachment))),
    endpoints: endpoints.filter((each) => isMeant(each.attachment?.network) && !isAmong(wired, holdingOf(each))),
  };
}

/** A wire or an endpoint: matched to one pod by attachment and addresses. */
interface Holding {
  readonly attachment: Attachment | undefined;
  /** CIDRs of full length. */
  readonly addresses: readonly string[];
}

interface Holdings {
  readonly attachments: ReadonlySet<string>;
  readonly addresses: ReadonlySet<string>;
}

function holdingOf({ attachment, addresses }: Endpoint): Holding {
  return { attachment, addresses: addresses.map(({ address }) => address) };
}

function holdingsOf(all: readonly Holding[]): Holdings {
  return {
    attachments: new Set(all.map(({ attachment }) => attachmentText(attachment))),
    addresses: new Set(all.flatMap(({ addresses }) => addresses)),
  };
}

/** Calico's plugin has its wires made under other attachments than it gives addresses to, so one of the two has to match. */
function isAmong(holdings: Holdings, { attachment, addresses }: Holding): boolean {
  const isKnown = attachment !== undefined && holdings.attachments.has(attachmentText(attachment));
  return isKnown || addresses.some((address) => holdings.addresses.has(address));
}

/** Queried per wire, as the list may be older than the wire, and may record another node name. */
async function isHeld({ attachment, addresses }: Holding, ipam: Service): Promise<boolean> {
  for (const cidr of addresses) {
    const address = cidr.replace(/\/\d+$/, '');
    const { state } = await ipam.call(AddressServiceService.getAddress, { address });
    if (state === AddressState.ADDRESS_STATE_ALLOCATED) return true;
  }
  try {
    await ipam.call(AddressServiceService.getEndpoint, { attachment });
    return true;
  } catch (error) {
    if (error instanceof Failure && error.code === 'ENDPOINT_NOT_FOUND') return false;
    throw error;
  }
}

function countByNetwork(attachments: readonly Attachment[]): LeftAlone[] {
  const counts = new Map<string, number>();
  for (const { network } of attachments) counts.set(network, (counts.get(network) ?? 0) + 1);
  return [...counts].map(([network, wiresCount]) => ({ network, wiresCount }));
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
