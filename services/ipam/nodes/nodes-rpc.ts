import {
  NodeServiceService,
  TunnelKind as TunnelKindMessage,
  type AllocateTunnelAddressRequest,
  type Node as NodeMessage,
  type NodeInterface as InterfaceMessage,
  type RegisterNodeRequest,
  type UpdateNodeRequest,
} from '@podwire/proto/podwire/ipam/v1/node';
import { interfaceNameFault } from '@podwire/shared/attachment/attachment';
import { familyBits, formatAddress, parseAddress, type Family } from '@podwire/shared/net/address';
import {
  constantPrefix,
  formatPrefix,
  hostPrefix,
  prefixContains,
  prefixOf,
  prefixSize,
} from '@podwire/shared/net/prefix';
import { readChecked, type Checks } from '@podwire/shared/requests/checks';
import { formatPageToken, readPage, type ListScope } from '@podwire/shared/requests/paging';
import type { RpcService } from '@podwire/shared/rpc/server';
import { unaryService, type Unary } from '@podwire/shared/rpc/unary';

import { keptMessage } from '../blocks/running-nodes-rpc.js';
import { dateOf, readObjectName } from '../messages/parts.js';
import { labelKeyFault, labelValueFault, subdomainFault } from '../records/names.js';
import {
  formatNodeAddress,
  type Node,
  type NodeAddress,
  type NodeInterface,
  type TunnelKind,
} from '../records/node.js';
import { versionOf } from '../records/versions.js';
import type { Nodes } from './nodes-operations.js';
import type { NodeListing, NodeUpdate, Registration } from './nodes.js';
import type { TunnelKey } from './tunnels.js';

/** Reads the podCIDRs of a Kubernetes Node; none if there is no such Node. @throws Failure of the API server */
export type ReadPodCidrs = (nodeName: string, signal: AbortSignal) => Promise<readonly string[]>;

export function nodeService(nodes: Nodes, unary: Unary, readPodCidrs: ReadPodCidrs): RpcService {
  return unaryService(NodeServiceService, unary, {
    registerNode: async (message, { signal }) => {
      const { listing, outcome } = await nodes.register(readRegisterNodeRequest(message), signal);
      return { node: nodeMessage(listing), created: outcome === 'created' };
    },
    getNode: async (message, { signal }) => {
      const name = readObjectName('GetNode', message.name);
      const node = nodeMessage(await nodes.get(name, signal));
      return { node, podCidrs: message.withPodCidrs ? [...(await readPodCidrs(name, signal))] : [] };
    },
    listNodes: async (message, { signal }) => {
      const query = readChecked('ListNodes', (checks) => readPage(message, SCOPE, checks));
      const { items, more } = await nodes.list(query, signal);
      return {
        nodes: items.map(nodeMessage),
        nextPageToken: formatPageToken(SCOPE, more ? items.at(-1)?.node.name : undefined),
      };
    },
    updateNode: async (message, { signal }) => {
      const update = readUpdateNodeRequest(message);
      return { node: nodeMessage(await nodes.update(update, signal)) };
    },
    deleteNode: async ({ name, resourceVersion, force }, { signal }) => {
      const deletion = { name: readObjectName('DeleteNode', name), resourceVersion, force };
      const { addressesCount, blocksCount, kept } = await nodes.delete(deletion, signal);
      return {
        releasedAddresses: BigInt(addressesCount),
        releasedBlocks: BigInt(blocksCount),
        ...keptMessage(kept),
      };
    },
    allocateTunnelAddress: async (message, { signal }) => {
      const tunnel = readTunnelKey('AllocateTunnelAddress', message);
      const { address, isKept, released } = await nodes.assignTunnel(tunnel, signal);
      return {
        address: formatPrefix(address),
        alreadyAllocated: isKept,
        releasedAddresses: released.map(formatPrefix),
      };
    },
    releaseTunnelAddress: async (message, { signal }) => {
      const { released } = await nodes.releaseTunnel(readTunnelKey('ReleaseTunnelAddress', message), signal);
      return { addresses: released.map(formatPrefix) };
    },
  });
}

const SCOPE: ListScope = ['nodes'];

const MAX_LABELS_COUNT = 256;
const MAX_INTERFACES_COUNT = 64;
const MAX_ADDRESSES_COUNT = 64;

/** Kinds in the order of the contract, and of a node's tunnels. */
const KINDS: readonly (readonly [TunnelKindMessage, TunnelKind])[] = [
  [TunnelKindMessage.TUNNEL_KIND_IPIP, 'ipipTunnelAddress'],
  [TunnelKindMessage.TUNNEL_KIND_VXLAN_IPV4, 'vxlanTunnelAddress'],
  [TunnelKindMessage.TUNNEL_KIND_VXLAN_IPV6, 'vxlanV6TunnelAddress'],
];

function readRegisterNodeRequest(message: RegisterNodeRequest): Registration {
  return readChecked('RegisterNode', (checks) => {
    checks.check('name', subdomainFault(message.name));
    const { ipv4Address, ipv6Address } = message;
    if (ipv4Address === '' && ipv6Address === '') checks.check('ipv4_address', 'is empty; set it or ipv6_address');
    return {
      name: message.name,
      ipv4: readNodeAddress('ipv4_address', { text: ipv4Address, family: 4 }, checks),
      ipv6: readNodeAddress('ipv6_address', { text: ipv6Address, family: 6 }, checks),
      labels: readNodeLabels(message.labels, checks),
      interfaces: readInterfaces(message.interfaces, checks),
    };
  });
}

function readNodeAddress(
  field: string,
  { text, family }: { readonly text: string; readonly family: Family },
  checks: Checks,
): NodeAddress | undefined {
  if (text === '') return undefined;
  const address = parseNodeAddress(text);
  const example = family === 4 ? '192.0.2.7/24' : '2001:db8::7/64';
  const isRight = address?.address.family === family;
  checks.check(
    field,
    isRight ? unreachableFault(address) : `must be an IPv${family} address with its subnet length, such as ${example}`,
  );
  return address;
}

/**
 * Ranges of addresses that no other node can reach a node at (RFC 6890, RFC 5771, RFC 4291; IPv4 addresses in IPv6: RFC 6052,
 * RFC 7915).
 */
const UNREACHABLE = [
  ['is unspecified', '0.0.0.0/8', '::/128'],
  ['is a loopback address', '127.0.0.0/8', '::1/128'],
  ['is a link-local address', '169.254.0.0/16', 'fe80::/10'],
  ['is a site-local address', 'fec0::/10'],
  ['is a multicast address', '224.0.0.0/4', 'ff00::/8'],
  ['is reserved or the broadcast address', '240.0.0.0/4'],
  ['is an IPv4 address', '::/96', '::ffff:0:0:0/96', '64:ff9b::/96'],
  ['is for discarded packets', '100::/64'],
].flatMap(([fault, ...cidrs]) => cidrs.map((cidr) => ({ fault, prefix: constantPrefix(cidr) })));

/** Shorter subnets than anybody has: a pool must not overlap them. */
const MIN_SUBNET_BITS: Readonly<Record<Family, number>> = { 4: 8, 6: 32 };

/** Why other nodes cannot reach the address: they accept tunnel packets from it. */
function unreachableFault({ address, subnetBits }: NodeAddress): string | undefined {
  const remedy = 'register an address that other nodes can reach';
  const { family } = address;
  const minBits = MIN_SUBNET_BITS[family];
  if (subnetBits < minBits) return `has a subnet of length ${subnetBits}, shorter than ${minBits}; ${remedy}`;
  const found = UNREACHABLE.find(({ prefix }) => prefixContains(prefix, address));
  if (found) return `${found.fault}; ${remedy}`;
  // Subnets of one or two addresses have neither (RFC 3021, RFC 6164).
  if (familyBits(family) - subnetBits < 2) return undefined;
  const { value } = prefixOf(address, subnetBits);
  if (address.value === value) return `is the first address of its subnet, which no host has; ${remedy}`;
  const isLast = address.value === value + prefixSize({ family, value, length: subnetBits }) - 1n;
  return family === 4 && isLast ? `is the broadcast address of its subnet; ${remedy}` : undefined;
}

/** An address with host bits, and the length of its subnet behind a slash. */
function parseNodeAddress(text: string): NodeAddress | undefined {
  const slash = text.lastIndexOf('/');
  const length = text.slice(slash + 1);
  const address = slash < 0 ? undefined : parseAddress(text.slice(0, slash));
  if (!address || !/^(0|[1-9]\d{0,2})$/.test(length) || Number(length) > familyBits(address.family)) return undefined;
  return { address: hostPrefix(address), subnetBits: Number(length) };
}

/** All labels of a node, or the labels that it registers. */
function readNodeLabels(labels: Readonly<Record<string, string>>, checks: Checks): Record<string, string> {
  const entries = Object.entries(labels);
  if (entries.length > MAX_LABELS_COUNT)
    checks.check('labels', `has ${entries.length} entries; at most ${MAX_LABELS_COUNT} are allowed`);
  for (const [key, value] of entries.slice(0, MAX_LABELS_COUNT)) {
    const name = `labels[${JSON.stringify(key.slice(0, 80))}]`;
    const keyFault = labelKeyFault(key);
    checks.check(name, keyFault === undefined ? undefined : `has a key that ${keyFault}`);
    const valueFault = labelValueFault(value);
    checks.check(name, valueFault === undefined ? undefined : `has a value that ${valueFault}`);
  }
  return Object.fromEntries(entries);
}

function readInterfaces(messages: readonly InterfaceMessage[], checks: Checks): NodeInterface[] {
  if (messages.length > MAX_INTERFACES_COUNT)
    checks.check('interfaces', `has ${messages.length} entries; at most ${MAX_INTERFACES_COUNT} are allowed`);
  const names = new Set<string>();
  return messages.slice(0, MAX_INTERFACES_COUNT).map(({ name, addresses }, index) => {
    const field = `interfaces[${index}]`;
    checks.check(`${field}.name`, names.has(name) ? `is "${name}" a second time` : interfaceNameFault(name));
    names.add(name);
    if (addresses.length > MAX_ADDRESSES_COUNT)
      checks.check(`${field}.addresses`, `has ${addresses.length} entries; at most ${MAX_ADDRESSES_COUNT} are allowed`);
    return {
      name,
      addresses: addresses.slice(0, MAX_ADDRESSES_COUNT).flatMap((text, at) => {
        const address = parseNodeAddress(text);
        const fault = 'must be an address with its subnet length, such as 192.0.2.7/24';
        checks.check(`${field}.addresses[${at}]`, address ? unreachableFault(address) : fault);
        return address ?? [];
      }),
    };
  });
}

function kindOf(message: TunnelKindMessage): TunnelKind | undefined {
  return KINDS.find(([known]) => known === message)?.[1];
}

function readUpdateNodeRequest({ name, labels, resourceVersion }: UpdateNodeRequest): NodeUpdate {
  return readChecked('UpdateNode', (checks) => {
    checks.check('name', subdomainFault(name));
    return { name, labels: readNodeLabels(labels, checks), resourceVersion };
  });
}

/** @param method - for the message */
function readTunnelKey(method: string, { nodeName, kind: message }: AllocateTunnelAddressRequest): TunnelKey {
  return readChecked(method, (checks) => {
    checks.check('node_name', subdomainFault(nodeName));
    const kind = kindOf(message);
    checks.check('kind', kind ? undefined : `is ${message}; unknown kind`);
    return { nodeName, kind: kind ?? 'ipipTunnelAddress' };
  });
}

/** Message with its utilization and session, if requested. */
export function nodeMessage(listing: Pick<NodeListing, 'node'> & Partial<NodeListing>): NodeMessage {
  const { node, utilization, session } = listing;
  return {
    name: node.name,
    uid: node.uid,
    createTime: new Date(node.createTimeMs),
    deleteTime: node.deletionTimeMs === undefined ? undefined : new Date(node.deletionTimeMs),
    labels: { ...node.labels },
    ipv4Address: node.ipv4 ? formatNodeAddress(node.ipv4) : '',
    ipv6Address: node.ipv6 ? formatNodeAddress(node.ipv6) : '',
    tunnels: tunnelMessages(node),
    interfaces: node.interfaces.map(({ name, addresses }) => ({ name, addresses: addresses.map(formatNodeAddress) })),
    asNumber: node.asNumber,
    resourceVersion: versionOf(node),
    leaseRecallCount: BigInt(node.leaseRecallCount ?? 0),
    inventoryRequestCount: BigInt(node.inventoryRequestCount ?? 0),
    heardTime: dateOf(session?.heardAtMs),
    reportTime: dateOf(session?.reportedAtMs),
    utilization: utilization && {
      blocks: BigInt(utilization.blocks),
      capacity: BigInt(utilization.capacity),
      allocated: BigInt(utilization.allocated),
      cooling: BigInt(utilization.cooling),
      reserved: BigInt(utilization.reserved),
      available: BigInt(utilization.available),
      leased: BigInt(utilization.leased),
    },
  };
}

function tunnelMessages({ tunnels, tunnelMacs }: Node): NodeMessage['tunnels'] {
  return KINDS.flatMap(([message, kind]) => {
    const tunnel = tunnels.get(kind);
    const macAddress = tunnelMacs.get(kind) ?? '';
    const address = tunnel ? formatAddress(tunnel.address) : '';
    return tunnel || macAddress !== '' ? [{ kind: message, address, macAddress }] : [];
  });
}
