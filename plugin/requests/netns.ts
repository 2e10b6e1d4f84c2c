import type { NetnsIdentity } from '@podwire/shared/attachment/allocation';
import { statfsSync, statSync, type BigIntStats } from 'node:fs';

import { Failure } from '@podwire/shared/failure/failure';
import type { Boot } from '@podwire/shared/runtime/boot';

export interface NetnsReader {
  /**
   * Identity of the network namespace at a path.
   * @throws Failure INVALID_NETNS when the path is missing, is not a network namespace, or is the node's own and that is not allowed
   */
  identify(path: string, options?: { readonly allowsOwn: boolean }): NetnsIdentity;
}

/** File system type of namespaces in statfs(2) (linux/magic.h). */
const NSFS_MAGIC = 0x6e736673n;

/**
 * Reader for this node. The process runs in the node's network namespace.
 *
 * Does not detect namespaces of another kind, as that requires entering them; the dataplane rejects them. The calls are
 * synchronous: namespaces are in kernel memory, and a thread pool would cost every ADD 0.1 ms.
 */
export function nodeNetnsReader({ id: bootId }: Boot): NetnsReader {
  const own = statSync('/proc/self/ns/net', { bigint: true });
  return {
    identify(path, { allowsOwn } = { allowsOwn: false }) {
      const file = inspectPath(path);
      if (!file.isNamespace)
        throw invalidNetns(path, 'is not a network namespace; use the path of one, as created by ip-netns(8)');
      if (!allowsOwn && file.stats.dev === own.dev && file.stats.ino === own.ino) {
        throw invalidNetns(path, "is the node's own network namespace; use the pod's");
      }
      return { bootId, inode: file.stats.ino };
    },
  };
}

interface NetnsFile {
  readonly stats: BigIntStats;
  readonly isNamespace: boolean;
}

function inspectPath(path: string): NetnsFile {
  try {
    const isNamespace = statfsSync(path, { bigint: true }).type === NSFS_MAGIC;
    return { stats: statSync(path, { bigint: true }), isNamespace };
  } catch (cause) {
    throw invalidNetns(path, 'does not exist or cannot be read; create the namespace before its interface', cause);
  }
}

function invalidNetns(path: string, reason: string, cause?: unknown): Failure {
  return new Failure('INVALID_NETNS', `CNI_NETNS ${path} ${reason}`, { cause });
}
