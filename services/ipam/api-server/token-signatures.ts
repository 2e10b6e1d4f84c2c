import { Failure } from '@podwire/shared/failure/failure';
import { messageOf } from '@podwire/shared/failure/thrown';
import type { Clock } from '@podwire/shared/runtime/clock';
import { createLocalJWKSet, errors, jwtVerify, type JWTVerifyGetKey } from 'jose';
import { z } from 'zod';

import type { KubernetesApi } from './api.js';

/** Audience of the tokens that nodes show to podwire-ipam. The API server itself does not take them. */
export const TOKEN_AUDIENCE = 'podwire-ipam';

/** Service accounts of podwire-ipam's namespace whose tokens it takes: of the pods of a node, and of the chart's test. */
const NODE_ACCOUNT = 'podwire-node';
export const TEST_ACCOUNT = 'podwire-test';

/** Algorithms that the API server signs with, by the kind of its key. All of them are asymmetric. */
const ALGORITHMS = ['RS256', 'ES256', 'ES384', 'ES512'];

const MAX_TOKEN_LENGTH = 16_384;

/** How far the clocks of API server and podwire-ipam may differ, in seconds. */
const CLOCK_TOLERANCE_S = 60;

/** The keys are read again after this time, in milliseconds, for a token whose key is unknown. */
const KEYS_INTERVAL_MS = 5000;

/** The claims of a projected token (Kubernetes 1.30 and newer). */
const claimsSchema = z.object({
  sub: z.string(),
  exp: z.number(),
  'kubernetes.io': z.object({
    node: z.object({ name: z.string().min(1), uid: z.string().min(1) }),
    pod: z.object({ uid: z.string().min(1) }),
  }),
});

/** Claims of a token. */
export interface TokenClaims {
  /** Name of the service account for the API server. */
  readonly username: string;
  readonly isOfTest: boolean;
  readonly nodeName: string;
  readonly nodeUid: string;
  readonly podUid: string;
  /** When it expires, with the tolerance of clocks, in epoch milliseconds. */
  readonly untilMs: number;
}

interface IssuerKeys {
  readonly issuer: string;
  readonly keyOf: JWTVerifyGetKey;
}

/** Reads tokens with the keys of the API server, without asking it. */
export class TokenSignatures {
  readonly #api: KubernetesApi;
  readonly #clock: Clock;
  #keys: Promise<IssuerKeys> | undefined;
  #readMs = -Infinity;

  constructor(api: KubernetesApi, clock: Clock) {
    this.#api = api;
    this.#clock = clock;
  }

  /**
   * The claims of a token that the API server has signed for the pod of a node.
   * @throws Failure ACCESS_DENIED for every other token; UNREACHABLE or DEADLINE_EXCEEDED while the keys are unknown
   */
  async read(token: string): Promise<TokenClaims> {
    if (token === '') throw denied('the call has none; send one, or connect with a client certificate');
    if (token.length > MAX_TOKEN_LENGTH) throw denied(`it is longer than ${MAX_TOKEN_LENGTH} bytes`);
    let payload: unknown;
    try {
      payload = await this.#verify(token, await this.#currentKeys());
    } catch (error) {
      if (error instanceof Failure) throw error;
      throw denied(`it is not one of the API server's: ${messageOf(error)}`, error);
    }
    const parsed = claimsSchema.safeParse(payload);
    const [ofNode, ofTest] = [NODE_ACCOUNT, TEST_ACCOUNT].map(
      (account) => `system:serviceaccount:${this.#api.namespace}:${account}`,
    );
    if (!parsed.success)
      throw denied('it is not bound to a pod on a node; use a projected token, and Kubernetes 1.30 or newer');
    const { sub, exp, 'kubernetes.io': bound } = parsed.data;
    if (sub !== ofNode && sub !== ofTest) throw denied(`it belongs to ${sub}; nodes use ${ofNode}`);
    return {
      username: sub,
      isOfTest: sub === ofTest,
      nodeName: bound.node.name,
      nodeUid: bound.node.uid,
      podUid: bound.pod.uid,
      untilMs: (exp + CLOCK_TOLERANCE_S) * 1000,
    };
  }

  async #verify(token: string, { issuer, keyOf }: IssuerKeys): Promise<unknown> {
    const options = {
      ...{ issuer, audience: TOKEN_AUDIENCE, algorithms: ALGORITHMS },
      clockTolerance: CLOCK_TOLERANCE_S,
      currentDate: new Date(this.#clock.nowMs()),
    };
    try {
      return (await jwtVerify(token, keyOf, options)).payload;
    } catch (error) {
      // The API server may sign with a new key since the keys were read.
      if (!(error instanceof errors.JWKSNoMatchingKey) || !this.#mayReadAgain()) throw error;
      this.#keys = undefined;
      return (await jwtVerify(token, (await this.#currentKeys()).keyOf, options)).payload;
    }
  }

  #mayReadAgain(): boolean {
    return this.#clock.monotonicMs() - this.#readMs >= KEYS_INTERVAL_MS;
  }

  #currentKeys(): Promise<IssuerKeys> {
    if (this.#keys) return this.#keys;
    this.#readMs = this.#clock.monotonicMs();
    const keys = readKeys(this.#api);
    this.#keys = keys;
    // Until then, a failure is the answer to every token.
    keys.catch(() =>
      this.#clock.after(KEYS_INTERVAL_MS, () => {
        if (this.#keys === keys) this.#keys = undefined;
      }),
    );
    return keys;
  }
}

/** The API server has its keys in the first form only, and what it says of itself in the second. */
const KEYS_ACCEPT = 'application/jwk-set+json, application/json';

const discoverySchema = z.object({ issuer: z.string() });
const keysSchema = z.object({ keys: z.array(z.looseObject({ kty: z.string() })) });

/** @throws Failure UNREACHABLE, DEADLINE_EXCEEDED */
async function readKeys(api: KubernetesApi): Promise<IssuerKeys> {
  const read = async <Answer>(path: string, schema: z.ZodType<Answer>): Promise<Answer> => {
    const { body } = await api.send({ method: 'GET', path, accept: KEYS_ACCEPT }).catch((error: unknown) => {
      throw new Failure('UNREACHABLE', messageOf(error), { cause: error });
    });
    const parsed = schema.safeParse(body);
    if (parsed.success) return parsed.data;
    throw new Failure('UNREACHABLE', `${api.subject}: GET ${path}: answered without the keys of its tokens`);
  };
  const [{ issuer }, keys] = await Promise.all([
    read('/.well-known/openid-configuration', discoverySchema),
    read('/openid/v1/jwks', keysSchema),
  ]);
  return { issuer, keyOf: createLocalJWKSet(keys) };
}

function denied(reason: string, cause?: unknown): Failure {
  return new Failure('ACCESS_DENIED', `token: ${reason}`, { cause });
}
