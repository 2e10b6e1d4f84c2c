import { isDeepStrictEqual } from 'node:util';

import { ClusterServiceService, NodeContact, type NodeState } from '@podwire/proto/podwire/ipam/v1/cluster';
import {
  NodeServiceService,
  NodeUtilization,
  TunnelKind,
  type Node as StoredNode,
} from '@podwire/proto/podwire/ipam/v1/node';
import { Failure } from '@podwire/shared/failure/failure';
import { formatCount } from '@podwire/shared/words/format-count';

import { allPages, type Context, type Service } from '../clients/services.js';
import { FORCE } from '../command-line/options.js';
import { sentence, type Fields } from '../output/report.js';
import { age, moment, momentAndAge, percent, wordOf } from '../output/words.js';
import { countColumns, inUseOf } from './address-counts.js';
import { keptReport } from './kept.js';
import { resource, type ManifestObject, type Wanted } from './resource.js';

/** A node with whether podwire-ipam hears of it; undefined: unknown. */
interface Node extends StoredNode {
  readonly contact?: NodeContact | undefined;
}

/** `vxlan-ipv4 10.65.0.1`. An entry without an address is not a tunnel, but the MAC address that a node announces in advance. */
function tunnelsOf({ tunnels }: Node): string {
  const active = tunnels.filter(({ address }) => address !== '');
  return active.map(({ kind, address }) => `${wordOf(TunnelKind[kind], 'TUNNEL_KIND_')} ${address}`).join(', ');
}

function labelsText({ labels }: Node): string {
  return Object.entries(labels)
    .map(([key, value]) => `${key}=${value}`)
    .join(', ');
}

function nodeFields(node: Node, nowMs: number): Fields {
  const counts = node.utilization ?? NodeUtilization.create();
  const inUse = inUseOf(counts);
  return {
    kind: 'fields',
    fields: [
      ['Name', node.name],
      ['IPv4', node.ipv4Address],
      ['IPv6', node.ipv6Address],
      ['Registered', momentAndAge(node.createTime, nowMs)],
      ['Deleted since', momentAndAge(node.deleteTime, nowMs)],
      ['State', stateOf(node)],
      ['Last heard of', momentAndAge(node.heardTime, nowMs)],
      ['Last report', momentAndAge(node.reportTime, nowMs)],
      ['Blocks', `${counts.blocks}, with ${formatCount(counts.capacity, 'address', 'addresses')}`],
      ['In use', `${inUse} (${percent(inUse, counts.capacity)})`],
      ['Cooling', String(counts.cooling)],
      ['Reserved', String(counts.reserved)],
      ['Available', String(counts.available)],
      ['Leased', String(counts.leased)],
      ['Tunnels', tunnelsOf(node)],
      ['AS number', node.asNumber === undefined ? '' : String(node.asNumber)],
      ['Labels', labelsText(node)],
      ['Version', node.resourceVersion],
    ],
  };
}

/** Calico's NodeSpec (libcalico-go/lib/apis/internalapi/node.go); without empty fields, as Calico writes it. */
function specOf(node: Node): ManifestObject {
  const tunnel = (kind: TunnelKind) => node.tunnels.find((each) => each.kind === kind);
  const [vxlan4, vxlan6] = [tunnel(TunnelKind.TUNNEL_KIND_VXLAN_IPV4), tunnel(TunnelKind.TUNNEL_KIND_VXLAN_IPV6)];
  const { asNumber, interfaces } = node;
  const bgp = {
    ...(asNumber === undefined ? {} : { asNumber }),
    ...stated('ipv4Address', node.ipv4Address),
    ...stated('ipv6Address', node.ipv6Address),
    ...stated('ipv4IPIPTunnelAddr', tunnel(TunnelKind.TUNNEL_KIND_IPIP)?.address),
  };
  return {
    // Calico's tools refuse an empty one.
    ...(Object.keys(bgp).length === 0 ? {} : { bgp }),
    ...stated('ipv4VXLANTunnelAddr', vxlan4?.address),
    ...stated('vxlanTunnelMACAddr', vxlan4?.macAddress),
    ...stated('ipv6VXLANTunnelAddr', vxlan6?.address),
    ...stated('vxlanTunnelMACAddrV6', vxlan6?.macAddress),
    ...(interfaces.length === 0 ? {} : { interfaces: interfaces.map(({ name, addresses }) => ({ name, addresses })) }),
  };
}

function stated(name: string, value = ''): Record<string, string> {
  return value === '' ? {} : { [name]: value };
}

const STATES: Partial<Record<NodeContact, string>> = {
  [NodeContact.NODE_CONTACT_CONNECTED]: 'connected',
  [NodeContact.NODE_CONTACT_SILENT]: 'silent',
};

function stateOf({ deleteTime, contact = NodeContact.NODE_CONTACT_UNSPECIFIED }: Node): string {
  return deleteTime === undefined ? (STATES[contact] ?? 'registered') : 'being deleted';
}

/** A podwire-ipam of an earlier release does not know it. */
async function withContact(nodes: readonly StoredNode[], ipam: Service): Promise<Node[]> {
  try {
    const states = await listNodeStates(ipam);
    const contacts = new Map(states.map(({ name, contact }) => [name, contact]));
    return nodes.map((node) => ({ ...node, contact: contacts.get(node.name) }));
  } catch (error) {
    if (error instanceof Failure && error.code === 'UNIMPLEMENTED') return [...nodes];
    throw error;
  }
}

/** The states of all nodes, in the order of their names. */
export async function listNodeStates(ipam: Service): Promise<NodeState[]> {
  const pages = await allPages((page) => ipam.call(ClusterServiceService.listNodeStates, page));
  return pages.flatMap(({ nodes }) => nodes);
}

const readNode = async (name: string, { ipam }: Context): Promise<Node | undefined> => {
  const { node } = await ipam.call(NodeServiceService.getNode, { name });
  return node && (await withContact([node], ipam))[0];
};

/** The node itself writes its spec, so that only its labels can be changed. */
async function updateNode(wanted: Wanted<ManifestObject>, context: Context): Promise<Node | undefined> {
  const { name, labels = {}, resourceVersion = '', spec } = wanted;
  const { node: stored } = await context.ipam.call(NodeServiceService.getNode, { name });
  if (stored && Object.keys(spec).length > 0 && !isDeepStrictEqual(spec, specOf(stored)))
    throw new Failure(
      'INVALID_REQUEST',
      `Node "${name}": its spec is written by the node; change metadata.labels only, and omit spec`,
    );
  return (await context.ipam.call(NodeServiceService.updateNode, { name, labels, resourceVersion })).node;
}

export const NODE = resource<Node, ManifestObject>({
  columns: [
    { head: 'NAME', cell: ({ name }) => name },
    { head: 'IPV4', cell: ({ ipv4Address }) => ipv4Address },
    { head: 'IPV6', cell: ({ ipv6Address }) => ipv6Address },
    { head: 'TUNNELS', cell: tunnelsOf },
    { head: 'BLOCKS', isNumber: true, cell: ({ utilization }) => String(utilization?.blocks ?? 0) },
    ...countColumns(({ utilization }: Node) => utilization ?? NodeUtilization.create()),
    { head: 'STATE', cell: stateOf },
    { head: 'AGE', cell: ({ createTime }, nowMs) => age(createTime, nowMs) },
    { head: 'HEARD', isWide: true, cell: ({ heardTime }, nowMs) => age(heardTime, nowMs) },
    { head: 'REPORT', isWide: true, cell: ({ reportTime }, nowMs) => age(reportTime, nowMs) },
    { head: 'ASN', isWide: true, cell: ({ asNumber }) => String(asNumber ?? '') },
    { head: 'LABELS', isWide: true, cell: labelsText },
  ],
  hasLabels: true,
  none: 'nodes: none',
  nameOf: ({ name }) => name,
  metadata: ({ uid, createTime, labels, resourceVersion }) => ({
    uid,
    creationTimestamp: moment(createTime),
    labels,
    resourceVersion,
  }),
  spec: specOf,
  details: (node, nowMs) => [nodeFields(node, nowMs)],
  data: (node, { json }) => json.of(NodeServiceService.getNode, { node, podCidrs: [] }),
  list: async (_, { ipam }) => {
    const pages = await allPages((page) => ipam.call(NodeServiceService.listNodes, page));
    return withContact(
      pages.flatMap(({ nodes }) => nodes),
      ipam,
    );
  },
  get: readNode,
  notFound: 'NODE_NOT_FOUND',
  schema: async () => (await import('./specs.js')).NODE_SPEC,
  update: updateNode,
  deletion: {
    flags: [FORCE],
    warning: (input) =>
      input.has(FORCE)
        ? 'This node would be asked for its pods. If it answers and has pods, it is kept; otherwise all its addresses and blocks are released:'
        : 'All addresses and blocks of this node would be released. It is refused while podwire-node runs there and its pods have addresses. ' +
          'A podwire-node that still runs there would register the node again:',
    run: async (name, resourceVersion, input, { ipam, json }) => {
      const request = { name, resourceVersion, force: input.has(FORCE) || undefined };
      const answer = await ipam.call(NodeServiceService.deleteNode, request);
      const { releasedAddresses, releasedBlocks, keptAddresses } = answer;
      const released = `${formatCount(releasedAddresses, 'address', 'addresses')} and ${formatCount(releasedBlocks, 'block')}`;
      const outcome = keptAddresses > 0n ? 'is not deleted: it runs' : `is deleted; released: ${released}`;
      const { sections, exitCode } = keptReport(answer);
      return {
        sections: [sentence(`node ${name} ${outcome}`), ...sections],
        data: () => json.of(NodeServiceService.deleteNode, answer),
        exitCode,
      };
    },
  },
  instead: 'podwire-node registers its node',
});
