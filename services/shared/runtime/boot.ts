import { readFileSync } from 'node:fs';

import { Failure } from '../failure/failure.js';
import { messageOf } from '../failure/thrown.js';

/** The current boot of the machine. */
export interface Boot {
  readonly id: string;
  /** Start of the boot, in epoch milliseconds, with a resolution of one second. */
  readonly startedAtMs: number;
}

/** Reads the boot ID of the machine (proc(5)). @throws Failure KERNEL_REFUSED when /proc cannot be read */
export function readBoot(): Boot {
  try {
    const id = readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim();
    const seconds = /^btime (\d+)$/m.exec(readFileSync('/proc/stat', 'utf8'))?.[1];
    if (id === '' || seconds === undefined) throw new Error('boot_id or btime is missing');
    return { id, startedAtMs: Number(seconds) * 1000 };
  } catch (cause) {
    const reason = messageOf(cause);
    throw new Failure('KERNEL_REFUSED', `cannot identify this boot (${reason}); mount /proc`, { cause });
  }
}
