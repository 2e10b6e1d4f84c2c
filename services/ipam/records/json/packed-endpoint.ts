import {
  attachmentFaults,
  identifierFault,
  MAX_CONTAINER_ID_BYTES,
  type Attachment,
} from '@podwire/shared/attachment/attachment';
import { formatAddress, parseAddress } from '@podwire/shared/net/address';
import { parseMac } from '@podwire/shared/net/mac';
import { formatPrefix, hostPrefix } from '@podwire/shared/net/prefix';

import type { Endpoint, EndpointAddress, EndpointKey } from '../endpoint.js';
import { formatTime, internPrefix } from './fields.js';

/**
 * An endpoint as one short text, unpacked on access. Each container of the cluster has one, and few are ever read. As
 * objects they would take three times the memory, and ten times as long to create at the start.
 */
export class PackedEndpoint {
  readonly kind = 'endpoint';
  /** Ends with `<namespace>/<name>`: the key in the datastore, whose text is in memory anyway. */
  readonly #key: string;
  readonly #packed: string;

  private constructor(key: string, packed: string) {
    this.#key = key;
    this.#packed = packed;
  }

  /**
   * Reads the text of an endpoint.
   * @param key - ends with `<namespace>/<name>`
   * @returns undefined unless writing the endpoint reproduces the text exactly; also for endpoints of other writers
   */
  static read(key: string, text: string): PackedEndpoint | undefined {
    const written = parseWritten(text, keyOf(key));
    const packed = written && pack(written);
    return packed === undefined ? undefined : new PackedEndpoint(key, packed);
  }

  /** @returns undefined for an endpoint that replaced another, or that contains non-ASCII or escaped characters */
  static of({ key, value }: StoredEndpoint): PackedEndpoint | undefined {
    if (value.replaced) return undefined;
    const packed = pack(writtenEndpoint(value));
    return packed === undefined ? undefined : new PackedEndpoint(`${key.namespace}/${key.name}`, packed);
  }

  /**
   * A new endpoint with its text, in the form that {@link read} accepts.
   * @returns undefined like {@link of}
   */
  static write({ key, value }: StoredEndpoint): { readonly packed: PackedEndpoint; readonly text: string } | undefined {
    if (value.replaced) return undefined;
    const written = writtenEndpoint(value);
    const packed = pack(written);
    if (packed === undefined) return undefined;
    return { packed: new PackedEndpoint(`${key.namespace}/${key.name}`, packed), text: writtenText(key, written) };
  }

  get key(): EndpointKey {
    return keyOf(this.#key);
  }

  get value(): Endpoint {
    if (lastUnpacked?.of === this) return lastUnpacked.value;
    const value = unpack(this.#packed, this.key);
    if (!value) throw new Error(`the endpoint ${this.#key} cannot be unpacked`);
    lastUnpacked = { of: this, value };
    return value;
  }

  /** Same as `value.nodeName`, without unpacking everything. */
  get nodeName(): string {
    return this.#packed.slice(0, this.#packed.indexOf(FIELD_SEPARATOR));
  }

  /** Same as `value.attachment.containerId`, without unpacking everything. */
  get containerId(): string {
    let start = 0;
    for (let passed = 0; passed < CONTAINER_ID_INDEX; passed++)
      start = this.#packed.indexOf(FIELD_SEPARATOR, start) + 1;
    return this.#packed.slice(start, this.#packed.indexOf(FIELD_SEPARATOR, start));
  }

  /** Block and pool of each of `value.addresses`, without unpacking everything. */
  get origins(): readonly EndpointOrigin[] {
    const start = this.#packed.indexOf(FIELD_SEPARATOR) + 1;
    const entries = this.#packed.slice(start, this.#packed.indexOf(FIELD_SEPARATOR, start));
    const parts = entries === '' ? [] : entries.split(LIST_SEPARATOR);
    const origins: EndpointOrigin[] = [];
    for (let index = 0; index < parts.length; index += FIELDS_OF_ADDRESS_COUNT) {
      const block = internPrefix(parts[index + 1] ?? '');
      if (!block) throw new Error(`the endpoint ${this.#key} cannot be unpacked`);
      origins.push({ block, poolName: parts[index + 2] ?? '' });
    }
    return origins;
  }

  toJSON(): StoredEndpoint & { readonly kind: 'endpoint' } {
    return { kind: this.kind, key: this.key, value: this.value };
  }
}

interface StoredEndpoint {
  readonly key: EndpointKey;
  readonly value: Endpoint;
}

/** The block and pool of an address. */
export type EndpointOrigin = Pick<EndpointAddress, 'block' | 'poolName'>;

/** Cache: a caller often reads the same endpoint several times in sequence. */
let lastUnpacked: { readonly of: PackedEndpoint; readonly value: Endpoint } | undefined;

const FIELD_SEPARATOR = '\n';
const LIST_SEPARATOR = '\t';
/** Index of the field in the packed text, see {@link pack}. */
const CONTAINER_ID_INDEX = 9;

function keyOf(key: string): EndpointKey {
  const slash = key.lastIndexOf('/');
  return { namespace: key.slice(key.lastIndexOf('/', slash - 1) + 1, slash), name: key.slice(slash + 1) };
}

/** @returns undefined when a field has characters outside unescaped printable ASCII, such as the separators */
function pack(written: WrittenEndpoint): string | undefined {
  const { nodeName, addresses, createTimeMs, uid, orchestrator, network, podUid, bootId, inode } = written;
  const { containerId, podName, interfaceName, hostInterfaceName, mac } = written;
  const first = `${nodeName}${FIELD_SEPARATOR}${addresses.join(LIST_SEPARATOR)}${FIELD_SEPARATOR}${createTimeMs ?? ''}`;
  const names = [uid, orchestrator, network, podUid, bootId, inode, containerId, podName, interfaceName];
  names.push(hostInterfaceName, mac);
  if (NEEDS_ESCAPE.test(nodeName) || addresses.some((text) => NEEDS_ESCAPE.test(text))) return undefined;
  return NEEDS_ESCAPE.test(names.join('')) ? undefined : [first, ...names].join(FIELD_SEPARATOR);
}

/** The indexes are those of {@link pack}. */
function unpack(packed: string, { namespace }: EndpointKey): Endpoint | undefined {
  const fields = packed.split(FIELD_SEPARATOR);
  const addresses = unpackAddresses(fields[1] ?? '');
  if (!addresses) return undefined;
  const text = (index: number): string => fields[index] ?? '';
  return {
    attachment: { network: text(5), containerId: text(CONTAINER_ID_INDEX), interfaceName: text(11) },
    uid: text(3),
    createTimeMs: text(2) === '' ? undefined : Number(text(2)),
    nodeName: text(0),
    pod: text(4) === 'k8s' ? { namespace, name: text(10), uid: text(6) } : undefined,
    addresses,
    mac: text(13),
    hostInterfaceName: text(12),
    netns: text(8) === '' ? undefined : { bootId: text(7), inode: BigInt(text(8)) },
  };
}

/** @returns undefined when an address cannot be parsed */
function unpackAddresses(entries: string): EndpointAddress[] | undefined {
  const parts = entries === '' ? [] : entries.split(LIST_SEPARATOR);
  const addresses: EndpointAddress[] = [];
  for (let index = 0; index < parts.length; index += FIELDS_OF_ADDRESS_COUNT) {
    const [addressText = '', blockText = '', poolName = '', number = ''] = index === 0 ? parts : parts.slice(index);
    const address = parseAddress(addressText);
    const block = internPrefix(blockText);
    if (!address || !block) return undefined;
    addresses.push({ address: hostPrefix(address), block, poolName, sequenceNumber: BigInt(number) });
  }
  return addresses;
}

/** The fields of a new endpoint's text, as they are written there; empty for missing ones. */
interface WrittenEndpoint extends Attachment {
  readonly createTimeMs: number | undefined;
  readonly uid: string;
  readonly orchestrator: string;
  readonly podUid: string;
  readonly bootId: string;
  readonly inode: string;
  readonly nodeName: string;
  readonly podName: string;
  /** {@link FIELDS_OF_ADDRESS_COUNT} for each: address, block, name of the pool, sequence number. */
  readonly addresses: readonly string[];
  readonly hostInterfaceName: string;
  readonly mac: string;
}

const FIELDS_OF_ADDRESS_COUNT = 4;

const KUBERNETES = 'k8s';
const OUTSIDE_KUBERNETES = 'cni';

function writtenEndpoint(value: Endpoint): WrittenEndpoint {
  const { attachment, pod, netns } = value;
  const addresses: string[] = [];
  for (const { address, block, poolName, sequenceNumber } of value.addresses) {
    addresses.push(formatAddress(address), formatPrefix(block), poolName, String(sequenceNumber));
  }
  return {
    network: attachment.network,
    containerId: attachment.containerId,
    interfaceName: attachment.interfaceName,
    createTimeMs: value.createTimeMs,
    uid: value.uid,
    orchestrator: pod ? KUBERNETES : OUTSIDE_KUBERNETES,
    podUid: pod?.uid ?? '',
    bootId: netns?.bootId ?? '',
    inode: netns ? String(netns.inode) : '',
    nodeName: value.nodeName,
    podName: pod?.name ?? '',
    addresses,
    hostInterfaceName: value.hostInterfaceName,
    mac: value.mac,
  };
}

/**
 * The text of a new endpoint, identical to that of `encodeEndpoint` and `JSON.stringify` where nothing needs an escape.
 */
function writtenText({ namespace, name }: EndpointKey, written: WrittenEndpoint): string {
  const { createTimeMs, uid, podUid, inode, addresses } = written;
  const created = createTimeMs ? `"${formatTime(createTimeMs)}"` : 'null';
  const uidText = uid === '' ? '' : `"uid":"${uid}",`;
  const podUidText = podUid === '' ? '' : `"podwire.dev/pod-uid":"${podUid}",`;
  const netns = inode === '' ? '' : `"podwire.dev/boot-id":"${written.bootId}","podwire.dev/netns-inode":"${inode}",`;
  let entries = '';
  let networks = '';
  for (let index = 0; index < addresses.length; index += FIELDS_OF_ADDRESS_COUNT) {
    const address = addresses[index] ?? '';
    const comma = index === 0 ? '' : ',';
    entries +=
      `${comma}{\\"address\\":\\"${address}\\",\\"block\\":\\"${addresses[index + 1]}\\",` +
      `\\"pool\\":\\"${addresses[index + 2]}\\",\\"sequenceNumber\\":\\"${addresses[index + 3]}\\"}`;
    networks += `${comma}"${address}/${address.includes(':') ? 128 : 32}"`;
  }
  return (
    `{"kind":"WorkloadEndpoint","apiVersion":"projectcalico.org/v3","metadata":{${uidText}"creationTimestamp":${created},` +
    `"name":"${name}","namespace":"${namespace}","labels":{"projectcalico.org/namespace":"${namespace}",` +
    `"projectcalico.org/orchestrator":"${written.orchestrator}"},"annotations":{"podwire.dev/network":"${written.network}",` +
    `${podUidText}${netns}"podwire.dev/allocations":"[${entries}]"}},"spec":{"orchestrator":"${written.orchestrator}",` +
    `"workload":"","node":"${written.nodeName}","containerID":"${written.containerId}","pod":"${written.podName}",` +
    `"endpoint":"${written.interfaceName}","ipNetworks":[${networks}],` +
    `"interfaceName":"${written.hostInterfaceName}","mac":"${written.mac}"}}`
  );
}

/**
 * Parses the text of an endpoint; a start reads hundreds of thousands of them. Finding the values may be imprecise,
 * because they are accepted only if writing them reproduces the same text.
 * @returns undefined for every other text, and for one that decoding its JSON would refuse
 */
function parseWritten(text: string, key: EndpointKey): WrittenEndpoint | undefined {
  const found = parseFields(text);
  const { orchestrator, podUid, podName, mac } = found;
  const isValid =
    writtenText(key, found) === text &&
    !NEEDS_ESCAPE.test(key.name) &&
    !NEEDS_ESCAPE.test(key.namespace) &&
    (orchestrator === KUBERNETES || (orchestrator === OUTSIDE_KUBERNETES && podUid === '' && podName === '')) &&
    (found.inode === '' || INTEGER.test(found.inode)) &&
    parseMac(mac) === mac &&
    areAddresses(found.addresses) &&
    isAttachment(found);
  return isValid ? found : undefined;
}

/** Characters that JSON escapes or that are not printable ASCII. */
const NEEDS_ESCAPE = /[^ !#-[\]-~]/;

/** Length of the text before the first optional field. */
const HEAD_LENGTH = '{"kind":"WorkloadEndpoint","apiVersion":"projectcalico.org/v3","metadata":{'.length;

function parseFields(text: string): WrittenEndpoint {
  const reader = new Reader(text, HEAD_LENGTH);
  const uid = reader.optionalValue('"uid":"');
  const created = reader.valueAfter('"creationTimestamp":');
  const createTimeMs = created ? readTime(created) : undefined;
  const network = reader.valueAfter('"podwire.dev/network":');
  const podUid = reader.optionalValue(',"podwire.dev/pod-uid":"');
  const bootId = reader.optionalValue(',"podwire.dev/boot-id":"');
  const inode = reader.optionalValue(',"podwire.dev/netns-inode":"');
  const addresses = reader.addresses();
  const orchestrator = reader.valueAfter('"spec":{"orchestrator":');
  const nodeName = reader.valueAfter('"node":');
  const containerId = reader.valueAfter('"containerID":');
  const podName = reader.valueAfter('"pod":');
  const interfaceName = reader.valueAfter('"endpoint":');
  const hostInterfaceName = reader.valueAfter('"interfaceName":');
  const mac = reader.valueAfter('"mac":');
  return {
    network,
    containerId,
    interfaceName,
    createTimeMs,
    uid,
    orchestrator,
    podUid,
    bootId,
    inode,
    nodeName,
    podName,
    addresses,
    hostInterfaceName,
    mac,
  };
}

const BEFORE_ESCAPED = String.raw`:\"`;

/** Reads a text from label to label. */
class Reader {
  readonly #text: string;
  #at: number;

  constructor(text: string, at: number) {
    this.#text = text;
    this.#at = at;
  }

  /** The value after the next such label; empty when there is none. */
  valueAfter(label: string): string {
    const start = this.#text.indexOf(label, this.#at) + label.length;
    return this.#text[start] === '"' ? this.#readUntil(start + 1, '"') : '';
  }

  /** The value after the label if the label is next; otherwise empty. */
  optionalValue(label: string): string {
    return this.#text.startsWith(label, this.#at) ? this.#readUntil(this.#at + label.length, '"') : '';
  }

  /** The list is JSON inside a JSON string, so every quote is escaped. */
  addresses(): string[] {
    const values: string[] = [];
    const end = this.#text.indexOf('"}},"spec"', this.#at);
    for (;;) {
      const start = this.#text.indexOf(BEFORE_ESCAPED, this.#at) + BEFORE_ESCAPED.length;
      const isIn = start >= BEFORE_ESCAPED.length && start <= end;
      if (!isIn || !this.#text.includes('\\', start)) return values;
      values.push(this.#readUntil(start, '\\'));
    }
  }

  #readUntil(start: number, before: string): string {
    const end = this.#text.indexOf(before, start);
    if (end < 0) return '';
    this.#at = end + 1;
    return this.#text.slice(start, end);
  }
}

/** Decimal digits without leading zeros, as `String` writes them. */
const INTEGER = /^(?:0|[1-9]\d{0,19})$/;

/** Cache: endpoints that are read in sequence often have the same time. */
let lastTime = { text: '', timeMs: 0 };

function readTime(text: string): number {
  if (text !== lastTime.text) lastTime = { text, timeMs: Date.parse(text) };
  return lastTime.timeMs;
}

function areAddresses(addresses: readonly string[]): boolean {
  for (let index = 0; index < addresses.length; index += FIELDS_OF_ADDRESS_COUNT) {
    const [address = '', block = '', , sequenceNumber = ''] = index === 0 ? addresses : addresses.slice(index);
    if (!isWrittenAddress(address) || !isWrittenPrefix(block) || !INTEGER.test(sequenceNumber)) return false;
  }
  return true;
}

const BYTE = '(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)';
const DECIMAL = new RegExp(`^${BYTE}\\.${BYTE}\\.${BYTE}\\.${BYTE}$`);

/** Whether the text is a normalized address. For IPv4 much faster than parsing and formatting. */
function isWrittenAddress(text: string): boolean {
  if (DECIMAL.test(text)) return true;
  const address = parseAddress(text);
  return address !== undefined && formatAddress(address) === text;
}

function isWrittenPrefix(text: string): boolean {
  const prefix = internPrefix(text);
  // An IPv4 prefix has only one form.
  return prefix !== undefined && (prefix.family === 4 || formatPrefix(prefix) === text);
}

/** Cache: the last valid attachment. Most endpoints differ only in their containers. */
let lastValid = { network: '', interfaceName: '' };

function isAttachment({ network, containerId, interfaceName }: Attachment): boolean {
  if (lastValid.network === network && lastValid.interfaceName === interfaceName)
    return identifierFault(containerId, MAX_CONTAINER_ID_BYTES) === undefined;
  if (attachmentFaults({ network, containerId, interfaceName }).length > 0) return false;
  lastValid = { network, interfaceName };
  return true;
}
