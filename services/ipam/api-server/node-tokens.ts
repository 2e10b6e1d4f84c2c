import { createHash } from 'node:crypto';

import { Failure } from '@podwire/shared/failure/failure';
import { failureOfSignal } from '@podwire/shared/failure/signal';
import { messageOf } from '@podwire/shared/failure/thrown';
import type { ProvenCaller, TokenVerifier } from '@podwire/shared/rpc/access';
import type { Clock } from '@podwire/shared/runtime/clock';
import type { Logger } from '@podwire/shared/runtime/log';
import { formatCaller, type NetworkCaller } from '@podwire/shared/tls/caller';

import type { KubernetesApi } from './api.js';
import { reviewToken } from './token-review.js';
import { TEST_ACCOUNT, TokenSignatures, type TokenClaims } from './token-signatures.js';

/** Age of a review from which on it is repeated. Reviews and streams are checked every few seconds: within a minute. */
const REVIEW_AFTER_MS = 35_000;

/** How long a refused token that the API server has signed is refused without another review, in milliseconds. */
const REFUSED_MS = 60_000;

/** A connection whose token is refused gets the answer after this time, and its next unknown token is read then. */
const REFUSAL_DELAY_MS = 1000;

/** Reviews at once: the API server also serves the node controller. */
const REVIEWS_AT_ONCE = 4;

export interface NodeTokensOptions {
  readonly api: KubernetesApi;
  readonly clock: Clock;
  readonly log: Logger;
}

/** The pod that one or more tokens belong to. */
interface Identity {
  readonly proven: ProvenCaller;
  readonly caller: NetworkCaller;
  /** The latest token, which the next review shows. */
  token: string;
  claims: TokenClaims;
  reviewedMs: number;
  refused: { readonly failure: Failure; readonly sinceMs: number } | undefined;
}

/**
 * The nodes, and the chart's test, that prove themselves with the service account tokens of their pods. Difficulties:
 *
 * - Anybody who reaches the port may send tokens. So only a token that the API server has signed for a node's pod is
 *   reviewed, a connection has one unknown token read at a time and waits after a refused one, and the signatures of one
 *   source address are checked one after the other.
 * - A call must not wait for the API server. So known tokens are found by their hash, and are reviewed in the background.
 *   While the API server does not answer, they are served until they expire.
 * - The kubelet renews tokens, and streams outlive them. So a stream belongs to the pod, and ends with its last token.
 */
export class NodeTokens implements TokenVerifier {
  readonly #api: KubernetesApi;
  readonly #clock: Clock;
  readonly #log: Logger;
  readonly #signatures: TokenSignatures;
  /** Identities by token hash, with the token's expiry in epoch milliseconds. */
  readonly #tokens = new Map<string, { readonly identity: Identity; readonly untilMs: number }>();
  /** Identities by pod UID. */
  readonly #identities = new Map<string, Identity>();
  /** Tokens that are being verified, by their hash. */
  readonly #pending = new Map<string, Promise<ProvenCaller>>();
  readonly #connections = new Turns();
  readonly #addresses = new Turns();
  #isDown = false;

  constructor({ api, clock, log }: NodeTokensOptions) {
    this.#api = api;
    this.#clock = clock;
    this.#log = log;
    this.#signatures = new TokenSignatures(api, clock);
  }

  verify(token: string, connection: string, signal: AbortSignal): Promise<ProvenCaller> | ProvenCaller {
    const hash = createHash('sha256').update(token).digest('base64');
    const known = this.#known(hash);
    if (known) return known;
    return (
      this.#pending.get(hash) ?? this.#connections.take(connection, () => this.#read(token, hash, connection, signal))
    );
  }

  /**
   * Reviews the tokens whose last review is too old, and forgets the expired ones. To be called every few seconds. Stops
   * when the API server does not answer.
   */
  async review(signal: AbortSignal): Promise<void> {
    const nowMs = this.#clock.nowMs();
    for (const [hash, { untilMs }] of this.#tokens) if (untilMs <= nowMs) this.#tokens.delete(hash);
    for (const [uid, { claims }] of this.#identities) if (claims.untilMs <= nowMs) this.#identities.delete(uid);
    const due = [...this.#identities.values()].filter(
      ({ reviewedMs }) => this.#clock.monotonicMs() - reviewedMs >= REVIEW_AFTER_MS,
    );
    // One iterator for all: each takes the next one that is left.
    const left = due.values();
    const reviewLeft = async (): Promise<void> => {
      for (const identity of left) await this.#reviewAgain(identity, signal);
    };
    await Promise.all(Array.from({ length: REVIEWS_AT_ONCE }, reviewLeft)).catch((error: unknown) => {
      left.return?.();
      if (!this.#isDown) this.#log.warn(`tokens of nodes: served unreviewed until they expire: ${messageOf(error)}`);
      this.#isDown = true;
    });
  }

  /** @throws Failure where the token is known and refused */
  #known(hash: string): ProvenCaller | undefined {
    const known = this.#tokens.get(hash);
    if (!known) return undefined;
    const { refused, proven } = known.identity;
    if (known.untilMs > this.#clock.nowMs() && !refused) return proven;
    if (refused && this.#clock.monotonicMs() - refused.sinceMs < REFUSED_MS) throw refused.failure;
    this.#tokens.delete(hash);
    return undefined;
  }

  /** Reads the next unknown token of a connection. A refusal is answered late, so that it paces its sender. */
  async #read(token: string, hash: string, connection: string, signal: AbortSignal): Promise<ProvenCaller> {
    if (signal.aborted) throw failureOfSignal(signal);
    try {
      const known = this.#known(hash) ?? this.#pending.get(hash);
      if (known) return await known;
      const verified = this.#verifyNew(token, hash, connection).finally(() => this.#pending.delete(hash));
      this.#pending.set(hash, verified);
      return await verified;
    } catch (error) {
      if (error instanceof Failure && error.code === 'ACCESS_DENIED')
        await new Promise<void>((resolve) => this.#clock.after(REFUSAL_DELAY_MS, resolve));
      throw error;
    }
  }

  async #verifyNew(token: string, hash: string, connection: string): Promise<ProvenCaller> {
    const address = connection.slice(0, connection.lastIndexOf(':'));
    const claims = await this.#addresses.take(address, () => this.#signatures.read(token));
    const reviewedMs = this.#clock.monotonicMs();
    const failure = await reviewToken(this.#api, token, claims);
    const identity = this.#identities.get(claims.podUid) ?? this.#newIdentity(token, claims, reviewedMs);
    this.#tokens.set(hash, { identity, untilMs: claims.untilMs });
    if (failure) {
      this.#refuse(identity, failure);
      throw failure;
    }
    this.#identities.set(claims.podUid, identity);
    if (claims.untilMs >= identity.claims.untilMs) Object.assign(identity, { token, claims, reviewedMs });
    return identity.proven;
  }

  #newIdentity(token: string, claims: TokenClaims, reviewedMs: number): Identity {
    const caller: NetworkCaller = claims.isOfTest
      ? { kind: 'network', role: 'reader', name: TEST_ACCOUNT, runsTests: true }
      : { kind: 'network', role: 'node', name: claims.nodeName };
    const check = (): void => {
      if (identity.refused) throw identity.refused.failure;
      if (identity.claims.untilMs <= this.#clock.nowMs()) throw denied('it has expired; send the renewed one');
    };
    const identity: Identity = { caller, token, claims, reviewedMs, refused: undefined, proven: { caller, check } };
    return identity;
  }

  async #reviewAgain(identity: Identity, signal: AbortSignal): Promise<void> {
    const reviewedMs = this.#clock.monotonicMs();
    const failure = await reviewToken(this.#api, identity.token, identity.claims, signal);
    this.#isDown = false;
    identity.reviewedMs = reviewedMs;
    if (failure) this.#refuse(identity, failure);
  }

  #refuse(identity: Identity, failure: Failure): void {
    identity.refused = { failure, sinceMs: this.#clock.monotonicMs() };
    this.#identities.delete(identity.claims.podUid);
    this.#log.warn(
      { 'podwire.node': identity.claims.nodeName },
      `${formatCaller(identity.caller)}: ${failure.message}`,
    );
  }
}

/** Runs the actions of each key one after the other. */
class Turns {
  readonly #last = new Map<string, Promise<unknown>>();

  take<Result>(key: string, act: () => Promise<Result>): Promise<Result> {
    const turn = (this.#last.get(key) ?? Promise.resolve()).then(act);
    const ended = turn
      .catch(() => undefined)
      .then(() => {
        if (this.#last.get(key) === ended) this.#last.delete(key);
      });
    this.#last.set(key, ended);
    return turn;
  }
}

function denied(reason: string): Failure {
  return new Failure('ACCESS_DENIED', `token: ${reason}`);
}
