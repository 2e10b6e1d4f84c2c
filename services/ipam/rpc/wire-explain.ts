import {
  AllocateRequest,
  BlockOrigin,
  type ExplainAllocationRequest,
  type ExplainAllocationResponse,
  type ExplainedFamily as FamilyMessage,
} from '@podwire/proto/podwire/ipam/v1/address';
import { formatPrefix } from '@podwire/shared/net/prefix';
import { checked, Checks } from '@podwire/shared/rpc/checks';

import { readAllocation } from '../addresses/allocate-rpc.js';
import { explainedPool, FAMILY_MESSAGES } from '../addresses/assign-rpc.js';
import type { ExplainedAllocation, ExplainedFamily } from '../addresses/preview.js';
import type { AskedAllocation } from '../allocator/records.js';
import type { Origin } from '../blocks/search.js';
import { judgementMessage } from '../messages/request-parts.js';

const MAX_BLOCKS_COUNT = 10_000;
const DEFAULT_BLOCKS_COUNT = 1000;
const MAX_POOLS_COUNT = 1000;

export interface AskedExplanation {
  readonly asked: AskedAllocation;
  readonly maxBlocksCount: number;
}

export function readExplainAllocationRequest({
  request,
  maxBlocks,
  anyNamespace,
}: ExplainAllocationRequest): AskedExplanation {
  return checked('ExplainAllocation', (checks) => {
    if (!request) checks.check('request', 'is missing');
    const tooMany = maxBlocks > MAX_BLOCKS_COUNT;
    checks.check('max_blocks', tooMany ? `is ${maxBlocks}; at most ${MAX_BLOCKS_COUNT} are allowed` : undefined);
    const asked = readAllocation(request ?? AllocateRequest.fromPartial({}), request ? checks : new Checks());
    return {
      asked: { isAnyNamespace: anyNamespace, ...asked },
      maxBlocksCount: maxBlocks === 0 ? DEFAULT_BLOCKS_COUNT : maxBlocks,
    };
  });
}

export function explanationMessage({
  refusal,
  isRepeat,
  families,
  judgements,
}: ExplainedAllocation): ExplainAllocationResponse {
  return {
    alreadyAllocated: isRepeat,
    refusalCode: refusal?.code ?? '',
    refusal: refusal?.message ?? '',
    families: families.map(familyMessage),
    requests: judgements.map(judgementMessage),
  };
}

const ORIGINS: Readonly<Record<Origin, BlockOrigin>> = {
  own: BlockOrigin.BLOCK_ORIGIN_OWN,
  claimed: BlockOrigin.BLOCK_ORIGIN_CLAIMED,
  reclaimed: BlockOrigin.BLOCK_ORIGIN_RECLAIMED,
  borrowed: BlockOrigin.BLOCK_ORIGIN_BORROWED,
};

function familyMessage({ family, grant, pools }: ExplainedFamily): FamilyMessage {
  return {
    family: FAMILY_MESSAGES[family],
    grant: grant && {
      address: formatPrefix(grant.address.address),
      blockCidr: formatPrefix(grant.address.block),
      poolName: grant.address.poolName,
      origin: grant.origin ? ORIGINS[grant.origin] : BlockOrigin.BLOCK_ORIGIN_UNSPECIFIED,
    },
    pools: pools.slice(0, MAX_POOLS_COUNT).map(explainedPool),
    morePools: Math.max(0, pools.length - MAX_POOLS_COUNT),
  };
}
