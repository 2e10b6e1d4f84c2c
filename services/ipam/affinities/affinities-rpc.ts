import {
  AffinityReleaseResult as ResultMessage,
  OwnerKind,
  type Affinity as AffinityMessage,
  type BlockOwner as OwnerMessage,
  type ReleaseAffinityRequest,
  type ReleasedAffinity as ReleasedMessage,
} from '@podwire/proto/podwire/ipam/v1/affinity';
import { formatPrefix, parsePrefix, type Prefix } from '@podwire/shared/net/prefix';
import { checked, type Checks } from '@podwire/shared/rpc/checks';

import type { Abandoned } from '../allocator/abandon-block.js';
import type { AffinityListing } from '../allocator/affinity-listing.js';
import type { BlockOwner } from '../allocator/records.js';
import type { AffinityRelease, AffinityScope, ReleasedAffinity } from '../allocator/release-affinity.js';
import { AFFINITY_STATES } from '../blocks/blocks-rpc.js';
import { subdomainFault } from '../records/names.js';

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
  checks.check(`${field}.kind`, kind ? undefined : `is ${number}, which is no kind of owner`);
  return { kind: kind ?? 'host', name };
}

function ownerMessage({ kind, name }: BlockOwner): OwnerMessage {
  return { kind: kind === 'host' ? OwnerKind.OWNER_KIND_HOST : OwnerKind.OWNER_KIND_VIRTUAL, name };
}

export function readReleaseAffinityRequest({
  scope,
  mustBeEmpty,
}: ReleaseAffinityRequest): Pick<AffinityRelease, 'scope' | 'mustBeEmpty'> {
  return checked('ReleaseAffinity', (checks) => ({ scope: readScope(scope, checks), mustBeEmpty }));
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

const RESULTS: Record<Abandoned, ResultMessage> = {
  removed: ResultMessage.AFFINITY_RELEASE_RESULT_REMOVED,
  disowned: ResultMessage.AFFINITY_RELEASE_RESULT_DISOWNED,
  notOwned: ResultMessage.AFFINITY_RELEASE_RESULT_NOT_OWNED,
  notEmpty: ResultMessage.AFFINITY_RELEASE_RESULT_NOT_EMPTY,
};

export function releasedAffinityMessage({ block, owner, result }: ReleasedAffinity): ReleasedMessage {
  return { blockCidr: formatPrefix(block), owner: ownerMessage(owner), result: RESULTS[result] };
}

export function affinityMessage({ affinity, poolName, isBacked, usedCount }: AffinityListing): AffinityMessage {
  return {
    blockCidr: formatPrefix(affinity.block),
    owner: ownerMessage(affinity.owner),
    state: AFFINITY_STATES[affinity.state],
    backed: isBacked,
    poolName: poolName ?? '',
    usedCount,
  };
}
