import { parseAddress } from '@podwire/shared/net/address';
import { hostPrefix } from '@podwire/shared/net/prefix';

import type { Endpoint, EndpointAddress } from '../../allocator/records.js';
import { knownPrefix } from '../../store/record/known-prefixes.js';
import {
  FIELDS_OF_ADDRESS_COUNT,
  NEEDS_CARE,
  readWritten,
  writtenEndpoint,
  writtenText,
  type WrittenEndpoint,
} from '../../store/record/written-endpoint.js';
import type { EndpointKey } from '../view.js';

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
    const written = readWritten(text, keyOf(key));
    const packed = written && pack(written);
    return packed === undefined ? undefined : new PackedEndpoint(key, packed);
  }

  /** @returns undefined for an endpoint that took over another's key, or with a text that is not plain ASCII or that JSON escapes */
  static of({ key, value }: StoredEndpoint): PackedEndpoint | undefined {
    if (value.replaced) return undefined;
    const packed = pack(writtenEndpoint(value));
    return packed === undefined ? undefined : new PackedEndpoint(`${key.namespace}/${key.name}`, packed);
  }

  /**
   * A new endpoint with its text, which {@link read} reads.
   * @returns undefined as {@link of} does
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

  /** As `value.nodeName`, without unpacking all. */
  get nodeName(): string {
    return this.#packed.slice(0, this.#packed.indexOf(BETWEEN));
  }

  /** As `value.attachment.containerId`, without unpacking all. */
  get containerId(): string {
    let start = 0;
    for (let passed = 0; passed < CONTAINER_ID_INDEX; passed++) start = this.#packed.indexOf(BETWEEN, start) + 1;
    return this.#packed.slice(start, this.#packed.indexOf(BETWEEN, start));
  }

  /** Of each of `value.addresses` what says where it is from, without unpacking all. */
  get origins(): readonly EndpointOrigin[] {
    const start = this.#packed.indexOf(BETWEEN) + 1;
    const entries = this.#packed.slice(start, this.#packed.indexOf(BETWEEN, start));
    const parts = entries === '' ? [] : entries.split(IN_LIST);
    const origins: EndpointOrigin[] = [];
    for (let index = 0; index < parts.length; index += FIELDS_OF_ADDRESS_COUNT) {
      const block = knownPrefix(parts[index + 1] ?? '');
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

/** Where an address is from. */
export type EndpointOrigin = Pick<EndpointAddress, 'block' | 'poolName'>;

/** Whoever looks at an endpoint mostly looks again. */
let lastUnpacked: { readonly of: PackedEndpoint; readonly value: Endpoint } | undefined;

const BETWEEN = '\n';
const IN_LIST = '\t';
/** Of what {@link pack} puts together. */
const CONTAINER_ID_INDEX = 9;

function keyOf(key: string): EndpointKey {
  const slash = key.lastIndexOf('/');
  return { namespace: key.slice(key.lastIndexOf('/', slash - 1) + 1, slash), name: key.slice(slash + 1) };
}

/** @returns undefined when it holds more than printable ASCII without escapes, and so perhaps what separates */
function pack(written: WrittenEndpoint): string | undefined {
  const { nodeName, addresses, createTimeMs, uid, orchestrator, network, podUid, bootId, inode } = written;
  const { containerId, podName, interfaceName, hostInterfaceName, mac } = written;
  const first = `${nodeName}${BETWEEN}${addresses.join(IN_LIST)}${BETWEEN}${createTimeMs ?? ''}`;
  const names = [uid, orchestrator, network, podUid, bootId, inode, containerId, podName, interfaceName];
  names.push(hostInterfaceName, mac);
  if (NEEDS_CARE.test(nodeName) || addresses.some((text) => NEEDS_CARE.test(text))) return undefined;
  return NEEDS_CARE.test(names.join('')) ? undefined : [first, ...names].join(BETWEEN);
}

/** By index as {@link pack} has them. */
function unpack(packed: string, { namespace }: EndpointKey): Endpoint | undefined {
  const fields = packed.split(BETWEEN);
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

/** @returns undefined when an address cannot be read */
function unpackAddresses(entries: string): EndpointAddress[] | undefined {
  const parts = entries === '' ? [] : entries.split(IN_LIST);
  const addresses: EndpointAddress[] = [];
  for (let index = 0; index < parts.length; index += FIELDS_OF_ADDRESS_COUNT) {
    const [addressText = '', blockText = '', poolName = '', number = ''] = index === 0 ? parts : parts.slice(index);
    const address = parseAddress(addressText);
    const block = knownPrefix(blockText);
    if (!address || !block) return undefined;
    addresses.push({ address: hostPrefix(address), block, poolName, sequenceNumber: BigInt(number) });
  }
  return addresses;
}
