import { IpFamily } from '@podwire/proto/podwire/ipam/v1/address';
import { parseAddress, type Address, type Family } from '@podwire/shared/net/address';
import type { Checks } from '@podwire/shared/rpc/checks';

export const FAMILIES: Partial<Record<IpFamily, Family>> = {
  [IpFamily.IP_FAMILY_UNSPECIFIED]: 4,
  [IpFamily.IP_FAMILY_IPV4]: 4,
  [IpFamily.IP_FAMILY_IPV6]: 6,
};

export function readFamilies(field: string, messages: readonly IpFamily[], checks: Checks): Family[] {
  const families: Family[] = [];
  messages.forEach((message, index) => {
    const family = FAMILIES[message];
    if (!family) checks.check(`${field}[${index}]`, `is ${message}, which is no family: IPv4 is 4, IPv6 is 6`);
    else if (families.includes(family)) checks.check(`${field}[${index}]`, `is IPv${family} a second time`);
    else families.push(family);
  });
  return families;
}

export function readAddresses(texts: readonly string[], checks: Checks): Address[] {
  return texts.flatMap((text, index) => {
    const address = parseAddress(text);
    checks.check(`addresses[${index}]`, address ? undefined : 'is no IPv4 or IPv6 address without prefix length');
    return address ?? [];
  });
}

/** Each attachment has one address of a family. */
export function checkOnePerFamily(addresses: readonly Address[], families: readonly Family[], checks: Checks): void {
  addresses.forEach(({ family }, index) => {
    const repeated = addresses.slice(0, index).some((other) => other.family === family);
    if (repeated)
      checks.check(`addresses[${index}]`, `is a second IPv${family} address; an attachment has one of each family`);
    if (families.length > 0 && !families.includes(family))
      checks.check(`addresses[${index}]`, `is an IPv${family} address, and families does not have that`);
  });
}
