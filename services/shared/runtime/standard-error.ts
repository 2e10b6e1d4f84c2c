import process from 'node:process';

import { pino, type DestinationStream } from 'pino';

/** Size of the buffer for lines that cannot be written, in bytes. Further lines are dropped. */
const MAX_UNWRITTEN_BYTES = 1024 * 1024;

/** Back-off before a failed write is retried. It doubles with each failure. */
const FIRST_RETRY_MS = 10;
const LAST_RETRY_MS = 1000;

/** Timeout for writing the buffer when the process exits, in milliseconds. */
const EXIT_MS = 1000;

/**
 * Standard error for log lines, each written immediately if possible. A process that serves pods must neither end nor
 * block because its log cannot be written. On a full disk, or if no process reads the pipe or socket, as when the container
 * runtime hangs, up to {@link MAX_UNWRITTEN_BYTES} of lines are buffered. A stalled terminal does block.
 * @param onLost - receives the number of dropped lines once writing works again
 */
export function openStandardError(onLost: (lines: number) => void): DestinationStream {
  let waitsUntilMs = -Infinity;
  const stream = pino.destination({
    // The access to `process.stderr` makes Node.js set a pipe or socket to non-blocking, so that a write to a full one fails.
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

  let lostLines = 0;
  const reportLost = (): void => {
    const lines = lostLines;
    lostLines = 0;
    if (lines > 0) onLost(lines);
  };
  stream.on('drop', (text: string) => {
    if (lostLines === 0) stream.once('drain', reportLost);
    lostLines += text.split('\n').length - 1;
  });
  process.on('exit', () => {
    waitsUntilMs = performance.now() + EXIT_MS;
    stream.write('');
    reportLost();
  });
  return stream;
}
