import { parseMac } from '@podwire/shared/net/mac';

/** MAC addresses that share their first bits. The bits behind are zero in `value`. */
export interface MacRange {
  /** The 48 bits as a number. */
  readonly value: bigint;
  /** How many bits count: 0 to 48. */
  readonly length: number;
}

const MAC_BITS = 48;

const FORM = /^([0-9a-f]{2}(?::[0-9a-f]{2}){5})(?:\/(0|[1-9]\d?))?$/i;

/** Reads `02:42:00:00:00:00/16`, or an address alone. @returns undefined when it is neither, or bits behind the length are set */
export function parseMacRange(text: string): MacRange | undefined {
  const [, mac, bits] = FORM.exec(text) ?? [];
  const length = bits === undefined ? MAC_BITS : Number(bits);
  if (mac === undefined || length > MAC_BITS) return undefined;
  const value = valueOf(mac);
  // Alone, it has to be one that an interface can have.
  if (length === MAC_BITS) return parseMac(mac) === undefined ? undefined : { value, length };
  return cut(value, length) === value ? { value, length } : undefined;
}

export function formatMacRange({ value, length }: MacRange): string {
  const digits = value.toString(16).padStart(MAC_BITS / 4, '0');
  const mac = (digits.match(/../g) ?? []).join(':');
  return length === MAC_BITS ? mac : `${mac}/${length}`;
}

/** Whether an address, in its usual form, lies in the range. */
export function macInRange(mac: string, { value, length }: MacRange): boolean {
  return cut(valueOf(mac), length) === value;
}

function valueOf(mac: string): bigint {
  return BigInt(`0x${mac.replaceAll(':', '')}`);
}

function cut(value: bigint, length: number): bigint {
  const behind = BigInt(MAC_BITS - length);
  return (value >> behind) << behind;
}
