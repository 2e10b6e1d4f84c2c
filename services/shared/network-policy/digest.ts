import { hash } from 'node:crypto';

import { formatAddress } from '../net/address.js';
import type { PortMember, SetMember } from './policy.js';

/** Bytes of the SHA-256 that a member's hash has. */
const HASH_BYTES = 8;

/**
 * The hash of a set's member. The digest of a set is the sum of these hashes modulo 2^64: a node and podwire-ipam compute it of
 * their own copies, member by member, and equal sets are not sent again.
 */
export function memberHash(member: SetMember | PortMember): bigint {
  const { address, sequenceNumber } = member;
  const [protocol, port] = 'port' in member ? [member.protocol, member.port] : [0, 0];
  const text = `${formatAddress(address)} ${sequenceNumber} ${protocol} ${port}`;
  return BigInt(`0x${hash('sha256', text, 'hex').slice(0, 2 * HASH_BYTES)}`);
}
