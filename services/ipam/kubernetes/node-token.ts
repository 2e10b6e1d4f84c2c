import { Failure } from '@podwire/shared/failure/failure';
import { z } from 'zod';

import type { KubernetesApi } from './api.js';

/** Audience of the tokens that nodes show to podwire-ipam. The API server itself does not take them. */
const TOKEN_AUDIENCE = 'podwire-ipam';

/** Service account of the pods of a node, in the namespace of podwire-ipam. */
const NODE_SERVICE_ACCOUNT = 'podwire-node';

/** Key of `extra` with the node of the pod that a token is bound to (Kubernetes 1.30 and newer). */
const NODE_NAME_KEY = 'authentication.kubernetes.io/node-name';

/** Status of a TokenReview (authentication.k8s.io/v1). */
const reviewSchema = z.object({
  status: z.object({
    authenticated: z.boolean().default(false),
    error: z.string().default(''),
    audiences: z.array(z.string()).default([]),
    user: z
      .object({ username: z.string().default(''), extra: z.record(z.string(), z.array(z.string())).default({}) })
      .default({ username: '', extra: {} }),
  }),
});

/**
 * The node on which the pod runs that a token is bound to.
 * @throws Failure ACCESS_DENIED for any other token, UNREACHABLE, DEADLINE_EXCEEDED, CANCELLED
 */
export async function nodeOfToken(api: KubernetesApi, token: string, signal: AbortSignal): Promise<string> {
  const { body } = await api.send({
    method: 'POST',
    path: '/apis/authentication.k8s.io/v1/tokenreviews',
    body: {
      apiVersion: 'authentication.k8s.io/v1',
      kind: 'TokenReview',
      spec: { token, audiences: [TOKEN_AUDIENCE] },
    },
    signal,
  });
  return nodeOfReview(body, api.namespace);
}

/**
 * The node that a review proves.
 * @param review - a TokenReview with its status
 * @param namespace - of podwire-ipam and the nodes' service account
 * @throws Failure ACCESS_DENIED
 */
export function nodeOfReview(review: unknown, namespace: string): string {
  const parsed = reviewSchema.safeParse(review);
  const denied = (reason: string): Failure => new Failure('ACCESS_DENIED', `token: ${reason}`);
  if (!parsed.success) throw denied('the API server answered with something else than a TokenReview');
  const { authenticated, error, audiences, user } = parsed.data.status;
  if (!authenticated) throw denied(`the API server does not accept it${error === '' ? '' : `: ${error}`}`);
  if (!audiences.includes(TOKEN_AUDIENCE)) throw denied(`it is not for the audience ${TOKEN_AUDIENCE}`);
  const expected = `system:serviceaccount:${namespace}:${NODE_SERVICE_ACCOUNT}`;
  if (user.username !== expected) throw denied(`it belongs to ${user.username}; nodes use ${expected}`);
  const [node] = user.extra[NODE_NAME_KEY] ?? [];
  if (node === undefined || node === '')
    throw denied('it is not bound to a pod on a node; use a projected token, and Kubernetes 1.30 or newer');
  return node;
}
