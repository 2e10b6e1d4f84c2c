import type { ListAffinitiesRequest, ListAffinitiesResponse } from '@podwire/proto/podwire/ipam/v1/affinity';
import { formatPrefix, parsePrefix } from '@podwire/shared/net/prefix';
import { checked } from '@podwire/shared/rpc/checks';
import { formatPageToken, readPageSize, readPageToken, type ListScope } from '@podwire/shared/rpc/paging';
import type { Handler } from '@podwire/shared/rpc/unary';

import { affinityMessage } from '../affinities/affinities-rpc.js';
import type { AffinityQuery } from '../allocator/affinity-listing.js';
import type { OwnedBlock } from '../allocator/release-affinity.js';
import type { Ipam } from '../ipam.js';
import { subdomainFault } from '../records/names.js';

export function listAffinities(ipam: Ipam): Handler<ListAffinitiesRequest, ListAffinitiesResponse> {
  return async (message, { signal }) => {
    const { items, more } = await ipam.affinities.list(readQuery(message), signal);
    const last = items.at(-1);
    return {
      affinities: items.map(affinityMessage),
      nextPageToken: more && last ? formatPageToken(scopeOf(message), formatPlace(last.affinity)) : '',
    };
  };
}

function scopeOf({ nodeName, poolName }: ListAffinitiesRequest): ListScope {
  return ['affinities', nodeName, poolName];
}

function readQuery(message: ListAffinitiesRequest): AffinityQuery {
  const { nodeName, poolName } = message;
  return checked('ListAffinities', (checks) => {
    if (nodeName !== '') checks.check('node_name', subdomainFault(nodeName));
    if (poolName !== '') checks.check('pool_name', subdomainFault(poolName));
    const after = parsePlace(readPageToken(message, scopeOf(message), checks));
    return { limit: readPageSize(message, checks), after, nodeName, poolName };
  });
}

/** `10.0.0.0/26 host n1`. */
function formatPlace({ block, owner }: OwnedBlock): string {
  return `${formatPrefix(block)} ${owner.kind} ${owner.name}`;
}

function parsePlace(text: string): OwnedBlock | undefined {
  const [cidr = '', kind, name = ''] = text.split(' ');
  const parsed = parsePrefix(cidr);
  if (!parsed.ok || (kind !== 'host' && kind !== 'virtual')) return undefined;
  return { block: parsed.prefix, owner: { kind, name } };
}
