import { isIP } from 'node:net';

import { ChannelCredentials, credentials } from '@grpc/grpc-js';

/** Options that grpc-js passes to `tls.connect`, which its type omits. */
type Connector = ReturnType<ChannelCredentials['_createSecureConnector']> & {
  readonly connectionOptions: { servername?: unknown };
};

let isDone = false;

/**
 * Makes the TLS connections of grpc-js to an IP address, of any library that uses it, name no server: RFC 6066 section 3
 * allows only host names, and Node.js 26 refuses the address that grpc-js gives. The server's certificate must have the
 * address, as before. Idempotent.
 */
export function omitAddressesAsServerNames(): void {
  if (isDone) return;
  isDone = true;
  const prototype = Reflect.getPrototypeOf(credentials.createSsl());
  const create: unknown = prototype && Reflect.get(prototype, '_createSecureConnector');
  if (!(prototype instanceof ChannelCredentials) || typeof create !== 'function') throw unknownRelease();
  prototype._createSecureConnector = function (...input) {
    const connector: unknown = Reflect.apply(create, this, input);
    if (!isConnector(connector)) throw unknownRelease();
    const { connectionOptions: options } = connector;
    if (typeof options.servername === 'string' && isIP(options.servername) !== 0) options.servername = '';
    return connector;
  };
}

function isConnector(value: unknown): value is Connector {
  return typeof value === 'object' && value !== null && 'connectionOptions' in value;
}

function unknownRelease(): Error {
  return new Error(
    'this release of @grpc/grpc-js makes TLS connections in another way; use the release of package-lock.json',
  );
}
