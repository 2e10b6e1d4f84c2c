import { readFileSync } from 'node:fs';

import { Failure } from '@podwire/shared/failure/failure';
import { messageOf } from '@podwire/shared/failure/thrown';

import type { Boot } from './giving-back.js';

/** Reads which boot of the machine this is (proc(5)). @throws Failure KERNEL_REFUSED when /proc does not tell */
export function readBoot(): Boot {
  try {
    const id = readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim();
    const seconds = /^btime (\d+)$/m.exec(readFileSync('/proc/stat', 'utf8'))?.[1];
    if (id === '' || seconds === undefined) throw new Error('no boot_id, or no btime');
    return { id, startedAtMs: Number(seconds) * 1000 };
  } catch (cause) {
    const reason = messageOf(cause);
    throw new Failure('KERNEL_REFUSED', `cannot tell this boot from others (${reason}): mount /proc`, { cause });
  }
}
