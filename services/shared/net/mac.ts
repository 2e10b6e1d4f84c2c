/** A MAC address in its usual form: six lower-case hexadecimal bytes with colons. Made by {@link parseMac} and the derivations. */
export type Mac = string;

/**
 * Reads a unicast MAC address, in either case.
 * @returns the address in lower case, or undefined when the text is no MAC address, a multicast one, or all zero
 */
export function parseMac(text: string): Mac | undefined {
  if (!/^[0-9a-f]{2}(:[0-9a-f]{2}){5}$/i.test(text)) return undefined;
  const mac = text.toLowerCase();
  const multicast = (Number.parseInt(mac.slice(0, 2), 16) & 1) === 1;
  return multicast || mac === '00:00:00:00:00:00' ? undefined : mac;
}

/** Makes six bytes a locally administered unicast address (IEEE 802, section 8.4): bit 1 of the first byte set, bit 0 clear. */
export function localMac(bytes: Uint8Array): Mac {
  let mac = '';
  for (let index = 0; index < 6; index++) {
    const byte = bytes[index] ?? 0;
    mac += (index === 0 ? '' : ':') + (HEX[index === 0 ? (byte | 0x02) & 0xfe : byte] ?? '');
  }
  return mac;
}

/** Bytes as two digits. */
const HEX: readonly string[] = Array.from({ length: 256 }, (_, byte) => byte.toString(16).padStart(2, '0'));
