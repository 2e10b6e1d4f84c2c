import { attachmentFaults } from '@podwire/shared/attachment/attachment';
import { formatAddress } from '@podwire/shared/net/address';
import { parseMac } from '@podwire/shared/net/mac';
import { comparePrefixes, formatPrefix } from '@podwire/shared/net/prefix';

import type {
  Endpoint,
  EndpointAddress,
  ForeignEndpoint,
  NetnsIdentity,
  PodIdentity,
} from '../../allocator/records.js';
import type { EndpointKey } from '../../allocator/view.js';
import {
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
  unreadable,
  Unreadable,
  type Field,
} from './fields.js';
import { isArray, isObject, parseJson, type Json, type JsonObject } from './json.js';
import type { RecordName } from './keys.js';

/**
 * Calico's WorkloadEndpoint (libcalico-go/lib/apis/v3/workloadendpoint.go). What Calico has no field for is in annotations.
 */
const NETWORK = 'podwire.dev/network';
const POD_UID = 'podwire.dev/pod-uid';
const BOOT_ID = 'podwire.dev/boot-id';
const NETNS_INODE = 'podwire.dev/netns-inode';
/** JSON list of {address, block, pool, sequenceNumber}, in the order of `ipNetworks`. */
const ALLOCATIONS = 'podwire.dev/allocations';

interface EndpointRecord {
  readonly key: EndpointKey;
  readonly value: Endpoint;
}

const KUBERNETES = 'k8s';
const OUTSIDE_KUBERNETES = 'cni';

/** @returns undefined for an endpoint that Podwire did not write: it has no network, so it is no attachment's */
export function decodeEndpoint(raw: JsonObject, name: RecordName & { kind: 'endpoint' }): Endpoint | undefined {
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
    pod: text('orchestrator') === KUBERNETES ? decodePod(spec, annotations, name) : undefined,
    addresses: decodeAddresses(spec, annotations),
    mac,
    hostInterfaceName: text('interfaceName'),
    netns: decodeNetns(annotations),
  };
}

/** Reads what can be read: nothing in another writer's endpoint makes it unreadable here. */
export function decodeForeignEndpoint(raw: JsonObject): ForeignEndpoint {
  const { spec } = raw;
  const fields = isObject(spec) ? spec : {};
  const text = (fieldName: string): string => {
    const { value } = field(fields, fieldName);
    return typeof value === 'string' ? value : '';
  };
  const networks = fields.ipNetworks;
  return {
    nodeName: text('node'),
    containerId: text('containerID'),
    podName: text('pod'),
    addresses: (isArray(networks) ? networks : []).flatMap((value) => {
      const address = typeof value === 'string' ? parseHostAddress(value) : undefined;
      return address ? [address] : [];
    }),
  };
}

function annotation(annotations: JsonObject, name: string): Field {
  return field(annotations, name, 'metadata.annotations');
}

function decodePod(spec: JsonObject, annotations: JsonObject, name: RecordName & { kind: 'endpoint' }): PodIdentity {
  return {
    namespace: name.key.namespace,
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
  const agree =
    networks.length === addresses.length &&
    addresses.every(({ address }, index) => {
      const network = networks[index];
      return network !== undefined && comparePrefixes(address, network) === 0;
    });
  if (!agree) throw new Unreadable(`${source.path} and spec.ipNetworks name different addresses`);
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

/** 64-bit integers are texts inside annotations, so that any JSON reader keeps them. */
function readInteger(source: Field): bigint {
  const text = readText(source);
  if (!/^\d{1,20}$/.test(text)) throw unreadable(source, 'decimal digits');
  return BigInt(text);
}

export function encodeEndpoint({ key, value: endpoint }: EndpointRecord, raw: JsonObject): JsonObject {
  const metadata = readObject(field(raw, 'metadata'));
  const { attachment, pod } = endpoint;
  const orchestrator = pod ? KUBERNETES : OUTSIDE_KUBERNETES;
  return {
    kind: 'WorkloadEndpoint',
    apiVersion: 'projectcalico.org/v3',
    ...raw,
    metadata: {
      ...metadata,
      ...(endpoint.uid === '' ? {} : { uid: endpoint.uid }),
      creationTimestamp: keepCreateTime(endpoint.createTimeMs ?? 0, metadata.creationTimestamp),
      name: key.name,
      namespace: key.namespace,
      labels: {
        ...readObject(field(metadata, 'labels')),
        'projectcalico.org/namespace': key.namespace,
        'projectcalico.org/orchestrator': orchestrator,
      },
      annotations: encodeAnnotations(endpoint, readObject(field(metadata, 'annotations'))),
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

function encodeAnnotations({ attachment, pod, netns, addresses }: Endpoint, stored: JsonObject): JsonObject {
  const ours = new Set([POD_UID, BOOT_ID, NETNS_INODE]);
  const allocations = addresses.map(({ address, block, poolName, sequenceNumber }) => ({
    address: formatAddress(address),
    block: formatPrefix(block),
    pool: poolName,
    sequenceNumber: String(sequenceNumber),
  }));
  return {
    ...Object.fromEntries(Object.entries(stored).filter(([key]) => !ours.has(key))),
    [NETWORK]: attachment.network,
    ...(pod && pod.uid !== '' ? { [POD_UID]: pod.uid } : {}),
    ...(netns ? { [BOOT_ID]: netns.bootId, [NETNS_INODE]: String(netns.inode) } : {}),
    [ALLOCATIONS]: JSON.stringify(allocations),
  };
}
