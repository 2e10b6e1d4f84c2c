import { createHash } from 'node:crypto';

/** Number of hexadecimal digits, as in the container IDs of containerd. */
const DIGITS = 64;

/**
 * The container ID under which a container is kept of which nothing but the path of its network namespace is known: derived, so
 * that whoever comes with the same path means the same container.
 */
export function containerIdOfNetns(netns: string): string {
  return createHash('sha256').update(netns).digest('hex').slice(0, DIGITS);
}
