import { InterceptingCall, type Interceptor } from '@grpc/grpc-js';
import type { Etcd3 } from 'etcd3';

import type { Credentials } from '../../engine/etcd/credentials.js';

/**
 * How etcd refuses a token that it issued (api/v3rpc/rpctypes/error.go): it has expired, or was forgotten with a restart or a new password;
 * or, of a JSON web token, users or roles have changed since. Whatever came with it has not been executed.
 */
const STALE_TEXTS = ['etcdserver: invalid auth token', 'etcdserver: revision of auth store is old'];

/** What the first of them is called here: etcd3 repeats a call by itself that fails with that very text, for ever. */
const STALE = 'etcd does not take the token any more';

/**
 * A user's token, which comes with every request. Not etcd3's own: that keeps one for as long as etcd says nothing but that it is invalid,
 * and asks for it on a connection of its own, without a time-out and by whatever proxy the environment names.
 */
export class UserToken {
  readonly #user: NonNullable<Credentials['user']>;
  #latest: Promise<string> | undefined;

  constructor(user: NonNullable<Credentials['user']>) {
    this.#user = user;
  }

  /** The latest; a new one where there is none. @throws Error of etcd3 */
  get({ auth }: Etcd3): Promise<string> {
    const { name, password } = this.#user;
    if (this.#latest) return this.#latest;
    const asked = auth.authenticate({ name, password }).then(({ token }) => token);
    this.#latest = asked;
    asked.catch(() => this.forget(asked));
    return asked;
  }

  /** A token was refused, or there was none: the next one is a new one. */
  forget(asked: Promise<string>): void {
    if (this.#latest === asked) this.#latest = undefined;
  }
}

/** Whether a request failed for its token alone. */
export function isOfStaleToken(error: unknown): boolean {
  return error instanceof Error && [STALE, ...STALE_TEXTS].some((text) => error.message.includes(text));
}

/** Sends a token along. */
export function bearing(token: string): Interceptor {
  return (options, nextCall) =>
    new InterceptingCall(nextCall(options), {
      start: (metadata, _listener, next) => {
        // etcd3 uses one object for all calls.
        const own = metadata.clone();
        own.set('token', token);
        next(own, {
          onReceiveStatus: (status, forward) => {
            const isStale = STALE_TEXTS.some((text) => status.details.includes(text));
            forward(isStale ? { ...status, details: STALE } : status);
          },
        });
      },
    });
}
