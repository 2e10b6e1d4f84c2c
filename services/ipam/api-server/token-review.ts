import { Failure } from '@podwire/shared/failure/failure';
import { messageOf } from '@podwire/shared/failure/thrown';
import { z } from 'zod';

import type { ApiAnswer, ApiRequest, KubernetesApi } from './api.js';
import { TOKEN_AUDIENCE, type TokenClaims } from './token-signatures.js';

/** Keys of `extra` with the node and the pod that a token is bound to (Kubernetes 1.30 and newer). */
const EXTRA = 'authentication.kubernetes.io/';
const NODE_NAME_KEY = `${EXTRA}node-name`;
const POD_UID_KEY = `${EXTRA}pod-uid`;

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

const nodeSchema = z.object({ metadata: z.object({ uid: z.string() }) });

/**
 * Asks the API server whether the pod of a token and its Node still exist: a review of a pod's token does not look at the
 * Node.
 * @returns why the token is refused; undefined if it is accepted
 * @throws Failure UNREACHABLE when the API server does not answer
 */
export async function reviewToken(
  api: KubernetesApi,
  token: string,
  claims: TokenClaims,
  signal?: AbortSignal,
): Promise<Failure | undefined> {
  const send = (request: ApiRequest): Promise<ApiAnswer> =>
    api.send({ ...request, ...(signal && { signal }) }).catch((error: unknown) => {
      // A role without the permission says nothing about the token.
      throw new Failure('UNREACHABLE', messageOf(error), { cause: error });
    });
  const review = send({
    method: 'POST',
    path: '/apis/authentication.k8s.io/v1/tokenreviews',
    body: {
      apiVersion: 'authentication.k8s.io/v1',
      kind: 'TokenReview',
      spec: { token, audiences: [TOKEN_AUDIENCE] },
    },
  });
  const node = send({
    method: 'GET',
    path: `/api/v1/nodes/${encodeURIComponent(claims.nodeName)}`,
    accept: 'application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1',
  });
  const [reviewed, found] = await Promise.all([review, node]);
  const parsed = reviewSchema.safeParse(reviewed.body);
  const foundNode = found.status === 404 ? undefined : nodeSchema.safeParse(found.body);
  if (!parsed.success || foundNode?.success === false)
    throw new Failure('UNREACHABLE', `${api.subject}: answered with something else than a TokenReview and a Node`);
  const isDeleted = foundNode?.data.metadata.uid !== claims.nodeUid;
  const reason =
    faultOf(parsed.data.status, claims) ?? (isDeleted ? `its Node "${claims.nodeName}" was deleted` : undefined);
  return reason === undefined ? undefined : new Failure('ACCESS_DENIED', `token: ${reason}`);
}

/** Why a review does not prove what a token claims; undefined if it does. */
function faultOf(
  { authenticated, error, audiences, user }: z.infer<typeof reviewSchema>['status'],
  claims: TokenClaims,
): string | undefined {
  if (!authenticated) return `the API server does not accept it${error === '' ? '' : `: ${error}`}`;
  if (!audiences.includes(TOKEN_AUDIENCE)) return `it is not for the audience ${TOKEN_AUDIENCE}`;
  if (user.username !== claims.username) return `it belongs to ${user.username}, and not to ${claims.username}`;
  const isBound = user.extra[NODE_NAME_KEY]?.[0] === claims.nodeName && user.extra[POD_UID_KEY]?.[0] === claims.podUid;
  return isBound ? undefined : 'the API server binds it to another pod or node';
}
