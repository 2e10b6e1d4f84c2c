import type { Checks } from './checks.js';

/** Pages of lists (AIP-158). A token is opaque to clients. It contains the list, its filters and the last item. */

const DEFAULT_PAGE_SIZE = 100;
const MAX_PAGE_SIZE = 1000;

/** A list with its filters, which must be the same for all pages: `['blocks', pool, node]`. */
export type ListScope = readonly [list: string, ...filters: string[]];

export interface PageRequest {
  readonly pageSize: number;
  readonly pageToken: string;
}

/** The page that a request asks for. */
export function readPage(request: PageRequest, scope: ListScope, checks: Checks) {
  return { limit: readPageSize(request, checks), after: readPageToken(request, scope, checks) };
}

export function readPageSize({ pageSize }: PageRequest, checks: Checks): number {
  checks.check('page_size', pageSize < 0 ? `is ${pageSize}; it must be 0 or more` : undefined);
  return pageSize === 0 ? DEFAULT_PAGE_SIZE : Math.min(pageSize, MAX_PAGE_SIZE);
}

/** @returns the last item of the previous page; empty for the first page */
export function readPageToken({ pageToken }: PageRequest, scope: ListScope, checks: Checks): string {
  if (pageToken === '') return '';
  const last = lastItemOf(Buffer.from(pageToken, 'base64url').toString());
  const isValid = last !== undefined && formatPageToken(scope, last) === pageToken;
  checks.check(
    'page_token',
    isValid ? undefined : 'is not a token of this method with these filters; start again without one',
  );
  return last ?? '';
}

/** @param last - name of the page's last item; undefined or empty if there is no further page */
export function formatPageToken(scope: ListScope, last: string | undefined): string {
  if (last === undefined || last === '') return '';
  return Buffer.from(JSON.stringify([...scope, last])).toString('base64url');
}

function lastItemOf(text: string): string | undefined {
  try {
    const parts: unknown = JSON.parse(text);
    const last: unknown = Array.isArray(parts) ? parts.at(-1) : undefined;
    return typeof last === 'string' && last !== '' ? last : undefined;
  } catch {
    return undefined;
  }
}
