import type { AnyEndpoint, Endpoint, EndpointKey } from '../records/endpoint.js';
import type { Change, View } from '../records/view.js';
import { sameAttachment } from '../records/derived-endpoint.js';

/**
 * Several attachments may compete for an endpoint's key. The attachment that was added last owns it. It stores the endpoints
 * that it replaced, which are restored when it is released, as after a failed ADD.
 */

/** The endpoint under a key, written by Podwire or by another writer. */
export function endpointAt(view: View, key: EndpointKey): AnyEndpoint | undefined {
  const value = view.endpoint(key);
  if (value) return { kind: 'endpoint', value };
  const foreign = view.foreignEndpoint(key);
  return foreign && { kind: 'foreignEndpoint', value: foreign };
}

/** Writes the endpoint of an attachment that does not own the key yet. */
export function takeOverKey(view: View, key: EndpointKey, endpoint: Endpoint): Change {
  const current = endpointAt(view, key);
  const replaced = current ? [withoutReplacedEndpoints(current), ...replacedEndpoints(current)] : [];
  // A node reports the endpoints with addresses of another IPAM plugin itself.
  const kept = replaced.filter((one) =>
    one.kind === 'endpoint'
      ? !sameAttachment(one.value.attachment, endpoint.attachment)
      : one.value.network === undefined,
  );
  return { type: 'put', record: { kind: 'endpoint', key, value: withReplacedEndpoints(endpoint, kept) } };
}

/**
 * Rewrites the endpoint of an attachment under a key without changing the key's owner.
 * @returns undefined if the key has no endpoint of the attachment
 */
export function rewriteEndpoint(view: View, key: EndpointKey, endpoint: Endpoint): Change | undefined {
  const stored = view.endpoint(key);
  if (!stored) return undefined;
  const put = (value: Endpoint): Change => ({ type: 'put', record: { kind: 'endpoint', key, value } });
  const replaced = stored.replaced ?? [];
  if (sameAttachment(stored.attachment, endpoint.attachment)) return put(withReplacedEndpoints(endpoint, replaced));
  const isSame = (one: AnyEndpoint): boolean =>
    one.kind === 'endpoint' && sameAttachment(one.value.attachment, endpoint.attachment);
  if (!replaced.some(isSame)) return undefined;
  const rewritten = replaced.map((one): AnyEndpoint => (isSame(one) ? { kind: 'endpoint', value: endpoint } : one));
  return put(withReplacedEndpoints(stored, rewritten));
}

/** The endpoints that one replaced. */
export function replacedEndpoints(endpoint: AnyEndpoint): readonly AnyEndpoint[] {
  return endpoint.kind === 'endpoint' ? (endpoint.value.replaced ?? []) : [];
}

export function withReplacedEndpoints(endpoint: Endpoint, replaced: readonly AnyEndpoint[]): Endpoint {
  return { ...endpoint, replaced: replaced.length === 0 ? undefined : replaced };
}

function withoutReplacedEndpoints(endpoint: AnyEndpoint): AnyEndpoint {
  return endpoint.kind === 'endpoint' ? { ...endpoint, value: withReplacedEndpoints(endpoint.value, []) } : endpoint;
}
