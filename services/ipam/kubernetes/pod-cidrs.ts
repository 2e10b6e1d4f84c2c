import { Failure } from '@podwire/shared/failure/failure';

import type { KubernetesApi } from './api.js';
import { readPodCidrs } from './objects.js';

/**
 * The networks that Kubernetes has assigned to a node for its pods.
 * @returns none if there is no Node of that name
 * @throws Failure as {@link KubernetesApi.send}
 */
export async function podCidrsOf(
  api: KubernetesApi,
  nodeName: string,
  signal: AbortSignal,
): Promise<readonly string[]> {
  const path = `/api/v1/nodes/${encodeURIComponent(nodeName)}`;
  const { status, body } = await api.send({ method: 'GET', path, signal });
  if (status === 404) return [];
  const cidrs = readPodCidrs(body);
  if (!cidrs) throw new Failure('UNREACHABLE', `${api.subject}: GET ${path}: sent no Node`);
  return cidrs;
}
