import type { IncomingMessage } from 'node:http';

import { Failure } from '@podwire/shared/failure/failure';
import { failureOfSignal } from '@podwire/shared/failure/signal';

/** As much as the shim sends (kMaxConfigurationBytes, shim/src/protocol.h). */
const MAX_BODY_BYTES = 4 * 1024 * 1024;

/**
 * The body of a request as text, or why there is none.
 * @param signal - ends the wait for it; with a Failure as its reason
 */
export function readBody(request: IncomingMessage, signal: AbortSignal): Promise<string | Failure> {
  const chunks: Buffer[] = [];
  let bytes = 0;
  return new Promise((resolve) => {
    request.on('data', (chunk: Buffer) => {
      bytes += chunk.length;
      // What comes after the limit is let pass, so that the caller can send all of it and then read the answer.
      if (bytes <= MAX_BODY_BYTES) chunks.push(chunk);
    });
    request.once('end', () => {
      resolve(
        bytes > MAX_BODY_BYTES
          ? new Failure('INVALID_CONFIG', `the network configuration is larger than ${MAX_BODY_BYTES} bytes`)
          : decode(Buffer.concat(chunks)),
      );
    });
    signal.addEventListener('abort', () => resolve(failureOfSignal(signal)), { once: true });
    request.once('close', () => {
      // Every request is closed in the end; the others were answered by then.
      if (!request.readableEnded) resolve(new Failure('CANCELLED', 'the connection ended before the request did'));
    });
  });
}

const UTF8 = new TextDecoder('utf-8', { fatal: true });

function decode(bytes: Buffer): string | Failure {
  try {
    return UTF8.decode(bytes);
  } catch (cause) {
    return new Failure('CONFIG_NOT_JSON', 'the network configuration is not UTF-8, so it is not JSON', { cause });
  }
}
