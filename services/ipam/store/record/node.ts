import { familyBits, formatAddress, parseAddress, type Family } from '@podwire/shared/net/address';
import { parseMac } from '@podwire/shared/net/mac';

import type { Node, NodeAddress, Tunnel, TunnelKind } from '../../allocator/records.js';
import {
  field,
  isAbsent,
  keepTime,
  readHostAddress,
  readObject,
  readOptionalText,
  readText,
  readTextMap,
  readTime,
  unreadable,
  type Field,
} from './fields.js';
import type { Json, JsonObject } from './json.js';
import type { RecordName } from './keys.js';

/** Calico's Node (libcalico-go/lib/apis/v3/node.go). */

/** Where the spec keeps each tunnel: the path of its address, and of its MAC address where it has one. */
const TUNNELS: readonly TunnelField[] = [
  { kind: 'ipipTunnelAddress', group: 'bgp', address: 'ipv4IPIPTunnelAddr' },
  { kind: 'vxlanTunnelAddress', address: 'ipv4VXLANTunnelAddr', mac: 'vxlanTunnelMACAddr' },
  { kind: 'vxlanV6TunnelAddress', address: 'ipv6VXLANTunnelAddr', mac: 'vxlanTunnelMACAddrV6' },
  { kind: 'wireguardTunnelAddress', group: 'wireguard', address: 'interfaceIPv4Address' },
  { kind: 'wireguardV6TunnelAddress', group: 'wireguard', address: 'interfaceIPv6Address' },
];

interface TunnelField {
  readonly kind: TunnelKind;
  /** Name of the object within the spec that holds the field; the spec itself when left out. */
  readonly group?: 'bgp' | 'wireguard';
  readonly address: string;
  readonly mac?: string;
}

export function decodeNode(raw: JsonObject, name: RecordName & { kind: 'node' }): Node {
  const metadata = readObject(field(raw, 'metadata'));
  const created = field(metadata, 'creationTimestamp', 'metadata');
  const deleted = field(metadata, 'deletionTimestamp', 'metadata');
  const spec = readObject(field(raw, 'spec'));
  const bgp = readObject(field(spec, 'bgp', 'spec'));
  return {
    name: name.name,
    uid: readOptionalText(field(metadata, 'uid', 'metadata')) ?? '',
    createTimeMs: isAbsent(created) ? 0 : readTime(created),
    deletionTimeMs: isAbsent(deleted) ? undefined : readTime(deleted),
    labels: readTextMap(field(metadata, 'labels', 'metadata')),
    ipv4: decodeAddress(field(bgp, 'ipv4Address', 'spec.bgp'), 4),
    ipv6: decodeAddress(field(bgp, 'ipv6Address', 'spec.bgp'), 6),
    tunnels: new Map(TUNNELS.flatMap((place) => decodeTunnel(spec, place))),
  };
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
  const { kind, group } = place;
  const path = group === undefined ? 'spec' : `spec.${group}`;
  const object = group === undefined ? spec : readObject(field(spec, group, 'spec'));
  const source = field(object, place.address, path);
  if (isEmpty(source)) return [];
  const macSource = place.mac === undefined ? undefined : field(object, place.mac, path);
  return [[kind, { address: readHostAddress(source), mac: macSource && decodeMac(macSource) }]];
}

function decodeMac(source: Field): Tunnel['mac'] {
  if (isEmpty(source)) return undefined;
  const mac = parseMac(readText(source));
  if (mac === undefined) throw unreadable(source, 'a MAC address');
  return mac;
}

export function encodeNode(node: Node, raw: JsonObject): JsonObject {
  const metadata = readObject(field(raw, 'metadata'));
  return {
    kind: 'Node',
    apiVersion: 'projectcalico.org/v3',
    ...raw,
    metadata: {
      ...without(metadata, ['labels', 'deletionTimestamp']),
      name: node.name,
      uid: node.uid,
      creationTimestamp: keepTime(node.createTimeMs, metadata.creationTimestamp),
      ...(node.deletionTimeMs === undefined
        ? {}
        : { deletionTimestamp: keepTime(node.deletionTimeMs, metadata.deletionTimestamp) }),
      ...(Object.keys(node.labels).length === 0 ? {} : { labels: node.labels }),
    },
    spec: encodeSpec(node, readObject(field(raw, 'spec'))),
  };
}

function encodeSpec(node: Node, stored: JsonObject): JsonObject {
  const bgp = readObject(field(stored, 'bgp', 'spec'));
  const wireguard = readObject(field(stored, 'wireguard', 'spec'));
  const newBgp = {
    ...without(bgp, ['ipv4Address', 'ipv6Address', ...fieldsOf('bgp')]),
    ...(node.ipv4 ? { ipv4Address: keepAddress(node.ipv4, bgp.ipv4Address) } : {}),
    ...(node.ipv6 ? { ipv6Address: keepAddress(node.ipv6, bgp.ipv6Address) } : {}),
    ...encodeTunnels(node, 'bgp'),
  };
  const newWireguard = { ...without(wireguard, fieldsOf('wireguard')), ...encodeTunnels(node, 'wireguard') };
  return {
    ...without(stored, ['bgp', 'wireguard', ...fieldsOf(undefined)]),
    ...encodeTunnels(node, undefined),
    ...(Object.keys(newBgp).length === 0 ? {} : { bgp: newBgp }),
    ...(Object.keys(newWireguard).length === 0 ? {} : { wireguard: newWireguard }),
  };
}

function without(object: JsonObject, names: readonly string[]): JsonObject {
  return Object.fromEntries(Object.entries(object).filter(([name]) => !names.includes(name)));
}

function fieldsOf(group: TunnelField['group']): string[] {
  return TUNNELS.filter((place) => place.group === group).flatMap(({ address, mac }) =>
    mac === undefined ? [address] : [address, mac],
  );
}

function encodeTunnels({ tunnels }: Node, group: TunnelField['group']): JsonObject {
  const fields: Record<string, Json> = {};
  for (const place of TUNNELS) {
    const tunnel = place.group === group ? tunnels.get(place.kind) : undefined;
    if (!tunnel) continue;
    fields[place.address] = formatAddress(tunnel.address);
    if (place.mac !== undefined && tunnel.mac !== undefined) fields[place.mac] = tunnel.mac;
  }
  return fields;
}

/** The stored text where it means the same: a bare address is its writer's way of saying a subnet of one. */
function keepAddress({ address, subnetBits }: NodeAddress, stored: Json | undefined): string {
  const text = formatAddress(address);
  const bare = typeof stored === 'string' && !stored.includes('/');
  return bare && subnetBits === familyBits(address.family) ? text : `${text}/${subnetBits}`;
}
