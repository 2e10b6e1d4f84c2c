import process from 'node:process';

/** The effective user of the process, which owns the files it creates. */
export function currentUserId(): number {
  return process.geteuid?.() ?? 0;
}

/** This process's ID in its own PID namespace. */
export function currentProcessId(): number {
  return process.pid;
}
