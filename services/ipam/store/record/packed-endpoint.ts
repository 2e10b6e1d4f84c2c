import { attachmentFaults } from '@podwire/shared/attachment/attachment';
import { formatAddress, parseAddress, type Address } from '@podwire/shared/net/address';
import { parseMac } from '@podwire/shared/net/mac';
import { formatPrefix, hostPrefix } from '@podwire/shared/net/prefix';

import type { Endpoint, EndpointAddress } from '../../allocator/records.js';
import type { EndpointKey } from '../../allocator/view.js';
import { formatTime } from './fields.js';
import { knownPrefix } from './known-prefixes.js';

/**
 * An endpoint as one short text, unpacked when it is looked at. There is one for each container of the cluster, nearly all of
 * which nobody asks for: as objects they take three times the memory, and starting ten times as long to make them.
 */
export class PackedEndpoint {
  readonly kind = 'endpoint';
  /** Ends with `<namespace>/<name>`: the key in the datastore, whose text is there anyway. */
  readonly #key: string;
  readonly #packed: string;

  private constructor(key: string, packed: string) {
    this.#key = key;
    this.#packed = packed;
  }

  /**
   * Reads the text of an endpoint.
   * @param key - ends with `<namespace>/<name>`
   * @returns undefined for a text that a new endpoint's would not repeat to the letter, or that is no endpoint of Podwire
   */
  static read(key: string, text: string): PackedEndpoint | undefined {
    const found = WRITTEN.exec(text);
    if (!found) return undefined;
    const created = found[2] ?? '';
    const addresses = (found[7] ?? '').slice(BEFORE_ADDRESSES.length, -BEHIND_ADDRESSES.length);
    const packed = [
      created === '' ? '' : String(Date.parse(created)),
      addresses.replace(BETWEEN_FIELDS, IN_LIST),
      found[1] ?? '',
      found[8] ?? '',
      ...found.slice(3, 7),
      ...found.slice(9),
    ].join(BETWEEN);
    const endpointKey = keyOf(key);
    const value = unpack(packed, endpointKey);
    // What the text says twice must agree, and nothing may be left out.
    if (!value || !isValid(value) || writtenText(endpointKey, value) !== text) return undefined;
    return new PackedEndpoint(key, packed);
  }

  /** @returns undefined for an endpoint with a text that is not plain ASCII, or that JSON escapes */
  static of({ key, value }: StoredEndpoint): PackedEndpoint | undefined {
    const { attachment, pod, netns, addresses } = value;
    const fields = [
      value.uid,
      pod ? 'k8s' : 'cni',
      attachment.network,
      pod?.uid ?? '',
      netns?.bootId ?? '',
      netns ? String(netns.inode) : '',
      value.nodeName,
      attachment.containerId,
      pod?.name ?? '',
      attachment.interfaceName,
      value.hostInterfaceName,
      value.mac,
    ];
    const entries = addresses.flatMap(({ address, block, poolName, sequenceNumber }) => {
      return [formatAddress(address), formatPrefix(block), poolName, String(sequenceNumber)];
    });
    if (UNPRINTABLE.test([...fields, ...entries].join(''))) return undefined;
    const packed = [String(value.createTimeMs ?? ''), entries.join(IN_LIST), ...fields].join(BETWEEN);
    return new PackedEndpoint(`${key.namespace}/${key.name}`, packed);
  }

  /** The text of a new endpoint, of which {@link of} made this one. */
  static textOf({ key, value }: StoredEndpoint): string {
    return writtenText(key, value);
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

  toJSON(): StoredEndpoint & { readonly kind: 'endpoint' } {
    return { kind: this.kind, key: this.key, value: this.value };
  }
}

interface StoredEndpoint {
  readonly key: EndpointKey;
  readonly value: Endpoint;
}

/** Whoever looks at an endpoint mostly looks again. */
let lastUnpacked: { readonly of: PackedEndpoint; readonly value: Endpoint } | undefined;

const BETWEEN = '\n';
const IN_LIST = '\t';
const UNPRINTABLE = /[^ !#-[\]-~]/;

/** A text without escapes. */
const TEXT = '"([ !#-\\[\\]-~]*)"';
const ANY = '"[ !#-\\[\\]-~]*"';

/** What `encodeEndpoint` makes of a new endpoint, by `JSON.stringify`. */
const WRITTEN = new RegExp(
  `^\\{"kind":"WorkloadEndpoint","apiVersion":"projectcalico\\.org/v3","metadata":\\{(?:"uid":${TEXT},)?` +
    `"creationTimestamp":(?:null|${TEXT}),"name":${ANY},"namespace":${ANY},` +
    `"labels":\\{"projectcalico\\.org/namespace":${ANY},"projectcalico\\.org/orchestrator":${ANY}\\},` +
    `"annotations":\\{"podwire\\.dev/network":${TEXT},(?:"podwire\\.dev/pod-uid":${TEXT},)?` +
    `(?:"podwire\\.dev/boot-id":${TEXT},"podwire\\.dev/netns-inode":${TEXT},)?` +
    `"podwire\\.dev/allocations":"\\[((?:[ !#-\\[\\]-~]|\\\\")*)\\]"\\}\\},` +
    `"spec":\\{"orchestrator":"(k8s|cni)","workload":"","node":${TEXT},` +
    `"containerID":${TEXT},"pod":${TEXT},"endpoint":${TEXT},` +
    `"ipNetworks":\\[(?:${ANY},?)*\\],"interfaceName":${TEXT},"mac":${TEXT}\\}\\}$`,
);

const BEFORE_ADDRESSES = String.raw`{\"address\":\"`;
const BEHIND_ADDRESSES = String.raw`\"}`;
const BETWEEN_FIELDS = /\\"(?:,|\},\{)\\"[a-zA-Z]+\\":\\"/g;
const FIELDS_OF_ADDRESS_COUNT = 4;

function keyOf(key: string): EndpointKey {
  const slash = key.lastIndexOf('/');
  return { namespace: key.slice(key.lastIndexOf('/', slash - 1) + 1, slash), name: key.slice(slash + 1) };
}

/**
 * By index: time, addresses, UID, orchestrator, network, pod's UID, boot ID, inode, node, container ID, pod, interface, interface on
 * the host, MAC address.
 * @returns undefined when a number or an address cannot be read
 */
function unpack(packed: string, { namespace }: EndpointKey): Endpoint | undefined {
  const fields = packed.split(BETWEEN);
  const inode = fields[7] ?? '';
  const addresses = unpackAddresses(fields[1] ?? '');
  if (!addresses || (inode !== '' && !INTEGER.test(inode))) return undefined;
  const text = (index: number): string => fields[index] ?? '';
  return {
    attachment: { network: text(4), containerId: text(9), interfaceName: text(11) },
    uid: text(2),
    createTimeMs: fields[0] === '' ? undefined : Number(fields[0]),
    nodeName: text(8),
    pod: fields[3] === 'k8s' ? { namespace, name: text(10), uid: text(5) } : undefined,
    addresses,
    mac: text(13),
    hostInterfaceName: text(12),
    netns: inode === '' ? undefined : { bootId: text(6), inode: BigInt(inode) },
  };
}

const INTEGER = /^\d{1,20}$/;

function unpackAddresses(entries: string): EndpointAddress[] | undefined {
  const parts = entries === '' ? [] : entries.split(IN_LIST);
  const addresses: EndpointAddress[] = [];
  for (let index = 0; index < parts.length; index += FIELDS_OF_ADDRESS_COUNT) {
    const [addressText = '', blockText = '', poolName = '', number = ''] = index === 0 ? parts : parts.slice(index);
    const address = readAddress(addressText);
    const block = knownPrefix(blockText);
    if (!address || !block || !INTEGER.test(number)) return undefined;
    addresses.push({ address: hostPrefix(address), block, poolName, sequenceNumber: BigInt(number) });
  }
  return addresses;
}

const DECIMAL = /^(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})$/;

/** As `parseAddress`, and much faster for IPv4; a leading zero or a part above 255 shows when it is written again. */
function readAddress(source: string): Address | undefined {
  const parts = DECIMAL.exec(source);
  if (!parts) return parseAddress(source);
  const [, first, second, third, fourth] = parts;
  const value = ((Number(first) * 256 + Number(second)) * 256 + Number(third)) * 256 + Number(fourth);
  return value < 2 ** 32 ? { family: 4, value: BigInt(value) } : undefined;
}

/** What reading the JSON asks of its fields, beyond what {@link writtenText} shows. */
function isValid({ attachment, createTimeMs, mac }: Endpoint): boolean {
  return !Number.isNaN(createTimeMs) && parseMac(mac) === mac && attachmentFaults(attachment).length === 0;
}

/** The text of a new endpoint, where it needs no escapes. */
function writtenText({ namespace, name }: EndpointKey, value: Endpoint): string {
  const { attachment, pod, netns, addresses, uid, createTimeMs } = value;
  const orchestrator = pod ? 'k8s' : 'cni';
  const created = createTimeMs ? `"${formatTime(createTimeMs)}"` : 'null';
  const uidText = uid === '' ? '' : `"uid":"${uid}",`;
  const podUid = pod && pod.uid !== '' ? `"podwire.dev/pod-uid":"${pod.uid}",` : '';
  const netnsText = netns ? `"podwire.dev/boot-id":"${netns.bootId}","podwire.dev/netns-inode":"${netns.inode}",` : '';
  const entries = addresses.map(({ address, block, poolName, sequenceNumber }) => {
    const [addressText, blockText] = [formatAddress(address), formatPrefix(block)];
    return `{\\"address\\":\\"${addressText}\\",\\"block\\":\\"${blockText}\\",\\"pool\\":\\"${poolName}\\",\\"sequenceNumber\\":\\"${sequenceNumber}\\"}`;
  });
  const networks = addresses.map(({ address }) => `"${formatPrefix(address)}"`);
  return (
    `{"kind":"WorkloadEndpoint","apiVersion":"projectcalico.org/v3","metadata":{${uidText}"creationTimestamp":${created},` +
    `"name":"${name}","namespace":"${namespace}","labels":{"projectcalico.org/namespace":"${namespace}",` +
    `"projectcalico.org/orchestrator":"${orchestrator}"},"annotations":{"podwire.dev/network":"${attachment.network}",` +
    `${podUid}${netnsText}"podwire.dev/allocations":"[${entries.join(',')}]"}},"spec":{"orchestrator":"${orchestrator}",` +
    `"workload":"","node":"${value.nodeName}","containerID":"${attachment.containerId}","pod":"${pod?.name ?? ''}",` +
    `"endpoint":"${attachment.interfaceName}","ipNetworks":[${networks.join(',')}],` +
    `"interfaceName":"${value.hostInterfaceName}","mac":"${value.mac}"}}`
  );
}
