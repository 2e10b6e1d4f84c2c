import { connect, type Socket } from 'node:net';

import { Failure } from '@podwire/shared/failure/failure';

const UNIX = 'unix:';

const REASONS: Readonly<Record<string, string>> = {
  ENOENT: 'the socket does not exist: the service does not run on this machine, or listens elsewhere',
  ECONNREFUSED: 'connection refused: the service does not run',
  EACCES: 'permission denied: run podwirectl as root',
};

/**
 * Fails immediately if no process listens. A gRPC channel would retry until its deadline.
 * @param service - for the message: `podwire-ipam`
 * @param endpoint - `unix:/path` or `host:port`, and the option that sets another address
 * @throws Failure UNREACHABLE, DEADLINE_EXCEEDED
 */
export function assertReachable(
  service: string,
  endpoint: { readonly address: string; readonly option: string },
  timeoutMs: number,
): Promise<void> {
  const { address, option } = endpoint;
  const subject = `${service} at ${address}`;
  return new Promise((resolve, reject) => {
    const socket = connectTo(address);
    const end = (failure?: Failure): void => {
      socket.destroy();
      if (failure) reject(failure);
      else resolve();
    };
    socket.setTimeout(timeoutMs, () =>
      end(
        new Failure('DEADLINE_EXCEEDED', `${subject}: no connection within ${timeoutMs} ms; raise it with --timeout`),
      ),
    );
    socket.once('connect', () => end());
    socket.once('error', (error: NodeJS.ErrnoException) => {
      const reason = REASONS[error.code ?? ''] ?? error.message;
      end(new Failure('UNREACHABLE', `${subject}: ${reason}; set another address with ${option}`, { cause: error }));
    });
  });
}

function connectTo(address: string): Socket {
  if (address.startsWith(UNIX)) return connect(address.slice(UNIX.length));
  const at = address.lastIndexOf(':');
  return connect(Number(address.slice(at + 1)), address.slice(0, at).replace(/^\[(.*)\]$/, '$1'));
}
