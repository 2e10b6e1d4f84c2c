import { familyBits, formatAddress, parseAddress, type Family } from '@podwire/shared/net/address';
import { parseMac, type Mac } from '@podwire/shared/net/mac';

import {
  formatNodeAddress,
  type Node,
  type NodeAddress,
  type NodeInterface,
  type Tunnel,
  type TunnelKind,
} from '../node.js';
import {
  field,
  isAbsent,
  keepCreateTime,
  keepTime,
  readHostAddress,
  readList,
  readObject,
  readOptionalText,
  readText,
  readTextMap,
  readTime,
  unreadable,
  Unreadable,
  type Field,
} from './fields.js';
import { parseJson, withoutFields, type Json, type JsonObject } from './json.js';
import type { RecordName } from './keys.js';

/** Calico's Node (libcalico-go/lib/apis/v3/node.go). An annotation holds the fields that Calico lacks. */

/** JSON object of the labels of the node's last registration. */
const REGISTERED_LABELS = 'podwire.dev/registered-labels';

/** UID of the Kubernetes cluster that has the node. */
const KUBERNETES_CLUSTER = 'podwire.dev/kubernetes-cluster';

/** How often the node's unbound leases were recalled. */
const LEASE_RECALLS = 'podwire.dev/lease-recalls';

/** How often the node was asked for its inventory. */
const INVENTORY_REQUESTS = 'podwire.dev/inventory-requests';

/** The fields of each tunnel in the spec: its address, and its MAC address where it has one. */
const TUNNELS: readonly TunnelField[] = [
  { kind: 'ipipTunnelAddress', group: 'bgp', address: 'ipv4IPIPTunnelAddr' },
  { kind: 'vxlanTunnelAddress', address: 'ipv4VXLANTunnelAddr', mac: 'vxlanTunnelMACAddr' },
  { kind: 'vxlanV6TunnelAddress', address: 'ipv6VXLANTunnelAddr', mac: 'vxlanTunnelMACAddrV6' },
];

interface TunnelField {
  readonly kind: TunnelKind;
  /** Name of the object within the spec that holds the field; the spec itself when left out. */
  readonly group?: 'bgp';
  readonly address: string;
  readonly mac?: string;
}

export function decodeNode(raw: JsonObject, name: RecordName & { kind: 'node' }): Node {
  const metadata = readObject(field(raw, 'metadata'));
  const created = field(metadata, 'creationTimestamp', 'metadata');
  const deleted = field(metadata, 'deletionTimestamp', 'metadata');
  const spec = readObject(field(raw, 'spec'));
  const bgp = readObject(field(spec, 'bgp', 'spec'));
  const annotations = readObject(field(metadata, 'annotations', 'metadata'));
  return {
    name: name.name,
    uid: readOptionalText(field(metadata, 'uid', 'metadata')) ?? '',
    createTimeMs: isAbsent(created) ? 0 : readTime(created),
    deletionTimeMs: isAbsent(deleted) ? undefined : readTime(deleted),
    labels: readTextMap(field(metadata, 'labels', 'metadata')),
    registeredLabels: decodeRegistered(field(annotations, REGISTERED_LABELS, 'metadata.annotations')),
    ipv4: decodeAddress(field(bgp, 'ipv4Address', 'spec.bgp'), 4),
    ipv6: decodeAddress(field(bgp, 'ipv6Address', 'spec.bgp'), 6),
    tunnels: new Map(TUNNELS.flatMap((place) => decodeTunnel(spec, place))),
    tunnelMacs: new Map(TUNNELS.flatMap((place) => decodeMac(spec, place))),
    interfaces: decodeInterfaces(spec),
    asNumber: decodeAsNumber(field(bgp, 'asNumber', 'spec.bgp')),
    kubernetesCluster: readOptionalText(field(annotations, KUBERNETES_CLUSTER, 'metadata.annotations')),
    leaseRecallCount: decodeCount(field(annotations, LEASE_RECALLS, 'metadata.annotations')),
    inventoryRequestCount: decodeCount(field(annotations, INVENTORY_REQUESTS, 'metadata.annotations')),
  };
}

/** A malformed count begins again. */
function decodeCount(source: Field): number | undefined {
  const text = isAbsent(source) ? '' : source.value;
  return typeof text === 'string' && /^\d{1,15}$/.test(text) ? Number(text) : undefined;
}

function decodeRegistered(source: Field): Record<string, string> {
  if (isAbsent(source)) return {};
  try {
    return readTextMap({ path: source.path, value: parseJson(readText(source)) });
  } catch (error) {
    if (error instanceof SyntaxError) throw unreadable(source, 'JSON');
    throw error;
  }
}

/** `10.1.2.3/24`: the node's own address and its subnet's length. */
function decodeAddress(source: Field, family: Family): NodeAddress | undefined {
  if (isEmpty(source)) return undefined;
  const text = readText(source);
  const slash = text.indexOf('/');
  const bits = familyBits(family);
  const address = parseAddress(slash < 0 ? text : text.slice(0, slash));
  const length = slash < 0 ? String(bits) : text.slice(slash + 1);
  if (address?.family !== family || !/^\d{1,3}$/.test(length) || Number(length) > bits)
    throw unreadable(source, `an IPv${family} address with the length of its subnet`);
  return { address: { ...address, length: bits }, subnetBits: Number(length) };
}

function isEmpty(source: Field): boolean {
  return isAbsent(source) || source.value === '';
}

function decodeTunnel(spec: JsonObject, place: TunnelField): (readonly [TunnelKind, Tunnel])[] {
  const source = tunnelField(spec, place, place.address);
  return isEmpty(source) ? [] : [[place.kind, { address: readHostAddress(source) }]];
}

function decodeMac(spec: JsonObject, place: TunnelField): (readonly [TunnelKind, Mac])[] {
  if (place.mac === undefined) return [];
  const source = tunnelField(spec, place, place.mac);
  if (isEmpty(source)) return [];
  const mac = parseMac(readText(source));
  if (mac === undefined) throw unreadable(source, 'a MAC address');
  return [[place.kind, mac]];
}

function tunnelField(spec: JsonObject, { group }: TunnelField, name: string): Field {
  return group === undefined
    ? field(spec, name, 'spec')
    : field(readObject(field(spec, group, 'spec')), name, `spec.${group}`);
}

/** No decision depends on them, so malformed ones are skipped. A rewrite keeps them. */
function decodeInterfaces(spec: JsonObject): NodeInterface[] {
  const source = field(spec, 'interfaces', 'spec');
  return readList(source).flatMap((entry) => {
    const { name, addresses } = readInterface(entry);
    return name === undefined ? [] : [{ name, addresses }];
  });
}

function readInterface(source: Field): { name: string | undefined; addresses: NodeAddress[] } {
  const entry = readObject(source);
  const addresses = readList(field(entry, 'addresses', source.path)).flatMap((address) => {
    const read = ([4, 6] as const).map((family) => tryDecodeAddress(address, family));
    return read.flatMap((value) => value ?? []);
  });
  return { name: readOptionalText(field(entry, 'name', source.path)), addresses };
}

function tryDecodeAddress(source: Field, family: Family): NodeAddress | undefined {
  try {
    return decodeAddress(source, family);
  } catch (error) {
    if (error instanceof Unreadable) return undefined;
    throw error;
  }
}

const LARGEST_AS_NUMBER = 2 ** 32 - 1;

/** A number, its decimal text, or `<high 16 bits>.<low 16 bits>` (RFC 5396). */
function decodeAsNumber(source: Field): number | undefined {
  if (isEmpty(source)) return undefined;
  const { value } = source;
  const text = typeof value === 'string' ? value : Number.isInteger(value) ? JSON.stringify(value) : '';
  const [, high = '0', low] = /^(?:(\d{1,5})\.)?(\d{1,10})$/.exec(text) ?? [];
  const number = Number(high) * 2 ** 16 + Number(low);
  const dotted = high !== '0' && Number(low) >= 2 ** 16;
  if (low === undefined || dotted || number > LARGEST_AS_NUMBER) throw unreadable(source, 'an AS number');
  return number;
}

export function encodeNode(node: Node, raw: JsonObject): JsonObject {
  const metadata = readObject(field(raw, 'metadata'));
  return {
    kind: 'Node',
    apiVersion: 'projectcalico.org/v3',
    ...raw,
    metadata: {
      ...withoutFields(metadata, ['labels', 'annotations', 'deletionTimestamp']),
      name: node.name,
      uid: node.uid,
      creationTimestamp: keepCreateTime(node.createTimeMs, metadata.creationTimestamp),
      ...(node.deletionTimeMs === undefined
        ? {}
        : { deletionTimestamp: keepTime(node.deletionTimeMs, metadata.deletionTimestamp) }),
      ...omitIfEmpty('labels', node.labels),
      ...omitIfEmpty('annotations', encodeAnnotations(node, readObject(field(metadata, 'annotations', 'metadata')))),
    },
    spec: encodeSpec(node, readObject(field(raw, 'spec'))),
  };
}

function encodeAnnotations(
  { registeredLabels, kubernetesCluster, leaseRecallCount, inventoryRequestCount }: Node,
  stored: JsonObject,
): JsonObject {
  const none = Object.keys(registeredLabels).length === 0;
  return {
    ...withoutFields(stored, [REGISTERED_LABELS, KUBERNETES_CLUSTER, LEASE_RECALLS, INVENTORY_REQUESTS]),
    ...(none ? {} : { [REGISTERED_LABELS]: keepJson(registeredLabels, stored[REGISTERED_LABELS]) }),
    ...(kubernetesCluster === undefined ? {} : { [KUBERNETES_CLUSTER]: kubernetesCluster }),
    ...(leaseRecallCount === undefined ? {} : { [LEASE_RECALLS]: String(leaseRecallCount) }),
    ...(inventoryRequestCount === undefined ? {} : { [INVENTORY_REQUESTS]: String(inventoryRequestCount) }),
  };
}

/** Keeps an equal stored text, whatever the order of its keys. */
function keepJson(labels: Readonly<Record<string, string>>, stored: Json | undefined): string {
  const path = REGISTERED_LABELS;
  const same = typeof stored === 'string' && sameTexts(decodeRegistered({ path, value: stored }), labels);
  return same ? stored : JSON.stringify(labels);
}

function sameTexts(a: Readonly<Record<string, string>>, b: Readonly<Record<string, string>>): boolean {
  const keys = Object.keys(a);
  return keys.length === Object.keys(b).length && keys.every((key) => a[key] === b[key]);
}

function omitIfEmpty(name: string, object: JsonObject): JsonObject {
  return Object.keys(object).length === 0 ? {} : { [name]: object };
}

function encodeSpec(node: Node, stored: JsonObject): JsonObject {
  const bgp = readObject(field(stored, 'bgp', 'spec'));
  const newBgp = {
    ...withoutFields(bgp, ['ipv4Address', 'ipv6Address', ...fieldsOf('bgp')]),
    ...(node.ipv4 ? { ipv4Address: keepAddress(node.ipv4, bgp.ipv4Address) } : {}),
    ...(node.ipv6 ? { ipv6Address: keepAddress(node.ipv6, bgp.ipv6Address) } : {}),
    ...encodeTunnels(node, 'bgp'),
  };
  return {
    ...withoutFields(stored, ['bgp', 'interfaces', ...fieldsOf(undefined)]),
    ...encodeTunnels(node, undefined),
    ...omitIfEmpty('bgp', newBgp),
    ...encodeInterfaces(node, stored),
  };
}

/** Keeps equal stored interfaces, including the malformed ones that decoding skipped. */
function encodeInterfaces({ interfaces }: Node, stored: JsonObject): JsonObject {
  const written = interfaces.map(({ name, addresses }) => ({ name, addresses: addresses.map(formatNodeAddress) }));
  const read = decodeInterfaces(stored).map(({ name, addresses }) => ({
    name,
    addresses: addresses.map(formatNodeAddress),
  }));
  if (JSON.stringify(written) !== JSON.stringify(read)) return written.length > 0 ? { interfaces: written } : {};
  return stored.interfaces === undefined ? {} : { interfaces: stored.interfaces };
}

function fieldsOf(group: TunnelField['group']): string[] {
  return TUNNELS.filter((place) => place.group === group).flatMap(({ address, mac }) =>
    mac === undefined ? [address] : [address, mac],
  );
}

function encodeTunnels({ tunnels, tunnelMacs }: Node, group: TunnelField['group']): JsonObject {
  const fields: Record<string, Json> = {};
  for (const place of TUNNELS) {
    if (place.group !== group) continue;
    const tunnel = tunnels.get(place.kind);
    const mac = tunnelMacs.get(place.kind);
    if (tunnel) fields[place.address] = formatAddress(tunnel.address);
    if (place.mac !== undefined && mac !== undefined) fields[place.mac] = mac;
  }
  return fields;
}

/** Keeps the form of the stored text: a bare address means a subnet of one address. */
function keepAddress({ address, subnetBits }: NodeAddress, stored: Json | undefined): string {
  const bare = typeof stored === 'string' && !stored.includes('/');
  return bare && subnetBits === familyBits(address.family)
    ? formatAddress(address)
    : formatNodeAddress({ address, subnetBits });
}
