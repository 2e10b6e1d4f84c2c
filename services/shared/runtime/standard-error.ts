import process from 'node:process';

import { pino, type DestinationStream } from 'pino';

/** Lines that wait for a reader, or for a disk with room, in bytes; what comes on top is lost. */
const MAX_UNWRITTEN_BYTES = 1024 * 1024;

/** After so long what could not be written is tried again, twice as long each time that nothing could. */
const FIRST_RETRY_MS = 10;
const LAST_RETRY_MS = 1000;

/** So long a process that exits waits for a reader of what it has not written yet. */
const EXIT_MS = 1000;

/**
 * Standard error for log lines, each written immediately if possible. A process that serves pods must neither end nor
 * block because its log cannot be written: with a full disk, or a pipe or socket that is not read (as of a container
 * whose runtime hangs), up to {@link MAX_UNWRITTEN_BYTES} of lines are buffered. A stalled terminal does block.
 * @param onLost - receives the number of dropped lines once writing works again
 */
export function openStandardError(onLost: (lines: number) => void): DestinationStream {
  let waitsUntilMs = -Infinity;
  const stream = pino.destination({
    // Asked for like this, Node.js sees to it that a pipe or a socket that is full refuses a write, and does not make it wait.
    dest: process.stderr.fd,
    sync: true,
    maxLength: MAX_UNWRITTEN_BYTES,
    retryEAGAIN: () => performance.now() < waitsUntilMs,
  });
  let retryMs = FIRST_RETRY_MS;
  let retry: NodeJS.Timeout | undefined;
  stream.on('write', () => (retryMs = FIRST_RETRY_MS));
  stream.on('error', () => {
    retry ??= setTimeout(() => {
      retry = undefined;
      retryMs = Math.min(2 * retryMs, LAST_RETRY_MS);
      stream.write('');
    }, retryMs).unref();
  });

  let lost = 0;
  const tell = (): void => {
    const lines = lost;
    lost = 0;
    if (lines > 0) onLost(lines);
  };
  stream.on('drop', (text: string) => {
    if (lost === 0) stream.once('drain', tell);
    lost += text.split('\n').length - 1;
  });
  process.on('exit', () => {
    waitsUntilMs = performance.now() + EXIT_MS;
    stream.write('');
    tell();
  });
  return stream;
}
