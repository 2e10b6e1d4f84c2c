import process from 'node:process';

/**
 * Ends every process of a group at once.
 * @param leaderPid - of the process that the group was made for (`detached`)
 */
export function killProcessGroup(leaderPid: number): void {
  try {
    process.kill(-leaderPid, 'SIGKILL');
  } catch {
    // Nobody of it is left.
  }
}
