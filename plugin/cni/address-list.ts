import type { Violation } from '@podwire/shared/failure/failure';
import { formatAddress, parseAddress, type Address } from '@podwire/shared/net/address';
import { parseMac, type Mac } from '@podwire/shared/net/mac';
import { splitCidr } from '@podwire/shared/net/prefix';

/** A value that was asked for, and where. */
export interface Asked<Value> {
  /** The place as its writer knows it: `CNI_ARGS IP`, `runtimeConfig.ips`. */
  readonly place: string;
  readonly value: Value;
}

/** Addresses that were asked for by themselves: one of a family at most, in their usual text form. */
export type AskedAddresses = Asked<readonly string[]>;

export type AskedMac = Asked<Mac>;

/** Notes a fault of a place. */
export type Refuse = (violation: Violation) => void;

/**
 * Reads addresses that are asked for. A prefix length is let pass and has no effect: a pod's address stands alone.
 * @returns undefined when there are none, or when they are faulty
 */
export function readAddresses(place: string, texts: readonly string[], refuse: Refuse): AskedAddresses | undefined {
  const addresses: Address[] = [];
  for (const text of texts) {
    const address = parseAddress(text) ?? splitCidr(text)?.address;
    if (!address) {
      refuse({ field: place, reason: `has ${JSON.stringify(text)}, which is no IP address` });
      return undefined;
    }
    if (addresses.some(({ family }) => family === address.family)) {
      refuse({ field: place, reason: `has two IPv${address.family} addresses; an interface gets one of each family` });
      return undefined;
    }
    addresses.push(address);
  }
  return addresses.length === 0 ? undefined : { place, value: addresses.map(formatAddress) };
}

/** Reads a MAC address that is asked for. @returns undefined when it is empty or faulty */
export function readMac(place: string, text: string, refuse: Refuse): AskedMac | undefined {
  if (text === '') return undefined;
  const value = parseMac(text);
  if (value !== undefined) return { place, value };
  refuse({ field: place, reason: `is ${JSON.stringify(text)}, which is no unicast MAC address` });
  return undefined;
}

/** Whether an address in its usual text form is one of IPv6. */
export function isIpv6(address: string): boolean {
  return address.includes(':');
}
