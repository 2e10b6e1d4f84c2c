import { constants } from 'node:fs';
import { open, statfs } from 'node:fs/promises';
import { join } from 'node:path';

import { setProcDirectory } from '@podwire/netlink';
import { Failure } from '@podwire/shared/failure/failure';
import { codeOf } from '@podwire/shared/failure/thrown';

/** File system type of proc (linux/magic.h). */
const PROC_SUPER_MAGIC = 0x9fa0;

/** A sysctl of every kernel. It is opened for writing, which a read-only mount refuses, and not written. */
const PROBED_SYSCTL = 'sys/net/ipv4/ip_forward';

const SETTING = 'PODWIRE_NODE_PROC_DIRECTORY';

/** Remedy for a container, whose own /proc/sys is read-only. */
const REMEDY = `in a container, mount the host's /proc at /host/proc and set ${SETTING}=/host/proc`;

/**
 * Makes the process read and write sysctls below a mount of proc, after checking that they can be written: each ADD writes some.
 * @throws Failure INVALID_SETTINGS when the directory is not proc or its sysctls cannot be opened for writing
 */
export async function useProcDirectory(directory: string): Promise<void> {
  const reason = await faultOf(directory);
  if (reason) throw new Failure('INVALID_SETTINGS', `${SETTING}: ${reason.text}`, { cause: reason.cause });
  setProcDirectory(directory);
}

interface Fault {
  readonly text: string;
  readonly cause?: unknown;
}

async function faultOf(directory: string): Promise<Fault | undefined> {
  const path = join(directory, PROBED_SYSCTL);
  try {
    const { type } = await statfs(path);
    if (type !== PROC_SUPER_MAGIC) return { text: `${directory} is not a mount of proc; ${REMEDY}` };
    const file = await open(path, constants.O_WRONLY);
    await file.close();
    return undefined;
  } catch (cause) {
    return { text: textOf(codeOf(cause), { directory, path }), cause };
  }
}

function textOf(
  code: string | undefined,
  { directory, path }: { readonly directory: string; readonly path: string },
): string {
  if (code === 'EROFS') return `${join(directory, 'sys')} is read-only, so no pod can be added; ${REMEDY}`;
  if (code === 'ENOENT' || code === 'ENOTDIR') {
    return `${directory} is not a mount of proc: it has no ${PROBED_SYSCTL}; ${REMEDY}`;
  }
  return `${path} cannot be opened for writing (${code ?? 'unknown error'}); run as root with CAP_NET_ADMIN, and allow it in the node's AppArmor or SELinux policy`;
}
