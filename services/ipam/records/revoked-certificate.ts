/** A certificate that is not accepted any more. */
export interface RevokedCertificate {
  /** Number as {@link readSerialNumber} writes it. */
  readonly serialNumber: string;
  /** Name of its holder, for people; empty if unknown. */
  readonly name: string;
  /** Epoch milliseconds. */
  readonly revokedAtMs: number;
  /** Epoch milliseconds; undefined if unknown. */
  readonly expiresAtMs: number | undefined;
}

/**
 * A serial number (RFC 5280, section 4.1.2.2: at most 20 bytes) as certificates are compared: upper-case hexadecimal
 * digits without leading zeros.
 * @param text - also with colons and in lower case, as other programs print it
 * @returns undefined for another text
 */
export function readSerialNumber(text: string): string | undefined {
  const digits = text.replaceAll(':', '').replace(/^0+(?=.)/, '');
  return /^[0-9A-Fa-f]{1,40}$/.test(digits) ? digits.toUpperCase() : undefined;
}
