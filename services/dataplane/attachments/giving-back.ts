import { formatAddress } from '@podwire/shared/net/address';

import type { AttachmentRecord } from '../pods/record.js';
import type { HeldAddress, HeldEndpoint } from './address-book.js';

/** What a node gives back to IPAM without being asked: pure decisions, each of which needs a proof that nobody lives on it. */

/**
 * The addresses that a dead attachment gives back, of what IPAM has recorded for it. None when that is for another namespace: the
 * attachment was added again since. Where IPAM was not told the namespace, those that the dead pod had.
 */
export function addressesOfDead(
  { network, identity, bootId }: AttachmentRecord,
  endpoint: HeldEndpoint,
): readonly HeldAddress[] {
  const { netns, addresses } = endpoint;
  if (netns) return netns.bootId === bootId && netns.inode === identity.inode ? addresses : [];
  const had = new Set(network.addresses.map(formatAddress));
  return addresses.filter(({ address }) => had.has(address));
}

/**
 * What IPAM has of a pod whose whole wire is gone: all of its addresses, for its namespace; all of them, without the endpoint that tells
 * the namespace; something else, or not all; or none of them any more.
 */
export type LossVerdict = 'held' | 'endpoint-lost' | 'differs' | 'released';

export function judgeLoss(
  { network, identity, bootId }: AttachmentRecord,
  endpoint: HeldEndpoint | undefined,
): LossVerdict {
  const held = new Set(endpoint?.addresses.map(({ address }) => address));
  const missing = network.addresses.map(formatAddress).filter((address) => !held.has(address));
  if (missing.length === network.addresses.length) return 'released';
  if (missing.length > 0) return 'differs';
  if (!endpoint?.netns) return 'endpoint-lost';
  const { netns } = endpoint;
  return netns.bootId === bootId && netns.inode === identity.inode ? 'held' : 'differs';
}

export interface Boot {
  readonly id: string;
  /** When it was, in epoch milliseconds. */
  readonly startedAtMs: number;
}

/** What becomes of an endpoint of this node after a start. */
export interface EndpointVerdict {
  readonly died: boolean;
  /** Why it stays although it is of another boot. */
  readonly spared?: string;
}

/**
 * Whether an endpoint died with an earlier boot of the node. Two machines that go by one node name by mistake tell different boots,
 * too: what was made since this one began is none of its past.
 * @param isAttached - whether this boot has a wire for the attachment
 */
export function judgeEndpoint(endpoint: HeldEndpoint, boot: Boot, isAttached: boolean): EndpointVerdict {
  const { netns, createdAtMs } = endpoint;
  if (!netns || netns.bootId === '' || netns.bootId === boot.id) return { died: false };
  if (isAttached) return { died: false, spared: 'the attachment is wired in this boot' };
  if (createdAtMs !== undefined && createdAtMs >= boot.startedAtMs) {
    return { died: false, spared: 'they were given since this boot began; do two machines have one node name?' };
  }
  return { died: true };
}
