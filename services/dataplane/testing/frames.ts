import { execFileSync } from 'node:child_process';

import { HOST_MAC } from '@podwire/shared/attachment/names';

import { address } from './pods.js';

/** Packets that a pod's kernel would not send, as frames to the host end. */

/** Protocol numbers (IANA). */
export const ICMP = 1;
export const TCP = 6;
export const UDP = 17;
export const SCTP = 132;
export const IPIP = 4;
export const ICMPV6 = 58;

const ETHER_TYPE = { 4: '0800', 6: '86dd' } as const;
const HOP_LIMIT = 255;

interface Packet {
  readonly source: string;
  readonly destination: string;
  readonly protocol: number;
  /** The part after the IP header, with its checksum, if any. */
  readonly payload: Buffer;
}

/** An IPv4 or IPv6 packet as bytes. */
export function ipPacket({ source, destination, protocol, payload }: Packet): Buffer {
  const [from, to] = [addressBytes(source), addressBytes(destination)];
  if (from.length === 16) {
    const header = Buffer.from([0x60, 0, 0, 0, 0, 0, protocol, HOP_LIMIT]);
    header.writeUInt16BE(payload.length, 4);
    return Buffer.concat([header, from, to, payload]);
  }
  const header = Buffer.concat([Buffer.from([0x45, 0, 0, 0, 0, 0, 0, 0, HOP_LIMIT, protocol, 0, 0]), from, to]);
  header.writeUInt16BE(header.length + payload.length, 2);
  header.writeUInt16BE(checksum(header), 10);
  return Buffer.concat([header, payload]);
}

/**
 * The two fragments of an IPv4 packet (RFC 791, section 3.2).
 * @param firstBytes - of the payload, in the first fragment: a multiple of 8
 */
export function ipv4Fragments(packet: Buffer, id: number, firstBytes: number): [first: Buffer, last: Buffer] {
  const [head, payload] = [packet.subarray(0, 20), packet.subarray(20)];
  const fragment = (part: Buffer, flagsAndOffset: number): Buffer => {
    const header = Buffer.from(head);
    header.writeUInt16BE(header.length + part.length, 2);
    header.writeUInt16BE(id, 4);
    header.writeUInt16BE(flagsAndOffset, 6);
    header.writeUInt16BE(0, 10);
    header.writeUInt16BE(checksum(header), 10);
    return Buffer.concat([header, part]);
  };
  const moreFragments = 0x2000;
  return [
    fragment(payload.subarray(0, firstBytes), moreFragments),
    fragment(payload.subarray(firstBytes), firstBytes / 8),
  ];
}

interface Datagram {
  readonly source: string;
  readonly destination: string;
  readonly port: number;
  readonly data: Buffer | string;
}

/** A UDP packet as bytes. */
export function udpPacket({ source, destination, port, data }: Datagram): Buffer {
  const body = Buffer.from(data);
  const payload = Buffer.concat([Buffer.alloc(8), body]);
  payload.writeUInt16BE(40_000, 0);
  payload.writeUInt16BE(port, 2);
  payload.writeUInt16BE(payload.length, 4);
  payload.writeUInt16BE(checksum(pseudoHeader({ source, destination, protocol: UDP, payload })), 6);
  return ipPacket({ source, destination, protocol: UDP, payload });
}

interface FirstPacket {
  readonly source: string;
  readonly destination: string;
  /** TCP, UDP, SCTP or ICMP of the addresses' family (IANA). */
  readonly protocol: number;
  /** The source port; an echo request's identifier. */
  readonly sourcePort: number;
  readonly port: number;
  /** A later segment of TCP instead: an ACK. */
  readonly isLater?: boolean;
}

/** The first packet of a connection: a SYN, a datagram, an INIT or an echo request. */
export function firstPacket({ source, destination, protocol, sourcePort, port, isLater = false }: FirstPacket): Buffer {
  const [payload, checksumAt] = firstPayload(protocol);
  if (isLater) payload.writeUInt8(TCP_ACK, TCP_FLAGS_AT);
  if (protocol === TCP || protocol === UDP || protocol === SCTP) {
    payload.writeUInt16BE(sourcePort, 0);
    payload.writeUInt16BE(port, 2);
  } else payload.writeUInt16BE(sourcePort, 4);
  const packet = { source, destination, protocol, payload };
  if (protocol === SCTP) payload.writeUInt32LE(crc32c(payload), checksumAt);
  else payload.writeUInt16BE(checksum(protocol === ICMP ? payload : pseudoHeader(packet)), checksumAt);
  return ipPacket(packet);
}

const TCP_FLAGS_AT = 13;
const TCP_ACK = 0x10;

/** The packet's part after the IP header without ports, and the place of the checksum. */
function firstPayload(protocol: number): [payload: Buffer, checksumAt: number] {
  // RFC 9293, section 3.1: sequence number 1, a header of 5 words, SYN, a window of 65535.
  if (protocol === TCP) return [Buffer.from('0000000000000001000000005002ffff00000000', 'hex'), 16];
  if (protocol === UDP) return [Buffer.from('0000000000080000', 'hex'), 6];
  // RFC 9260, section 3.3.2.
  if (protocol === SCTP) return [Buffer.from(`${'0'.repeat(24)}01000014000000010000ffff0001000100000001`, 'hex'), 8];
  return [Buffer.from(protocol === ICMPV6 ? '8000000000000001' : '0800000000000001', 'hex'), 2];
}

interface PacketError {
  readonly source: string;
  readonly destination: string;
  readonly about: Buffer;
}

/** An ICMP error about a packet: its port is unreachable (RFC 792; RFC 4443, section 3.1). */
export function unreachable({ source, destination, about }: PacketError): Buffer {
  const isIpv6 = source.includes(':');
  const payload = Buffer.concat([Buffer.from(isIpv6 ? [1, 4, 0, 0] : [3, 3, 0, 0]), Buffer.alloc(4), about]);
  const packet = { source, destination, protocol: isIpv6 ? ICMPV6 : ICMP, payload };
  payload.writeUInt16BE(checksum(isIpv6 ? pseudoHeader(packet) : payload), 2);
  return ipPacket(packet);
}

/** The checksum of SCTP (RFC 9260, appendix A). */
function crc32c(bytes: Buffer): number {
  let crc = ~0;
  for (const byte of bytes) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit++) crc = crc & 1 ? (crc >>> 1) ^ 0x82f63b78 : crc >>> 1;
  }
  return ~crc >>> 0;
}

/** A neighbour solicitation (RFC 4861, section 4.3) with the sender's MAC address. */
export function solicitation({ source, target, mac }: Readonly<Record<'source' | 'target' | 'mac', string>>): Buffer {
  const head = Buffer.from([135, 0, 0, 0, 0, 0, 0, 0]);
  const option = Buffer.from([1, 1, ...macBytes(mac)]);
  const payload = Buffer.concat([head, addressBytes(target), option]);
  const packet = { source, destination: target, protocol: ICMPV6, payload };
  payload.writeUInt16BE(checksum(pseudoHeader(packet)), 2);
  return ipPacket(packet);
}

/** A frame with a VXLAN header (RFC 7348, section 5). */
export function vxlanData(vni: number, mac: string, packet: Buffer): Buffer {
  const header = Buffer.from([0x08, 0, 0, 0, 0, 0, 0, 0]);
  header.writeUInt32BE(vni << 8, 4);
  return Buffer.concat([header, frame(mac, packet)]);
}

const SENDER = `
import socket, sys
out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
out.bind(('eth0', 0))
for line in sys.stdin:
    out.send(bytes.fromhex(line))
`;

/** Sends packets out of a namespace's `eth0`, in their order; to the host end unless another MAC address is given. */
export function send(namespace: string, packets: readonly Buffer[], mac: string = HOST_MAC): void {
  const input = packets.map((packet) => frame(mac, packet).toString('hex')).join('\n');
  execFileSync('ip', ['netns', 'exec', namespace, 'python3', '-c', SENDER], { input });
}

export function frame(mac: string, packet: Buffer): Buffer {
  const etherType = ETHER_TYPE[(packet[0] ?? 0) >> 4 === 6 ? 6 : 4];
  return Buffer.concat([macBytes(mac), macBytes('02:00:00:00:00:01'), Buffer.from(etherType, 'hex'), packet]);
}

function macBytes(mac: string): Buffer {
  return Buffer.from(mac.replaceAll(':', ''), 'hex');
}

function addressBytes(text: string): Buffer {
  const { family, value } = address(text);
  return Buffer.from(value.toString(16).padStart(family === 4 ? 8 : 32, '0'), 'hex');
}

/** The pseudo-header that checksums of UDP and ICMPv6 include (RFC 8200, section 8.1; RFC 768). */
function pseudoHeader({ source, destination, protocol, payload }: Packet): Buffer {
  const end = Buffer.alloc(8);
  end.writeUInt32BE(payload.length, 0);
  end.writeUInt32BE(protocol, 4);
  return Buffer.concat([addressBytes(source), addressBytes(destination), end, payload]);
}

/** The Internet checksum (RFC 1071); 0 is sent as its other form. */
function checksum(bytes: Buffer): number {
  const even = bytes.length % 2 === 0 ? bytes : Buffer.concat([bytes, Buffer.alloc(1)]);
  let sum = 0;
  for (let at = 0; at < even.length; at += 2) sum += even.readUInt16BE(at);
  while (sum > 0xffff) sum = (sum & 0xffff) + (sum >>> 16);
  return ~sum & 0xffff || 0xffff;
}
