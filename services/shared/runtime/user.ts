import process from 'node:process';

/** The user that the process acts as: owner of the files it makes. */
export function currentUserId(): number {
  return process.geteuid?.() ?? 0;
}

/** This process's ID in its own PID namespace. */
export function currentProcessId(): number {
  return process.pid;
}
