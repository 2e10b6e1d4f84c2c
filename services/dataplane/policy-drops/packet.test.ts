import { formatAddress } from '@podwire/shared/net/address';
import fc from 'fast-check';
import { expect, test } from 'vitest';

import { firstPacket, ICMP, ICMPV6, ipPacket, ipv4Fragments, SCTP, TCP, UDP } from '../testing/frames.js';
import { readHeaders } from './packet.js';

const V4 = { source: '10.65.0.1', destination: '198.51.100.9' };
const V6 = { source: 'fd00:65::1', destination: '2001:db8::9' };

const textOf = (bytes: Buffer) => {
  const headers = readHeaders(bytes);
  if (!headers) return undefined;
  const { source, destination, protocol, ports } = headers;
  const port = (side: 'source' | 'destination') => (ports ? ` ${ports[side]}` : '');
  return `${formatAddress(source)}${port('source')} > ${formatAddress(destination)}${port('destination')} ${protocol}`;
};

test.each([
  [V4, TCP, '10.65.0.1 4000 > 198.51.100.9 80 6'],
  [V4, UDP, '10.65.0.1 4000 > 198.51.100.9 80 17'],
  [V4, SCTP, '10.65.0.1 4000 > 198.51.100.9 80 132'],
  [V4, ICMP, '10.65.0.1 > 198.51.100.9 1'],
  [V6, TCP, 'fd00:65::1 4000 > 2001:db8::9 80 6'],
  [V6, UDP, 'fd00:65::1 4000 > 2001:db8::9 80 17'],
  [V6, SCTP, 'fd00:65::1 4000 > 2001:db8::9 80 132'],
  [V6, ICMPV6, 'fd00:65::1 > 2001:db8::9 58'],
])('addresses, protocol and ports of %o, protocol %i', (ends, protocol, text) => {
  const packet = firstPacket({ ...ends, protocol, sourcePort: 4000, port: 80 });
  expect(textOf(packet)).toBe(text);
  expect(textOf(packet.subarray(0, text.includes('::') ? 44 : 24))).toBe(text);
});

test('the ports follow options of IPv4', () => {
  const packet = firstPacket({ ...V4, protocol: UDP, sourcePort: 4000, port: 53 });
  const withOptions = Buffer.concat([packet.subarray(0, 20), Buffer.alloc(8), packet.subarray(20)]);
  withOptions.writeUInt8(0x47, 0);
  expect(textOf(withOptions)).toBe('10.65.0.1 4000 > 198.51.100.9 53 17');
});

test('a later fragment has no ports', () => {
  const packet = firstPacket({ ...V4, protocol: TCP, sourcePort: 4000, port: 80 });
  const [first, last] = ipv4Fragments(packet, 7, 8);
  expect(textOf(first)).toBe('10.65.0.1 4000 > 198.51.100.9 80 6');
  expect(textOf(last)).toBe('10.65.0.1 > 198.51.100.9 6');
});

test.each([
  ['destination options', 60, '11 01 000000000000 0000000000000000', ' 4000', ' 53'],
  ['a first fragment', 44, '11 00 0001 00000007', ' 4000', ' 53'],
  ['a later fragment', 44, '11 00 0009 00000007', '', ''],
])('the protocol of IPv6 follows %s', (_, protocol, header, source, destination) => {
  const udp = firstPacket({ ...V6, protocol: UDP, sourcePort: 4000, port: 53 }).subarray(40);
  const payload = Buffer.concat([Buffer.from(header.replaceAll(' ', ''), 'hex'), udp]);
  expect(textOf(ipPacket({ ...V6, protocol, payload }))).toBe(`fd00:65::1${source} > 2001:db8::9${destination} 17`);
});

test('any bytes are read within their bounds', () => {
  const first = fc.constantFrom(0x45, 0x4f, 0x40, 0x60, 0x70);
  fc.assert(
    fc.property(first, fc.uint8Array({ maxLength: 127 }), (version, rest) => {
      readHeaders(Buffer.from([version, ...rest]));
    }),
  );
  expect(readHeaders(Buffer.alloc(0))).toBeUndefined();
});
