import { NodeServiceService } from '@podwire/proto/podwire/dataplane/v1/node';
import { PodServiceService, type DetachPodResponse } from '@podwire/proto/podwire/dataplane/v1/pod';
import { AddressServiceService, AddressState } from '@podwire/proto/podwire/ipam/v1/address';
import { BlockServiceService } from '@podwire/proto/podwire/ipam/v1/block';
import { EndpointServiceService, type Endpoint } from '@podwire/proto/podwire/ipam/v1/endpoint';
import type { Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';

import { allPages, type Context, type Service } from '../../clients/services.js';
import { text } from '../../command-line/forms.js';
import { ON_NODE, previewReport, YES } from '../../command-line/options.js';
import { option, type Verb } from '../../command-line/verb.js';
import { DONE, FAILED, type Report, type Section } from '../../output/report.js';
import { attachmentText, failureText } from '../../output/words.js';
import { listEndpoints, podText } from '../../resources/workloadendpoint.js';
import { listPods } from '../../resources/pods.js';

const NETWORK = option(
  '--network',
  text('NAME'),
  'only this network; required for a network whose addresses another IPAM plugin allocates (networks with addresses in IPAM)',
);

/** Wires and addresses of this node that do not match. */
interface Orphans {
  /** Wires of which IPAM knows neither the attachment nor an address. */
  readonly wires: readonly Attachment[];
  /** Endpoints with addresses and without a wire. */
  readonly endpoints: readonly Endpoint[];
  /** Networks without an address in IPAM that --network does not name, with the number of their wires. */
  readonly skippedNetworks: readonly SkippedNetwork[];
}

interface SkippedNetwork {
  readonly network: string;
  readonly wiresCount: number;
}

export const gc: Verb = {
  name: 'gc',
  about: 'find orphaned wires on this node, whose pods hold no address; --yes removes them',
  details:
    'A pod gets its address before its wire, and its address is released after its wire. A wire is an orphan if IPAM has neither\nits attachment nor any of its addresses allocated or leased. A network without an address in IPAM is listed; its wires are removed only\nwith --network. Addresses without a wire are listed and kept: an ADD may be in progress.',
  options: [ON_NODE, NETWORK],
  flags: [YES],
  run: async (input, context) => {
    const stray = await findOrphans(input.get(NETWORK), context);
    const { json } = context;
    const hints = [
      ...stray.skippedNetworks.map(
        ({ network }) =>
          `if no other IPAM plugin allocates addresses of network ${network}: podwirectl gc --network ${network}`,
      ),
      ...stray.endpoints.map(
        ({ attachment }) =>
          `if no ADD of the attachment is in flight: podwirectl release attachment ${attachmentText(attachment)} --yes`,
      ),
    ];
    const data = () => ({
      wires: stray.wires.map(attachmentText),
      leftAlone: stray.skippedNetworks.map(({ network, wiresCount }) => ({ network, wiresCount })),
      endpoints: json.of(EndpointServiceService.listEndpoints, { endpoints: [...stray.endpoints], nextPageToken: '' }),
    });
    const execute = async (): Promise<Report> => {
      const removals = await removeAll(stray.wires, context);
      return {
        sections: [removalTable(removals, stray), ...remainingSections(stray)],
        hints,
        data: () => ({
          ...data(),
          removals: removals.map(({ attachment, told: outcome }) => ({ attachment, told: outcome })),
        }),
        exitCode: removals.some(({ isDone }) => !isDone) ? FAILED : DONE,
      };
    };
    if (input.has(YES)) return execute();
    const report = { sections: [wireTable(stray), ...remainingSections(stray)], hints, data };
    return stray.wires.length === 0 ? report : previewReport(report, input.toCommandLine(), execute);
  },
};

/** Lists the wires first: a pod that has a wire had its address before. */
async function findOrphans(network: string | undefined, { ipam, dataplane }: Context): Promise<Orphans> {
  const pods = await listPods(dataplane);
  const { nodeName } = await dataplane.call(NodeServiceService.getNodeStatus, {});
  const endpoints = await listEndpoints(ipam, { node: nodeName });
  const isSelected = (name: string | undefined): boolean => network === undefined || name === network;
  const wires = pods.flatMap(({ attachment, addresses }) => (attachment ? [{ attachment, addresses }] : []));
  const stray: Attachment[] = [];
  const heldNetworks = new Set<string>();
  const held = holdingsOf(endpoints.map(holdingOf));
  const allocations = new Allocations(ipam);
  for (const wire of wires.filter(({ attachment }) => isSelected(attachment.network))) {
    if (hasMatch(held, wire) || (await isHeld(wire, ipam, allocations))) heldNetworks.add(wire.attachment.network);
    else stray.push(wire.attachment);
  }
  const isKnown = (attachment: Attachment): boolean => network !== undefined || heldNetworks.has(attachment.network);
  const wired = holdingsOf(wires);
  return {
    wires: stray.filter(isKnown),
    skippedNetworks: countByNetwork(stray.filter((attachment) => !isKnown(attachment))),
    endpoints: endpoints.filter((each) => isSelected(each.attachment?.network) && !hasMatch(wired, holdingOf(each))),
  };
}

/** A wire or an endpoint. Wires are matched to endpoints by attachment and addresses. */
interface Holding {
  readonly attachment: Attachment | undefined;
  /** Addresses with their prefix length, /32 or /128. */
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

/** One of the two has to match: Calico's plugin uses different attachments for wires and for addresses. */
function hasMatch(holdings: Holdings, { attachment, addresses }: Holding): boolean {
  const isKnown = attachment !== undefined && holdings.attachments.has(attachmentText(attachment));
  return isKnown || addresses.some((address) => holdings.addresses.has(address));
}

/** Queried per wire, because the list may be older than the wire, or the endpoint may have another node name. */
async function isHeld({ attachment, addresses }: Holding, ipam: Service, allocations: Allocations): Promise<boolean> {
  for (const cidr of addresses) {
    if (await allocations.has(cidr.replace(/\/\d+$/, ''))) return true;
  }
  try {
    await ipam.call(AddressServiceService.getEndpoint, { attachment });
    return true;
  } catch (error) {
    if (error instanceof Failure && error.code === 'ENDPOINT_NOT_FOUND') return false;
    throw error;
  }
}

/** The allocated and leased addresses. A node's certificate permits no query of one address, but the list of all blocks. */
class Allocations {
  readonly #ipam: Service;
  /** Listed network namespaces; undefined while queries are permitted. */
  #listed: ReadonlySet<string> | undefined;

  constructor(ipam: Service) {
    this.#ipam = ipam;
  }

  async has(address: string): Promise<boolean> {
    if (this.#listed) return this.#listed.has(address);
    try {
      const { state } = await this.#ipam.call(AddressServiceService.getAddress, { address });
      // A pod may have a leased address before IPAM knows the pod.
      return state === AddressState.ADDRESS_STATE_ALLOCATED || state === AddressState.ADDRESS_STATE_LEASED;
    } catch (error) {
      if (!(error instanceof Failure) || error.code !== 'ACCESS_DENIED') throw error;
    }
    const listed = await this.#list();
    this.#listed = listed;
    return listed.has(address);
  }

  async #list(): Promise<ReadonlySet<string>> {
    const filter = { poolName: '', nodeName: '' };
    const pages = await allPages((page) => this.#ipam.call(BlockServiceService.listBlocks, { ...page, ...filter }));
    return new Set(pages.flatMap(({ blocks }) => blocks.flatMap(({ allocations }) => allocations.map(addressOf))));
  }
}

const addressOf = ({ address }: { readonly address: string }): string => address;

function countByNetwork(attachments: readonly Attachment[]): SkippedNetwork[] {
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
    const told = ({ removed }: DetachPodResponse): string => (removed ? 'removed' : 'already removed');
    removals.push(
      await dataplane.call(PodServiceService.detachPod, { attachment, hostInterfaceName: '' }).then(
        (answer) => ({ attachment: name, told: told(answer), isDone: true }),
        (error: unknown) => ({ attachment: name, told: failureText(error), isDone: false }),
      ),
    );
  }
  return removals;
}

const noOrphanText = ({ skippedNetworks: leftAlone }: Orphans): string =>
  leftAlone.length === 0 ? 'orphaned wires: none' : 'orphaned wires of other networks: none';

function wireTable(stray: Orphans): Section {
  return {
    kind: 'table',
    columns: ['ORPHANED WIRE'],
    rows: stray.wires.map((attachment) => [attachmentText(attachment)]),
    none: noOrphanText(stray),
  };
}

function removalTable(removals: readonly Removal[], stray: Orphans): Section {
  return {
    kind: 'table',
    columns: ['RESULT', 'ORPHANED WIRE'],
    rows: removals.map(({ attachment, told }) => [told, attachment]),
    none: noOrphanText(stray),
  };
}

function remainingSections(stray: Orphans): Section[] {
  const { skippedNetworks: leftAlone, endpoints } = stray;
  return [...(leftAlone.length === 0 ? [] : [skippedNetworkTable(leftAlone)]), endpointTable(endpoints)];
}

function skippedNetworkTable(leftAlone: readonly SkippedNetwork[]): Section {
  return {
    kind: 'table',
    columns: ['SKIPPED NETWORK, WITHOUT AN ADDRESS IN IPAM', { right: 'WIRES' }],
    rows: leftAlone.map(({ network, wiresCount }) => [network, String(wiresCount)]),
    none: 'skipped networks: none',
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
    none: 'addresses without a wire: none',
  };
}
