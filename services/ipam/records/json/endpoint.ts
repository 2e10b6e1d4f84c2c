import { attachmentFaults } from '@podwire/shared/attachment/attachment';
import { formatAddress } from '@podwire/shared/net/address';
import { parseMac } from '@podwire/shared/net/mac';
import { comparePrefixes, formatPrefix } from '@podwire/shared/net/prefix';

import type { NetnsIdentity, PodIdentity } from '../attributes.js';
import type { AnyEndpoint, Endpoint, EndpointAddress, EndpointKey, ForeignEndpoint } from '../endpoint.js';
import type { StoredEndpoint, StoredForeignEndpoint } from '../view.js';
import {
  anyValue,
  exactly,
  field,
  isAbsent,
  keepCreateTime,
  parseHostAddress,
  readHostAddress,
  readList,
  readObject,
  readOptionalText,
  readPrefix,
  readText,
  readTime,
  Unreadable,
  unreadable,
  wholeSeconds,
  type Field,
  type FieldChecks,
} from './fields.js';
import { formatJson, isArray, isObject, parseJson, type Json, type JsonObject } from './json.js';

/**
 * Calico's WorkloadEndpoint (libcalico-go/lib/apis/v3/workloadendpoint.go). Annotations hold fields that Calico lacks.
 */
const NETWORK = 'podwire.dev/network';
const POD_UID = 'podwire.dev/pod-uid';
const BOOT_ID = 'podwire.dev/boot-id';
const NETNS_INODE = 'podwire.dev/netns-inode';
/** JSON list of {address, block, pool, sequenceNumber}, in the order of `ipNetworks`. */
const ALLOCATIONS = 'podwire.dev/allocations';
/** JSON list of the stored forms of the endpoints whose key this one took over. */
const REPLACED = 'podwire.dev/replaced';
/** Network of an attachment with addresses of another IPAM plugin. Other releases take its endpoint for another writer's. */
const WIRED_NETWORK = 'podwire.dev/wired-network';

const KUBERNETES = 'k8s';
const OUTSIDE_KUBERNETES = 'cni';

/** Reads an endpoint. One without a network was written by another writer. */
export function decodeAnyEndpoint(raw: JsonObject, key: EndpointKey): AnyEndpoint {
  const value = decodeEndpoint(raw, key);
  return value ? { kind: 'endpoint', value } : { kind: 'foreignEndpoint', value: decodeForeignEndpoint(raw) };
}

function decodeEndpoint(raw: JsonObject, key: EndpointKey): Endpoint | undefined {
  const metadata = readObject(field(raw, 'metadata'));
  const annotations = readObject(field(metadata, 'annotations', 'metadata'));
  const created = field(metadata, 'creationTimestamp', 'metadata');
  const network = annotation(annotations, NETWORK);
  if (isAbsent(network)) return undefined;
  const spec = readObject(field(raw, 'spec'));
  const text = (fieldName: string): string => readText(field(spec, fieldName, 'spec'));
  const attachment = { network: readText(network), containerId: text('containerID'), interfaceName: text('endpoint') };
  const [fault] = attachmentFaults(attachment);
  if (fault) throw new Unreadable(`the attachment's ${fault.field} ${fault.reason}`);
  const macSource = field(spec, 'mac', 'spec');
  const mac = parseMac(readText(macSource));
  if (mac === undefined) throw unreadable(macSource, 'a MAC address');
  return {
    attachment,
    uid: readOptionalText(field(metadata, 'uid', 'metadata')) ?? '',
    createTimeMs: isAbsent(created) ? undefined : readTime(created),
    nodeName: text('node'),
    pod: text('orchestrator') === KUBERNETES ? decodePod(spec, annotations, key) : undefined,
    addresses: decodeAddresses(spec, annotations),
    mac,
    hostInterfaceName: text('interfaceName'),
    netns: decodeNetns(annotations),
    ...decodeReplaced(annotations, key),
  };
}

function annotation(annotations: JsonObject, name: string): Field {
  return field(annotations, name, 'metadata.annotations');
}

/** Replaced endpoints; without the key when there are none. */
function decodeReplaced(annotations: JsonObject, key: EndpointKey): Pick<Endpoint, 'replaced'> {
  const source = annotation(annotations, REPLACED);
  if (isAbsent(source)) return {};
  const stored = readList({ path: source.path, value: parseText(source) }).map(readObject);
  return { replaced: stored.map((raw) => decodeAnyEndpoint(raw, key)) };
}

function decodePod(spec: JsonObject, annotations: JsonObject, { namespace }: EndpointKey): PodIdentity {
  return {
    namespace,
    name: readText(field(spec, 'pod', 'spec')),
    uid: readOptionalText(annotation(annotations, POD_UID)) ?? '',
  };
}

function decodeNetns(annotations: JsonObject): NetnsIdentity | undefined {
  const inode = annotation(annotations, NETNS_INODE);
  if (isAbsent(inode)) return undefined;
  return { bootId: readText(annotation(annotations, BOOT_ID)), inode: readInteger(inode) };
}

function decodeAddresses(spec: JsonObject, annotations: JsonObject): EndpointAddress[] {
  const source = annotation(annotations, ALLOCATIONS);
  const addresses = readList({ path: source.path, value: parseText(source) }).map(decodeAddress);
  const networks = readList(field(spec, 'ipNetworks', 'spec')).map(readHostAddress);
  const isSame =
    networks.length === addresses.length &&
    addresses.every(({ address }, index) => {
      const network = networks[index];
      return network !== undefined && comparePrefixes(address, network) === 0;
    });
  if (!isSame) throw new Unreadable(`${source.path} and spec.ipNetworks name different addresses`);
  return addresses;
}

function parseText(source: Field): Json {
  try {
    return parseJson(readText(source));
  } catch (error) {
    if (error instanceof SyntaxError) throw unreadable(source, 'JSON');
    throw error;
  }
}

function decodeAddress(source: Field): EndpointAddress {
  const entry = readObject(source);
  return {
    address: readHostAddress(field(entry, 'address', source.path)),
    block: readPrefix(field(entry, 'block', source.path)),
    poolName: readText(field(entry, 'pool', source.path)),
    sequenceNumber: readInteger(field(entry, 'sequenceNumber', source.path)),
  };
}

/** 64-bit integers are texts inside annotations, so that any JSON parser keeps their precision. */
function readInteger(source: Field): bigint {
  const text = readText(source);
  if (!/^\d{1,20}$/.test(text)) throw unreadable(source, 'decimal digits');
  return BigInt(text);
}

/** A stored endpoint within these needs no JSON for a rewrite: {@link encodeEndpoint} derives all of it. */
export const ENDPOINT_FIELDS: FieldChecks = {
  kind: exactly('WorkloadEndpoint'),
  apiVersion: exactly('projectcalico.org/v3'),
  metadata: {
    ...{ uid: anyValue, name: anyValue, namespace: anyValue },
    creationTimestamp: (value) => value === null || wholeSeconds(value),
    labels: { 'projectcalico.org/namespace': anyValue, 'projectcalico.org/orchestrator': anyValue },
    annotations: {
      [NETWORK]: anyValue,
      [POD_UID]: anyValue,
      [BOOT_ID]: anyValue,
      [NETNS_INODE]: anyValue,
      [ALLOCATIONS]: anyValue,
      [REPLACED]: anyValue,
    },
  },
  spec: {
    ...{ orchestrator: anyValue, workload: anyValue, node: anyValue, containerID: anyValue, pod: anyValue },
    ...{ endpoint: anyValue, ipNetworks: anyValue, interfaceName: anyValue, mac: anyValue },
  },
};

export function encodeEndpoint({ key, value: endpoint }: StoredEndpoint, raw: JsonObject): JsonObject {
  // A stored UID that the endpoint lacks belongs to the endpoint that it replaced.
  const metadata = omitFields(readObject(field(raw, 'metadata')), UID);
  const { attachment, createTimeMs, pod } = endpoint;
  const orchestrator = pod ? KUBERNETES : OUTSIDE_KUBERNETES;
  return {
    kind: 'WorkloadEndpoint',
    apiVersion: 'projectcalico.org/v3',
    ...raw,
    metadata: {
      ...(endpoint.uid === '' ? {} : { uid: endpoint.uid }),
      ...metadata,
      creationTimestamp: createTimeMs === undefined ? null : keepCreateTime(createTimeMs, metadata.creationTimestamp),
      name: key.name,
      namespace: key.namespace,
      labels: {
        ...readObject(field(metadata, 'labels')),
        'projectcalico.org/namespace': key.namespace,
        'projectcalico.org/orchestrator': orchestrator,
      },
      annotations: encodeAnnotations({ key, value: endpoint }, readObject(field(metadata, 'annotations'))),
    },
    spec: {
      ...readObject(field(raw, 'spec')),
      orchestrator,
      workload: '',
      node: endpoint.nodeName,
      containerID: attachment.containerId,
      pod: pod?.name ?? '',
      endpoint: attachment.interfaceName,
      ipNetworks: endpoint.addresses.map(({ address }) => formatPrefix(address)),
      interfaceName: endpoint.hostInterfaceName,
      mac: endpoint.mac,
    },
  };
}

/** Endpoint as Calico's plugin writes it, whatever IPAM plugin the pod has. */
export function encodeForeignEndpoint({ key, value }: StoredForeignEndpoint): JsonObject {
  const { network = '', containerId, interfaceName, podName, mac, ...rest } = value;
  const attachment = { network, containerId, interfaceName };
  const pod = podName === '' ? undefined : { namespace: key.namespace, name: podName, uid: '' };
  const addresses = value.addresses.map((address) => ({ address, block: address, poolName: '', sequenceNumber: 0n }));
  const endpoint = { ...rest, attachment, pod, addresses, mac: parseMac(mac) ?? '', netns: undefined };
  const encoded = encodeEndpoint({ key, value: endpoint }, {});
  const metadata = { ...readObject(field(encoded, 'metadata')), annotations: { [WIRED_NETWORK]: network } };
  return { ...encoded, metadata };
}

const UID: ReadonlySet<string> = new Set(['uid']);

function omitFields(fields: JsonObject, names: ReadonlySet<string>): JsonObject {
  return Object.fromEntries(Object.entries(fields).filter(([name]) => !names.has(name)));
}

const OWN_ANNOTATIONS: ReadonlySet<string> = new Set([NETWORK, POD_UID, BOOT_ID, NETNS_INODE, ALLOCATIONS, REPLACED]);

/** Podwire's annotations come last and in a fixed order, so that a restored endpoint gets its earlier text back. */
function encodeAnnotations({ key, value }: StoredEndpoint, stored: JsonObject): JsonObject {
  const { attachment, pod, netns, addresses, replaced } = value;
  const allocations = addresses.map(({ address, block, poolName, sequenceNumber }) => ({
    address: formatAddress(address),
    block: formatPrefix(block),
    pool: poolName,
    sequenceNumber: String(sequenceNumber),
  }));
  return {
    ...omitFields(stored, OWN_ANNOTATIONS),
    [NETWORK]: attachment.network,
    ...(pod && pod.uid !== '' ? { [POD_UID]: pod.uid } : {}),
    ...(netns ? { [BOOT_ID]: netns.bootId, [NETNS_INODE]: String(netns.inode) } : {}),
    [ALLOCATIONS]: JSON.stringify(allocations),
    ...(replaced ? { [REPLACED]: formatJson(replaced.map((one) => encodeReplaced(one, key))) } : {}),
  };
}

function encodeReplaced(endpoint: AnyEndpoint, key: EndpointKey): Json {
  return endpoint.kind === 'endpoint'
    ? encodeEndpoint({ key, value: endpoint.value }, {})
    : parseJson(endpoint.value.stored);
}

/** Reads the valid fields. Another writer's endpoint is never unreadable. */
export function decodeForeignEndpoint(raw: JsonObject): ForeignEndpoint {
  const spec = isObject(raw.spec) ? raw.spec : {};
  const metadata = isObject(raw.metadata) ? raw.metadata : {};
  const networks = spec.ipNetworks;
  const network = isObject(metadata.annotations) ? textOf(metadata.annotations, WIRED_NETWORK) : '';
  return {
    ...(network !== '' && { network }),
    nodeName: textOf(spec, 'node'),
    containerId: textOf(spec, 'containerID'),
    interfaceName: textOf(spec, 'endpoint'),
    podName: textOf(spec, 'pod'),
    addresses: (isArray(networks) ? networks : []).flatMap((value) => {
      const address = typeof value === 'string' ? parseHostAddress(value) : undefined;
      return address ? [address] : [];
    }),
    uid: textOf(metadata, 'uid'),
    createTimeMs: timeOf(field(metadata, 'creationTimestamp')),
    mac: textOf(spec, 'mac'),
    hostInterfaceName: textOf(spec, 'interfaceName'),
    // Formatted on demand, which is rare. The JSON is kept anyway.
    get stored() {
      return formatJson(raw);
    },
  };
}

function textOf(fields: JsonObject, name: string): string {
  const { value } = field(fields, name);
  return typeof value === 'string' ? value : '';
}

function timeOf(source: Field): number | undefined {
  if (isAbsent(source)) return undefined;
  try {
    return readTime(source);
  } catch (error) {
    if (error instanceof Unreadable) return undefined;
    throw error;
  }
}
