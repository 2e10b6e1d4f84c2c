import {
  AffinityReleaseResult as ResultMessage,
  AffinityServiceService,
  OwnerKind,
  type Affinity as AffinityMessage,
  type BlockOwner as OwnerMessage,
  type ListAffinitiesRequest,
  type ReleaseAffinityRequest,
  type ReleasedAffinity as ReleasedMessage,
} from '@podwire/proto/podwire/ipam/v1/affinity';
import { formatPrefix, parsePrefix, type Prefix } from '@podwire/shared/net/prefix';
import { readChecked, type Checks } from '@podwire/shared/requests/checks';
import { formatPageToken, readPageSize, readPageToken, type ListScope } from '@podwire/shared/requests/paging';
import type { RpcService } from '@podwire/shared/rpc/server';
import { unaryService, type Unary } from '@podwire/shared/rpc/unary';

import { AFFINITY_STATES } from '../blocks/blocks-rpc.js';
import type { BlockOwner } from '../records/block.js';
import { subdomainFault } from '../records/names.js';
import type { Affinities } from './affinities-operations.js';
import type {
  AffinityReleaseOutcome,
  AffinityListing,
  AffinityQuery,
  AffinityScope,
  OwnedBlock,
  ReleasedAffinity,
} from './affinities.js';

export function affinityService(affinities: Affinities, unary: Unary): RpcService {
  return unaryService(AffinityServiceService, unary, {
    listAffinities: async (message, { signal }) => {
      const { items, more } = await affinities.list(readQuery(message), signal);
      const last = items.at(-1);
      return {
        affinities: items.map(affinityMessage),
        nextPageToken: formatPageToken(scopeOf(message), more && last ? formatPosition(last.affinity) : undefined),
      };
    },
    claimAffinity: async (message, { signal }) => {
      const { nodeName } = message;
      const cidr = readChecked('ClaimAffinity', (checks) => {
        checks.check('node_name', subdomainFault(nodeName));
        return readCidr('cidr', message.cidr, checks);
      });
      const { claimed, refused } = await affinities.claim({ cidr, nodeName }, signal);
      return {
        claimed: claimed.map(formatPrefix),
        refused: refused.map(({ block, reason }) => ({ cidr: formatPrefix(block), reason })),
      };
    },
    releaseAffinity: async ({ scope, mustBeEmpty }, { signal }) => {
      const release = readChecked('ReleaseAffinity', (checks) => ({ scope: readScope(scope, checks), mustBeEmpty }));
      return { affinities: (await affinities.release(release, signal)).map(releasedAffinityMessage) };
    },
  });
}

function scopeOf({ nodeName, poolName }: ListAffinitiesRequest): ListScope {
  return ['affinities', nodeName, poolName];
}

function readQuery(message: ListAffinitiesRequest): AffinityQuery {
  const { nodeName, poolName } = message;
  return readChecked('ListAffinities', (checks) => {
    if (nodeName !== '') checks.check('node_name', subdomainFault(nodeName));
    if (poolName !== '') checks.check('pool_name', subdomainFault(poolName));
    const after = parsePosition(readPageToken(message, scopeOf(message), checks));
    return { limit: readPageSize(message, checks), after, nodeName, poolName };
  });
}

/** `10.0.0.0/26 host n1`. */
function formatPosition({ block, owner }: OwnedBlock): string {
  return `${formatPrefix(block)} ${owner.kind} ${owner.name}`;
}

function parsePosition(text: string): OwnedBlock | undefined {
  const [cidr = '', kind, name = ''] = text.split(' ');
  const parsed = parsePrefix(cidr);
  if (!parsed.ok || (kind !== 'host' && kind !== 'virtual')) return undefined;
  return { block: parsed.prefix, owner: { kind, name } };
}

const NO_PREFIX: Prefix = { family: 4, value: 0n, length: 0 };

export function readCidr(field: string, text: string, checks: Checks): Prefix {
  const parsed = parsePrefix(text);
  checks.check(field, parsed.ok ? undefined : parsed.fault);
  return parsed.ok ? parsed.prefix : NO_PREFIX;
}

const KINDS: Partial<Record<OwnerKind, BlockOwner['kind']>> = {
  [OwnerKind.OWNER_KIND_UNSPECIFIED]: 'host',
  [OwnerKind.OWNER_KIND_HOST]: 'host',
  [OwnerKind.OWNER_KIND_VIRTUAL]: 'virtual',
};

function readOwner(field: string, message: OwnerMessage | undefined, checks: Checks): BlockOwner {
  const { kind: number = OwnerKind.OWNER_KIND_UNSPECIFIED, name = '' } = message ?? {};
  const kind = KINDS[number];
  if (!message) checks.check(field, 'is missing');
  else checks.check(`${field}.name`, subdomainFault(name));
  checks.check(`${field}.kind`, kind ? undefined : `is ${number}, which is not a valid OwnerKind`);
  return { kind: kind ?? 'host', name };
}

function ownerMessage({ kind, name }: BlockOwner): OwnerMessage {
  return { kind: kind === 'host' ? OwnerKind.OWNER_KIND_HOST : OwnerKind.OWNER_KIND_VIRTUAL, name };
}

function readScope(scope: ReleaseAffinityRequest['scope'], checks: Checks): AffinityScope {
  switch (scope?.$case) {
    case 'blockCidr':
      return { kind: 'block', block: readCidr('block_cidr', scope.value, checks) };
    case 'range': {
      const cidr = readCidr('range.cidr', scope.value.cidr, checks);
      return { kind: 'range', cidr, owner: readOwner('range.owner', scope.value.owner, checks) };
    }
    case 'owner':
      return { kind: 'owner', owner: readOwner('owner', scope.value, checks) };
    case 'poolName':
      checks.check('pool_name', subdomainFault(scope.value));
      return { kind: 'pool', poolName: scope.value };
    case undefined:
      checks.check('scope', 'is missing: set one of block_cidr, range, owner and pool_name');
      return { kind: 'pool', poolName: '' };
  }
}

const RESULTS: Record<AffinityReleaseOutcome, ResultMessage> = {
  removed: ResultMessage.AFFINITY_RELEASE_RESULT_REMOVED,
  disowned: ResultMessage.AFFINITY_RELEASE_RESULT_DISOWNED,
  notOwned: ResultMessage.AFFINITY_RELEASE_RESULT_NOT_OWNED,
  notEmpty: ResultMessage.AFFINITY_RELEASE_RESULT_NOT_EMPTY,
};

function releasedAffinityMessage({ block, owner, result }: ReleasedAffinity): ReleasedMessage {
  return { blockCidr: formatPrefix(block), owner: ownerMessage(owner), result: RESULTS[result] };
}

function affinityMessage({ affinity, poolName, isBacked, usedCount }: AffinityListing): AffinityMessage {
  return {
    blockCidr: formatPrefix(affinity.block),
    owner: ownerMessage(affinity.owner),
    state: AFFINITY_STATES[affinity.state],
    backed: isBacked,
    poolName: poolName ?? '',
    usedCount,
  };
}
