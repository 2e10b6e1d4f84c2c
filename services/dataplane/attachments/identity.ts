import type { NetnsIdentity } from '../pods/kernel.js';

/**
 * Whether two looks saw one namespace. Without the kernel's cookie, one inode is no proof: the next namespace often gets it.
 */
export function compareIdentities(a: NetnsIdentity, b: NetnsIdentity): 'same' | 'other' | 'unknown' {
  if (a.device !== b.device || a.inode !== b.inode) return 'other';
  if (a.cookie === null || b.cookie === null) return 'unknown';
  return a.cookie === b.cookie ? 'same' : 'other';
}
