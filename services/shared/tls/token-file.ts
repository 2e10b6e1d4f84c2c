import { violationsFailure } from '../failure/failure.js';
import type { Clock } from '../runtime/clock.js';
import type { Logger } from '../runtime/log.js';
import { FileContent, readNamedFile, type NamedFile } from './tls-files.js';

/** The kubelet replaces a token when a fifth of its life is left: minutes before it expires. */
const READ_INTERVAL_MS = 10_000;

export interface TokenDeps {
  readonly clock: Clock;
  readonly log: Logger;
}

/**
 * The token of a file, which is read again with a later call.
 * @throws Failure INVALID_SETTINGS when it cannot be read now
 */
export function tokenOf(file: NamedFile, { clock, log }: TokenDeps): () => string {
  const content = new FileContent({
    read: () => readToken(file),
    isSame: (one, other) => one === other,
    report: ({ message }) => log.warn(`token: the former one stays in use: ${message}`),
  });
  let readMs = clock.monotonicMs();
  return () => {
    if (clock.monotonicMs() - readMs >= READ_INTERVAL_MS) {
      readMs = clock.monotonicMs();
      content.readAgain();
    }
    return content.content;
  };
}

function readToken(file: NamedFile): string {
  const token = readNamedFile(file).toString().trim();
  if (/^[\w.-]+$/.test(token)) return token;
  const violation = { field: file.setting, reason: 'names a file without a token of a service account' };
  throw violationsFailure('INVALID_SETTINGS', 'Settings refused', [violation]);
}
