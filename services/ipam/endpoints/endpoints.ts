import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { handleId } from '@podwire/shared/attachment/names';
import { Failure } from '@podwire/shared/failure/failure';
import type { Prefix } from '@podwire/shared/net/prefix';

import { describeEndpoint, heldAddressesOf, withPoolNames } from '../records/derived-endpoint.js';
import { requireHandleReadable } from '../records/handle-counts.js';
import { blockOf } from '../blocks/lookup.js';
import {
  endpointPrefixes,
  formatEndpointKey,
  type Endpoint,
  type EndpointKey,
  type ForeignEndpoint,
} from '../records/endpoint.js';
import type { Page, PageQuery } from '../records/page.js';
import { poolOf, type Pool } from '../records/pool.js';
import type { EndpointRecord, StoredEndpoint, View } from '../records/view.js';

/** Lists of endpoints, in the order of their keys as texts. */

/** Selects the endpoints that match every non-empty filter. */
export interface EndpointFilter {
  readonly nodeName: string;
  readonly namespace: string;
  readonly podName: string;
  readonly poolName: string;
}

/** The names of the pages are the texts of the keys. */
export type EndpointQuery = EndpointFilter & PageQuery;

/** Another writer's endpoint, with the block and pool of its addresses. */
export interface ForeignListing {
  readonly kind: 'foreignEndpoint';
  readonly key: EndpointKey;
  readonly value: ForeignEndpoint;
  readonly addresses: readonly ForeignAddress[];
}

interface ForeignAddress {
  /** Address of full length: /32 or /128. */
  readonly address: Prefix;
  /** Block; undefined where it lies in none. */
  readonly block: Prefix | undefined;
  /** Empty where it lies in none. */
  readonly poolName: string;
}

export type EndpointListing = ({ readonly kind: 'endpoint' } & StoredEndpoint) | ForeignListing;

/** A page of endpoints, and where the next one begins. */
export interface EndpointPage extends Pick<Page<EndpointListing>, 'items'> {
  /** `after` of the next page; empty when there is none. Not always the last item's: a search may end between items. */
  readonly next: string;
}

/** Endpoints examined per page, so that a search does not block the event loop (2,000 of 250,000 take 8 ms). */
const MAX_SCANNED_COUNT = 2000;

/**
 * A page of the endpoints of all writers. It may end before the limit, even empty, while there are more.
 *
 * Cost: with a node, or a pod of a node, the endpoints of that node or pod, in each namespace; with the other filters
 * all endpoints, in pages.
 */
export function listEndpoints(view: View, { after, limit, ...filter }: EndpointQuery): EndpointPage {
  const items: EndpointListing[] = [];
  const pools = view.pools();
  let last: EndpointKey | undefined;
  let scannedCount = 0;
  for (const endpoint of candidateEndpoints(view, filter, after)) {
    if (last && (items.length === limit || scannedCount === MAX_SCANNED_COUNT))
      return { items, next: formatEndpointKey(last) };
    scannedCount++;
    last = endpoint.key;
    if (!matches(endpoint, filter)) continue;
    const listing = listingOf(view, endpoint, pools);
    if (filter.poolName === '' || hasAddressOf(listing, filter.poolName)) items.push(listing);
  }
  return { items, next: '' };
}

function listingOf(view: View, endpoint: EndpointRecord, pools: readonly Pool[]): EndpointListing {
  const { key } = endpoint;
  if (endpoint.kind === 'endpoint') return { kind: 'endpoint', key, value: withPoolNames(pools, endpoint.value) };
  const addresses = endpoint.value.addresses.map((address) => ({
    address,
    block: blockOf(view, address)?.prefix,
    poolName: poolOf(pools, address)?.name ?? '',
  }));
  return { kind: 'foreignEndpoint', key, value: endpoint.value, addresses };
}

/** The endpoints of containers on a node, of all writers, also endpoints without a name in Calico's form. */
export function* endpointsOfNode(view: View, nodeName: string): Generator<EndpointRecord, void, void> {
  const filter = { nodeName, namespace: '', podName: '', poolName: '' };
  for (const endpoint of candidateEndpoints(view, filter, ''))
    if (endpoint.kind === 'endpoint' && matches(endpoint, filter)) yield endpoint;
  for (const { key, value } of view.foreignEndpoints())
    if (value.nodeName === nodeName) yield { kind: 'foreignEndpoint', key, value };
}

/**
 * Every endpoint after `after` that {@link matches}, and some more: whole runs of keys that cannot match are skipped.
 */
function* candidateEndpoints(view: View, filter: EndpointFilter, after: string): Generator<EndpointRecord, void, void> {
  for (const namespace of namespaces(view, filter, after)) {
    for (const namePrefix of namePrefixes(filter)) {
      const prefix = formatEndpointKey({ namespace, name: namePrefix });
      // No key is the prefix itself, so nothing is missed by beginning behind it.
      for (const endpoint of view.allEndpointsAfter(after > prefix ? after : prefix)) {
        const { key } = endpoint;
        if (key.namespace !== namespace || !key.name.startsWith(namePrefix)) break;
        yield endpoint;
      }
    }
  }
}

/** The namespaces that have an endpoint after `after`, or the requested one. */
function* namespaces(view: View, { namespace }: EndpointFilter, after: string): Generator<string, void, void> {
  if (namespace !== '') {
    yield namespace;
    return;
  }
  for (let position = after; ;) {
    const [next] = firstOf(view.allEndpointsAfter(position));
    if (!next) return;
    yield next.key.namespace;
    position = afterNamespace(next.key);
  }
}

function firstOf<Item>(items: Iterable<Item>): Item[] {
  for (const item of items) return [item];
  return [];
}

/** A position after every key of the namespace and before the next namespace: "0" follows "/". */
function afterNamespace({ namespace }: EndpointKey): string {
  return `${namespace}0`;
}

/** Prefixes of the names that can match, in order. */
function namePrefixes({ nodeName, podName }: EndpointFilter): string[] {
  return nodeName === '' ? [''] : endpointPrefixes({ nodeName, podName });
}

/** Whether an endpoint passes all filters but that by pool. */
function matches({ key, kind, value }: EndpointRecord, filter: EndpointFilter): boolean {
  const { nodeName, namespace, podName } = filter;
  const pod = kind === 'endpoint' ? value.pod?.name : value.podName;
  return (
    (nodeName === '' || value.nodeName === nodeName) &&
    (namespace === '' || key.namespace === namespace) &&
    (podName === '' || pod === podName)
  );
}

function hasAddressOf(listing: EndpointListing, wantedPool: string): boolean {
  const { addresses } = listing.kind === 'endpoint' ? listing.value : listing;
  return addresses.some(({ poolName }) => poolName === wantedPool);
}

/**
 * The endpoint of an attachment.
 * @throws Failure ENDPOINT_NOT_FOUND when it holds no address; STORE_CORRUPT when its handle, or a block that this names, cannot be read
 */
export function getEndpoint(view: View, attachment: Attachment): Endpoint {
  requireHandleReadable(view, handleId(attachment));
  const [first, ...rest] = heldAddressesOf(view, attachment);
  if (first) return describeEndpoint(view, attachment, [first, ...rest]);
  const name = formatAttachment(attachment);
  throw new Failure('ENDPOINT_NOT_FOUND', `attachment ${name} holds no address; it was released, or never allocated`, {
    details: { attachment: name },
  });
}
