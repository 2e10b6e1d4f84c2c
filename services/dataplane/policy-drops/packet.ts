import type { Address, Family } from '@podwire/shared/net/address';

/** The fields of a packet's headers that name its connection. */
export interface PacketHeaders {
  readonly source: Address;
  readonly destination: Address;
  /** IANA's number. */
  readonly protocol: number;
  /** Undefined: the protocol has no ports, or the packet is a later fragment. */
  readonly ports: { readonly source: number; readonly destination: number } | undefined;
}

/** TCP, UDP, UDP-Lite, SCTP and DCCP begin with their ports. */
const WITH_PORTS: readonly number[] = [6, 17, 33, 132, 136];

/** Extension headers of IPv6 (RFC 8200, section 4): hop-by-hop options, routing, destination options; and their fragment header. */
const EXTENSIONS: readonly number[] = [0, 43, 60];
const FRAGMENT = 44;

const IPV6_BYTES = 40;

/** Reads the headers of a packet, which may be cut behind them; undefined for bytes that are not IPv4 or IPv6. */
export function readHeaders(bytes: Buffer): PacketHeaders | undefined {
  const version = (bytes[0] ?? 0) >> 4;
  if (version === 4 && bytes.length >= 20) return readIpv4(bytes);
  return version === 6 && bytes.length >= IPV6_BYTES ? readIpv6(bytes) : undefined;
}

function readIpv4(bytes: Buffer): PacketHeaders {
  const protocol = bytes.readUInt8(9);
  const isFirst = (bytes.readUInt16BE(6) & 0x1fff) === 0;
  const headerBytes = (bytes.readUInt8(0) & 0xf) * 4;
  return {
    source: addressAt(bytes, 12, 4),
    destination: addressAt(bytes, 16, 4),
    protocol,
    ports: isFirst ? portsAt(bytes, headerBytes, protocol) : undefined,
  };
}

function readIpv6(bytes: Buffer): PacketHeaders {
  let protocol = bytes.readUInt8(6);
  let at = IPV6_BYTES;
  let isFirst = true;
  while (at + 8 <= bytes.length && (EXTENSIONS.includes(protocol) || protocol === FRAGMENT)) {
    if (protocol === FRAGMENT) isFirst = bytes.readUInt16BE(at + 2) >> 3 === 0;
    const headerBytes = protocol === FRAGMENT ? 8 : (bytes.readUInt8(at + 1) + 1) * 8;
    protocol = bytes.readUInt8(at);
    at += headerBytes;
    if (!isFirst) break;
  }
  return {
    source: addressAt(bytes, 8, 6),
    destination: addressAt(bytes, 24, 6),
    protocol,
    ports: isFirst ? portsAt(bytes, at, protocol) : undefined,
  };
}

function portsAt(bytes: Buffer, at: number, protocol: number): PacketHeaders['ports'] {
  if (!WITH_PORTS.includes(protocol) || at + 4 > bytes.length) return undefined;
  return { source: bytes.readUInt16BE(at), destination: bytes.readUInt16BE(at + 2) };
}

function addressAt(bytes: Buffer, at: number, family: Family): Address {
  if (family === 4) return { family, value: BigInt(bytes.readUInt32BE(at)) };
  return { family, value: (bytes.readBigUInt64BE(at) << 64n) | bytes.readBigUInt64BE(at + 8) };
}
