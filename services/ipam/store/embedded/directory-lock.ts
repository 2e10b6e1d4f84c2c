import { Failure } from '@podwire/shared/failure/failure';
import { tryLockDirectory, type DirectoryLock } from '@podwire/shared/runtime/directory-lock';

/**
 * Keeps a datastore's directory to one process, until it closes the datastore or dies.
 * @param owner - this process, as the message of those it keeps out names it: its PID
 * @throws Failure STORE_IN_USE naming the directory and the owner
 */
export async function lockDirectory(directory: string, owner: string): Promise<DirectoryLock> {
  const outcome = await tryLockDirectory({ directory, name: 'lock', owner });
  if ('lock' in outcome) return outcome.lock;
  const { holder, isSilent } = outcome;
  throw new Failure(
    'STORE_IN_USE',
    `the datastore in ${directory} is open in the process with PID ${holder}${isSilent ? ', which does not answer' : ''}: stop that one, or give this one another directory`,
    { details: { directory, pid: holder } },
  );
}
