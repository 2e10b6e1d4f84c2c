import process from 'node:process';

/**
 * Kills all processes of a group.
 * @param leaderPid - process ID of the group's leader, started with `detached`
 */
export function killProcessGroup(leaderPid: number): void {
  try {
    process.kill(-leaderPid, 'SIGKILL');
  } catch {
    // No process of the group is left.
  }
}
