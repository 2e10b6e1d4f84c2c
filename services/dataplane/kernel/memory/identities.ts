import type { NetnsIdentity } from '../../pods/kernel.js';
import type { MemoryNamespace } from '../../testing/memory-namespace.js';

/** Where namespaces' files are, and the first inode number there (PROC_DYNAMIC_FIRST and on, fs/proc/generic.c). */
const NSFS_DEVICE = 4n;
const FIRST_INODE = 4_026_531_840n;

/** Who is who among the fake's namespaces. As in the kernel, the inode of one that is gone is soon a successor's. */
export class Identities {
  readonly #identities = new Map<MemoryNamespace, NetnsIdentity>();
  #nextCookie = 1n;

  remove(namespace: MemoryNamespace): void {
    this.#identities.delete(namespace);
  }

  /** A namespace gets its identity when it is asked for first. */
  of(namespace: MemoryNamespace): NetnsIdentity {
    const known = this.#identities.get(namespace);
    if (known) return known;
    const identity = { device: NSFS_DEVICE, inode: this.#freeInode(), cookie: this.#nextCookie++ };
    this.#identities.set(namespace, identity);
    return identity;
  }

  #freeInode(): bigint {
    const taken = new Set([...this.#identities.values()].map(({ inode }) => inode));
    let inode = FIRST_INODE;
    while (taken.has(inode)) inode++;
    return inode;
  }
}
