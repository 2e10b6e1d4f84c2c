import { readFileSync, statfsSync, statSync, type BigIntStats } from 'node:fs';

import { Failure } from '@podwire/shared/failure/failure';

import type { NetnsIdentity } from '../clients/clients.js';

/** Which boot of the machine this is. */
interface Boot {
  readonly id: string;
  /** Epoch milliseconds, to the second. */
  readonly startedAtMs: number;
}

/** Looks at network namespaces. */
export interface NetnsReader {
  readonly boot: Boot;
  /**
   * Identity of the network namespace at a path.
   * @throws Failure INVALID_NETNS when the path is missing, is no network namespace, or is the node's own, unless that is allowed
   */
  identify(path: string, options?: { readonly allowsOwn: boolean }): NetnsIdentity;
}

const MS_PER_SECOND = 1000;

/** What statfs(2) calls the file system of namespaces (NSFS_MAGIC, linux/magic.h). */
const NSFS_MAGIC = 0x6e736673n;

/**
 * A reader for the node that this process runs on, its own network namespace being the node's.
 *
 * Which kind a namespace is cannot be seen without entering it, so that one of another kind is refused by the dataplane. The calls
 * are synchronous: namespaces are in the kernel's memory, and a thread pool would cost every ADD 0.1 ms.
 */
export function nodeNetnsReader(): NetnsReader {
  const bootId = readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim();
  const startedAtSeconds = Number(/^btime (\d+)$/m.exec(readFileSync('/proc/stat', 'utf8'))?.[1]);
  const own = statSync('/proc/self/ns/net', { bigint: true });
  return {
    boot: { id: bootId, startedAtMs: startedAtSeconds * MS_PER_SECOND },
    identify(path, { allowsOwn } = { allowsOwn: false }) {
      const found = look(path);
      if (!found.isNamespace)
        throw invalid(path, 'is no network namespace; give the path of one, as ip-netns(8) makes');
      if (!allowsOwn && found.stats.dev === own.dev && found.stats.ino === own.ino) {
        throw invalid(path, "is the node's own network namespace; give the pod's");
      }
      return { bootId, inode: found.stats.ino };
    },
  };
}

interface Found {
  readonly stats: BigIntStats;
  readonly isNamespace: boolean;
}

function look(path: string): Found {
  try {
    const isNamespace = statfsSync(path, { bigint: true }).type === NSFS_MAGIC;
    return { stats: statSync(path, { bigint: true }), isNamespace };
  } catch (cause) {
    throw invalid(path, 'does not exist or cannot be read; create the namespace before its interface', cause);
  }
}

function invalid(path: string, reason: string, cause?: unknown): Failure {
  return new Failure('INVALID_NETNS', `CNI_NETNS ${path} ${reason}`, { cause });
}
