import { ServerInterceptingCall, ServerListenerBuilder, type Metadata, type ServerInterceptor } from '@grpc/grpc-js';

import { Failure } from '../failure/failure.js';
import { statusOfError } from '../failure/status.js';

/**
 * Protocol number of this release, shared by shim, plugin, services and podwirectl. It is incremented by every release
 * whose processes must be distinguished from the previous one; the shim has the same number (`kRelease`,
 * shim/src/protocol.h).
 *
 * Adjacent releases are compatible, so that a cluster can be updated one process at a time: a peer may lack a method
 * (UNIMPLEMENTED), a field (its default) or a name of an enumeration or failure, and the newer side tolerates that. The
 * called side rejects a peer of any other release before it does anything.
 */
export const RELEASE = 1;

/** Largest distance of compatible releases. */
const MAX_RELEASE_DISTANCE = 1;

/** Metadata of a request that states the caller's release. */
const RELEASE_KEY = 'podwire-release';

/**
 * Why two releases are incompatible; undefined when they are compatible. A caller without a release is served: it is not a Podwire
 * process, or of a release without a number.
 * @param own - release of the called service
 * @param stated - release that the caller sent, which may be invalid
 */
export function releaseFault(own: number, stated: string | undefined): string | undefined {
  if (stated === undefined) return undefined;
  const isNumber = /^\d{1,9}$/.test(stated);
  if (isNumber && Math.abs(Number(stated) - own) <= MAX_RELEASE_DISTANCE) return undefined;
  const other = isNumber ? `release ${stated}` : 'an invalid release';
  const range = `${Math.max(0, own - MAX_RELEASE_DISTANCE)} to ${own + MAX_RELEASE_DISTANCE}`;
  return `is of release ${own} and works with releases ${range}, while the caller is of ${other}; update the older of the two, one release at a time`;
}

/** Writes the caller's release into a request's metadata. */
export function writeRelease(metadata: Metadata, release: number): void {
  metadata.set(RELEASE_KEY, String(release));
}

/** Checks the caller's release for all methods of a server, health checks included. It costs no round trip. */
export function releaseInterceptor(release: number): ServerInterceptor {
  return (_, call) =>
    new ServerInterceptingCall(call, {
      start: (next) => {
        const listener = new ServerListenerBuilder().withOnReceiveMetadata((metadata, pass) => {
          const [stated] = metadata.get(RELEASE_KEY);
          const fault = releaseFault(release, stated?.toString());
          if (fault === undefined) pass(metadata);
          else call.sendStatus(statusOfError(new Failure('RELEASE_MISMATCH', `this service ${fault}`)));
        });
        next(listener.build());
      },
    });
}
