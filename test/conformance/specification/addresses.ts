import { isIP, SocketAddress } from 'node:net';

/** The canonical spelling of an address, for comparisons; undefined for an invalid one. */
export function canonicalAddress(text: string): string | undefined {
  const family = isIP(text);
  if (family === 0) return undefined;
  return new SocketAddress({ address: text, family: family === 4 ? 'ipv4' : 'ipv6' }).address;
}

export function familyOf(text: string): 4 | 6 {
  return text.includes(':') ? 6 : 4;
}

/** The canonical spelling of an address with prefix length, host bits kept; undefined for an invalid one. */
export function canonicalCidr(text: string): string | undefined {
  const match = /^([^/]+)\/(\d{1,3})$/.exec(text);
  const address = canonicalAddress(match?.[1] ?? '');
  if (address === undefined) return undefined;
  const bits = Number(match?.[2]);
  return bits <= (familyOf(address) === 4 ? 32 : 128) ? `${address}/${bits}` : undefined;
}
