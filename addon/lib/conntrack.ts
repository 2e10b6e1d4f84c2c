/** The filter of connection tracking entries, its checks, and listed entries. */
import { isIP } from 'node:net';

import { ArgumentError } from './errors.js';
import type { NativeConntrackFilter } from './native.js';
import { checkAddress, checkArray, checkInteger, checkRecord, PORT, PROTOCOLS } from './scalars.js';

/** Which entries to delete: flows of an address, or flows to ports in both families. */
export type ConntrackFilter =
  /** IPv4 or IPv6, as original source or destination, or as source of the replies. */
  | { readonly address: string }
  | {
      /** `tcp`, `udp`, `sctp`, `icmp` or `icmpv6`. */
      readonly protocol: string;
      /**
       * Original destination ports, 1 to 65535, at least one. Each call reads the kernel's whole table, so one call for many ports is
       * faster than many calls.
       */
      readonly destinationPorts: readonly number[];
    };

/** The filter in the addon's form, once for each family. */
export function checkConntrackFilter(filter: ConntrackFilter): NativeConntrackFilter[] {
  checkRecord('filter', filter);
  if ('address' in filter) {
    const address = checkAddress('filter.address', filter.address);
    return [{ family: isIP(address) === 4 ? 4 : 6, address, protocol: null, destinationPorts: [] }];
  }
  const protocol = PROTOCOLS.get(filter.protocol);
  if (protocol === undefined) {
    throw new ArgumentError('filter.protocol', `must be one of ${[...PROTOCOLS.keys()].join(', ')}`);
  }
  const destinationPorts = checkPorts(filter.destinationPorts);
  return FAMILIES.map((family) => ({ family, address: null, protocol, destinationPorts }));
}

const FAMILIES = [4, 6] as const;

function checkPorts(ports: readonly number[]): readonly number[] {
  checkArray('filter.destinationPorts', ports);
  if (ports.length === 0) throw new ArgumentError('filter.destinationPorts', 'must have a port');
  return ports.map((port, position) => checkInteger(`filter.destinationPorts[${position}]`, port, PORT));
}

/** Addresses in the addon's form. */
export function checkEnds(addresses: readonly string[]): readonly string[] {
  checkArray('addresses', addresses);
  return addresses.map((address, position) => checkAddress(`addresses[${position}]`, address));
}

/** The head of an entry; src/netfilter/conntrack.h describes it. */
const HEAD_BYTES = 40;
const SOURCE = 8;
const DESTINATION = 24;

/** An entry of connection tracking. Its source is the one before, its destination the one after any translation. */
export class TrackedConnection {
  /** Equal for connections with the same protocol, source, destination and destination port. */
  readonly key: string;
  readonly #bytes: Buffer;

  constructor(bytes: Buffer) {
    this.#bytes = bytes;
    this.key = bytes.toString('latin1', 4, HEAD_BYTES);
  }

  get protocol(): number {
    return this.#bytes.readUInt8(5);
  }

  /** 4 or 16 bytes in network order. */
  get source(): Buffer {
    return this.#address(SOURCE);
  }

  get destination(): Buffer {
    return this.#address(DESTINATION);
  }

  /** 0 for protocols without ports. */
  get destinationPort(): number {
    return this.#bytes.readUInt16BE(6);
  }

  #address(at: number): Buffer {
    return this.#bytes.subarray(at, at + (this.#bytes.readUInt8(4) === 4 ? 4 : 16));
  }

  /** The entries in the addon's form. */
  static join(connections: readonly TrackedConnection[]): Buffer {
    return Buffer.concat(connections.map((connection) => connection.#bytes));
  }
}

/** Reads entries one after another, as there may be 100,000 of them. */
export function* readConnections(bytes: Buffer): IterableIterator<TrackedConnection> {
  for (let at = 0; at < bytes.length;) {
    const end = at + bytes.readUInt32BE(at);
    yield new TrackedConnection(bytes.subarray(at, end));
    at = end;
  }
}

export function describeConntrack(filter: ConntrackFilter): string {
  return 'address' in filter ? filter.address : `${filter.protocol} port ${filter.destinationPorts.join(', ')}`;
}
