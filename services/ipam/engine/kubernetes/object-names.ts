import { createHash } from 'node:crypto';

/** Names and labels of Calico's objects (libcalico-go/lib/names, lib/backend/k8s/resources). */

/** `10.65.79.0/26` → `10-65-79-0-26`. Not reversible. */
export function cidrName(cidr: string): string {
  return cidr.replace(/[.:/]/g, '-');
}

/** Most characters of an object's name. */
const MAX_NAME_LENGTH = 253;

/** Hexadecimal digits that replace the end of a longer name. */
const HASH_LENGTH = 11;

/** The name of a block affinity: `<owner>-<block>`. */
export function affinityName(owner: string, cidr: string): string {
  const block = cidrName(cidr);
  const name = `${owner}-${block}`;
  if (name.length < MAX_NAME_LENGTH) return name;
  const hash = createHash('sha256').update(`${owner}+${block}`).digest('hex').slice(0, HASH_LENGTH);
  return `${owner.slice(0, MAX_NAME_LENGTH - block.length - hash.length - 2)}-${hash}-${block}`;
}

const BASE32 = 'ABCDEFGHIJKLMNOPQRSTUVWXYZ234567';

/** Value of the label `projectcalico.org/hostname-hash`: SHA3-256 in base 32 (RFC 4648, section 6) without padding. */
export function ownerHash(owner: string): string {
  const digest = createHash('sha3-256').update(owner).digest();
  let text = '';
  let bits = 0;
  let value = 0;
  for (const byte of digest) {
    value = (value << 8) | byte;
    for (bits += 8; bits >= 5; bits -= 5) text += BASE32.charAt((value >>> (bits - 5)) & 31);
    value &= (1 << bits) - 1;
  }
  return bits > 0 ? text + BASE32.charAt((value << (5 - bits)) & 31) : text;
}
