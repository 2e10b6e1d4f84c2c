import { Failure } from '@podwire/shared/failure/failure';
import { z } from 'zod';

import type { KubernetesApi } from './api.js';

/** Accepted by every list: names and labels without spec and status, a tenth of the bytes. */
export const METADATA_ONLY = 'application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1';

/** Items of a page; the API server's own controllers read as many. */
const PAGE_SIZE = 500;

const NOT_FOUND = 404;

const listSchema = z.object({
  metadata: z.object({ resourceVersion: z.string().min(1), continue: z.string().default('') }),
  items: z
    .array(z.unknown())
    .nullable()
    .transform((items) => items ?? []),
});

export interface ListRequest {
  /** `/api/v1/nodes`. */
  readonly path: string;
  /** Empty for all objects. */
  readonly labelSelector?: string;
  readonly fieldSelector?: string;
  /** Default: whole objects. */
  readonly accept?: string;
  /** Whether the API server may have no definition of the objects; there are no pages then. */
  readonly isOptional?: boolean;
  /** Items of a page. Default: 500. */
  readonly limit?: number;
  readonly signal: AbortSignal;
}

interface ListPage {
  /** Version of the whole list: a watch from here misses nothing. */
  readonly resourceVersion: string;
  readonly items: readonly unknown[];
}

/**
 * Reads a list in pages. Without a resource version in the request, the API server answers with the latest state, by a
 * quorum of etcd; all pages are of one moment.
 * @throws Failure of {@link KubernetesApi.send}; UNREACHABLE when the list expires before its last page
 */
export async function* listPages(api: KubernetesApi, request: ListRequest): AsyncGenerator<ListPage, void, void> {
  const { path, labelSelector = '', fieldSelector = '', accept, isOptional, limit = PAGE_SIZE, signal } = request;
  let token = '';
  do {
    const query = new URLSearchParams({ limit: String(limit) });
    if (labelSelector !== '') query.set('labelSelector', labelSelector);
    if (fieldSelector !== '') query.set('fieldSelector', fieldSelector);
    if (token !== '') query.set('continue', token);
    const answer = await api.send({
      method: 'GET',
      path: `${path}?${query.toString()}`,
      ...(accept === undefined ? {} : { accept }),
      signal,
    });
    if (isOptional && answer.status === NOT_FOUND) return;
    const page = listSchema.safeParse(answer.body);
    if (!page.success) throw new Failure('UNREACHABLE', `${api.subject}: GET ${path}: ${answer.status} is not a list`);
    const { metadata, items } = page.data;
    yield { resourceVersion: metadata.resourceVersion, items };
    token = metadata.continue;
  } while (token !== '');
}
