import { readFileSync } from 'node:fs';

/** Resident memory of a process in MiB (proc(5), smaps_rollup). */
export interface Memory {
  /** All pages, also of mapped files, however many processes map them. */
  readonly rssMib: number;
  /** The same, with each shared page divided among its processes. */
  readonly pssMib: number;
}

export function memoryOf(pid: number): Memory {
  const text = readFileSync(`/proc/${pid}/smaps_rollup`, 'utf8');
  const field = (name: string) => Number(new RegExp(`^${name}:\\s+(\\d+) kB$`, 'm').exec(text)?.[1]) / 1024;
  return { rssMib: field('Rss'), pssMib: field('Pss') };
}
