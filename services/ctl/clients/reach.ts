import { connect, type Socket } from 'node:net';

import { Failure } from '@podwire/shared/failure/failure';

const UNIX = 'unix:';

const REASONS: Readonly<Record<string, string>> = {
  ENOENT: 'there is no such socket: the service does not run on this machine, or listens elsewhere',
  ECONNREFUSED: 'nobody listens there: the service does not run',
  EACCES: 'this user may not use it: be root',
};

/**
 * Fails immediately if nothing listens, where a gRPC channel would retry until its deadline.
 * @param service - for the message: `podwire-ipam`
 * @param place - `unix:/path` or `host:port`, and the option that sets another one
 * @throws Failure UNREACHABLE, DEADLINE_EXCEEDED
 */
export function assertReachable(
  service: string,
  place: { readonly address: string; readonly option: string },
  timeoutMs: number,
): Promise<void> {
  const { address, option } = place;
  const subject = `${service} at ${address}`;
  return new Promise((resolve, reject) => {
    const socket = open(address);
    const end = (failure?: Failure): void => {
      socket.destroy();
      if (failure) reject(failure);
      else resolve();
    };
    socket.setTimeout(timeoutMs, () =>
      end(
        new Failure('DEADLINE_EXCEEDED', `${subject}: no connection within ${timeoutMs} ms; give more with --timeout`),
      ),
    );
    socket.once('connect', () => end());
    socket.once('error', (error: NodeJS.ErrnoException) => {
      const reason = REASONS[error.code ?? ''] ?? error.message;
      end(new Failure('UNREACHABLE', `${subject}: ${reason}; name another place with ${option}`, { cause: error }));
    });
  });
}

function open(address: string): Socket {
  if (address.startsWith(UNIX)) return connect(address.slice(UNIX.length));
  const at = address.lastIndexOf(':');
  return connect(Number(address.slice(at + 1)), address.slice(0, at).replace(/^\[(.*)\]$/, '$1'));
}
