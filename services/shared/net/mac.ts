/** A MAC address in its usual form: six lower-case hexadecimal bytes with colons. Created by {@link parseMac} and {@link localMac}. */
export type Mac = string;

/**
 * Parses a unicast MAC address, in either case.
 * @returns the address in lower case, or undefined when the text is not a MAC address, or a multicast or all-zero one
 */
export function parseMac(text: string): Mac | undefined {
  if (!/^[0-9a-f]{2}(:[0-9a-f]{2}){5}$/i.test(text)) return undefined;
  const mac = text.toLowerCase();
  const multicast = (Number.parseInt(mac.slice(0, 2), 16) & 1) === 1;
  return multicast || mac === '00:00:00:00:00:00' ? undefined : mac;
}

/**
 * Converts six bytes to a locally administered unicast address (IEEE 802, section 8.4): bit 1 of the first byte set, bit 0 clear.
 * @param digits - the bytes in lower-case hexadecimal digits
 */
export function localMac(digits: string): Mac {
  const flagged = (Number.parseInt(digits.charAt(1), 16) | 0x2) & 0xe;
  let mac = digits.charAt(0) + flagged.toString(16);
  for (let at = 2; at < 12; at += 2) mac += `:${digits.slice(at, at + 2)}`;
  return mac;
}
