/** Entries of connection tracking: filters and their checks. */
import { isIP } from 'node:net';

import { checkDumpFilter } from './check.js';
import { ArgumentError } from './errors.js';
import type { NativeConntrackEntry, NativeConntrackFilter, NativeConntrackTuple } from './native.js';
import type { Family } from './objects.js';
import { checkAddress, checkArray, checkInteger, checkRecord, optional, PORT, PROTOCOLS, UINT8 } from './scalars.js';

/** Which entries; all given fields must match. At least one of `address`, `destination` and `protocol` is given. */
export interface ConntrackFilter {
  /** Default: that of the address; without one, both. */
  readonly family?: Family;
  /** IPv4 or IPv6, as original source or destination, or as source of the replies. Not with `destination`. */
  readonly address?: string;
  /** Original destination: for a translated one, the address before the translation. */
  readonly destination?: string;
  /** `tcp`, `udp`, `sctp`, `icmp`, `icmpv6`, or a number. */
  readonly protocol?: string | number;
  /**
   * Original destination ports, 1 to 65535, at least one; only with a protocol. Each call reads the kernel's whole table, so one
   * call for many ports is faster than many calls.
   */
  readonly destinationPorts?: readonly number[];
}

/** One direction of a flow. Ports are absent where the protocol has none. */
export interface ConntrackTuple {
  readonly source: string;
  readonly sourcePort?: number;
  readonly destination: string;
  readonly destinationPort?: number;
}

/** A flow that the kernel remembers; `reply` shows how it is translated. */
export interface ConntrackEntry {
  readonly family: Family;
  /** IPPROTO_*: 6 for TCP, 17 for UDP. */
  readonly protocol: number;
  readonly original: ConntrackTuple;
  readonly reply: ConntrackTuple;
}

function checkProtocol(path: string, value: unknown): number {
  const number = typeof value === 'string' ? PROTOCOLS.get(value) : value;
  return checkInteger(path, number, UINT8);
}

/** The filter in the addon's form, once for each family. */
export function checkConntrackFilter(
  filter: ConntrackFilter & { readonly maxCount?: number; readonly timeoutMs?: number },
): NativeConntrackFilter[] {
  checkRecord('filter', filter);
  const { address, destination, protocol, destinationPorts } = filter;
  if (address !== undefined && destination !== undefined) {
    throw new ArgumentError('filter.destination', 'must not be given together with address');
  }
  const wanted =
    optional(address, (value) => checkAddress('filter.address', value)) ??
    optional(destination, (value) => checkAddress('filter.destination', value));
  const number = optional(protocol, (value) => checkProtocol('filter.protocol', value));
  if (wanted === null && number === null) {
    throw new ArgumentError('filter', 'must have an address, a destination or a protocol');
  }
  const ports = checkPorts(destinationPorts);
  if (ports.length > 0 && number === null) throw new ArgumentError('filter.protocol', 'must be given with a port');
  const { family, maxCount, timeoutMs } = checkDumpFilter({
    ...(filter.family === undefined ? {} : { family: filter.family }),
    ...(filter.maxCount === undefined ? {} : { maxCount: filter.maxCount }),
    ...(filter.timeoutMs === undefined ? {} : { timeoutMs: filter.timeoutMs }),
  });
  const ofAddress = wanted === null ? undefined : isIP(wanted);
  if (family !== 0 && ofAddress !== undefined && ofAddress !== family) {
    throw new ArgumentError('filter.family', 'must be that of the address');
  }
  const families =
    ofAddress === 4 || family === 4 ? [4 as const] : ofAddress === 6 || family === 6 ? [6 as const] : BOTH;
  return families.map((each) => ({
    family: each,
    address: wanted,
    anywhere: address !== undefined,
    protocol: number,
    destinationPorts: ports,
    maxCount,
    timeoutMs,
  }));
}

const BOTH = [4, 6] as const;

function checkPorts(ports: readonly number[] | undefined): readonly number[] {
  if (ports === undefined) return [];
  checkArray('filter.destinationPorts', ports);
  if (ports.length === 0) throw new ArgumentError('filter.destinationPorts', 'must have a port');
  return ports.map((port, position) => checkInteger(`filter.destinationPorts[${position}]`, port, PORT));
}

export function describeConntrack({ address, destination, protocol, destinationPorts }: ConntrackFilter): string {
  const parts = [
    address ?? (destination && `to ${destination}`),
    protocol,
    destinationPorts && `port ${destinationPorts.join(', ')}`,
  ];
  return parts.filter((part) => part !== undefined).join(' ');
}

function toTuple({ source, sourcePort, destination, destinationPort }: NativeConntrackTuple): ConntrackTuple {
  return {
    source: source ?? '',
    ...(sourcePort === null ? {} : { sourcePort }),
    destination: destination ?? '',
    ...(destinationPort === null ? {} : { destinationPort }),
  };
}

export function toConntrackEntry({ family, protocol, original, reply }: NativeConntrackEntry): ConntrackEntry {
  return { family, protocol, original: toTuple(original), reply: toTuple(reply) };
}
