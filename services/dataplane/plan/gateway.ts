import { HOST_MAC } from '@podwire/shared/attachment/names';
import { formatAddress, type Address, type Family } from '@podwire/shared/net/address';
import type { Mac } from '@podwire/shared/net/mac';

/**
 * Next hop of every pod (as Calico). Nobody has the one of IPv4: a neighbour entry, and proxy ARP, lead to the host's end. The one
 * of IPv6 is on every host end, and the same everywhere, as it derives from the MAC address that they share.
 */
export const GATEWAY_ADDRESS: Readonly<Record<Family, Address>> = {
  4: { family: 4, value: 0xa9_fe_01_01n },
  6: linkLocal(HOST_MAC),
};

/** {@link GATEWAY_ADDRESS} as text: `169.254.1.1` and `fe80::ecee:eeff:feee:eeee`. */
export const GATEWAY: Readonly<Record<Family, string>> = {
  4: formatAddress(GATEWAY_ADDRESS[4]),
  6: formatAddress(GATEWAY_ADDRESS[6]),
};

/** The host end's IPv6 address with the length that the kernel gives it when it makes one itself. */
export const HOST_LINK_LOCAL = `${GATEWAY[6]}/64`;

/**
 * The link-local address of an interface that derives it from its MAC address (RFC 4291, sections 2.5.6 and appendix A): fe80::/64
 * and the modified EUI-64, with the universal/local bit turned and ff:fe in the middle. The kernel's `addr_gen_mode` 0.
 */
export function linkLocal(mac: Mac): Address {
  const [a = 0, b = 0, c = 0, d = 0, e = 0, f = 0] = mac.split(':').map((byte) => Number.parseInt(byte, 16));
  const interfaceId = [a ^ 0x02, b, c, 0xff, 0xfe, d, e, f].reduce((id, byte) => (id << 8n) | BigInt(byte), 0n);
  return { family: 6, value: (0xfe80n << 112n) | interfaceId };
}
