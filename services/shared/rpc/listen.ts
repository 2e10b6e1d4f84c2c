import { chmodSync, lstatSync, mkdirSync, rmSync } from 'node:fs';
import { connect } from 'node:net';
import { dirname } from 'node:path';

import { Failure } from '../failure/failure.js';

const OWNER_ONLY_DIRECTORY = 0o700;
const OWNER_ONLY_SOCKET = 0o600;

/**
 * Makes way for a unix socket that only its owner (root) can reach: the directory is made with mode 0700 where it is missing, and
 * what a dead process left at the path is removed.
 * @throws Failure INVALID_SETTINGS when something that is no socket is at the path, or a living process answers there
 */
export async function prepareSocket(path: string): Promise<void> {
  mkdirSync(dirname(path), { recursive: true, mode: OWNER_ONLY_DIRECTORY });
  const found = lstatSync(path, { throwIfNoEntry: false });
  if (!found) return;
  if (!found.isSocket()) {
    throw new Failure('INVALID_SETTINGS', `cannot listen at ${path}: a file that is no socket is there; remove it`);
  }
  if (await answers(path)) {
    throw new Failure('INVALID_SETTINGS', `cannot listen at ${path}: another process answers there; stop it first`);
  }
  rmSync(path);
}

/** Leaves the socket to its owner alone. Until then the umask that `runProcess` sets keeps others out. */
export function restrictSocket(path: string): void {
  chmodSync(path, OWNER_ONLY_SOCKET);
}

function answers(path: string): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(path);
    const done = (answered: boolean) => {
      socket.destroy();
      resolve(answered);
    };
    socket.once('connect', () => done(true)).once('error', () => done(false));
  });
}
