import { hash } from 'node:crypto';

/**
 * SHA-256 of an inventory, as nodes compute it too.
 * @param lines - one for each allocation, with its line feed
 */
export function inventoryDigest(lines: readonly string[]): Buffer {
  return hash('sha256', lines.toSorted().join(''), 'buffer');
}
