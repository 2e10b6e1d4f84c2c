import {
  AllocateRequest,
  BlockOrigin,
  type AddressServiceService,
  type ExplainAllocationRequest,
  type ExplainAllocationResponse,
  type ExplainedFamily as FamilyMessage,
} from '@podwire/proto/podwire/ipam/v1/address';
import { endpointNameFaults } from '@podwire/shared/attachment/names';
import type { FailureCode } from '@podwire/shared/failure/codes';
import { Failure } from '@podwire/shared/failure/failure';
import { formatPrefix } from '@podwire/shared/net/prefix';
import { readChecked, Checks } from '@podwire/shared/requests/checks';
import type { Handlers } from '@podwire/shared/rpc/unary';
import { withAttachment } from '@podwire/shared/runtime/log';

import type { OfferOrigin } from '../../blocks/search.js';
import { endpointMessage } from '../../endpoints/endpoints-rpc.js';
import {
  ATTACHMENT_FIELDS,
  checkOnePerFamily,
  FAMILY_MESSAGES,
  readAddresses,
  readAttachment,
  readFamilies,
  readNetns,
} from '../../messages/parts.js';
import {
  readBlockCap,
  readNamespaceLabels,
  readPod,
  readPoolChoices,
  readPools,
  readRequests,
  type ReportRefusal,
  type RequirePod,
} from '../../messages/request-parts.js';
import { verdictMessage } from '../../request-policies/request-policies-rpc.js';
import { subdomainFault } from '../../records/names.js';
import type { Addresses, Assignments } from '../addresses-operations.js';
import { explainedPool, nodeLeasesMessage } from '../assign-rpc.js';
import type { RequestedAllocation } from './allocate.js';
import type { ExplainedAllocation, ExplainedFamily } from './preview.js';

export interface AddressServiceDeps {
  readonly requirePod: RequirePod;
  readonly reportRefusal: ReportRefusal;
}

/** Refusals that end when a person changes pools, policies or the pod. */
export const REPORTED_CODES: readonly FailureCode[] = [
  ...(['POOLS_EXHAUSTED', 'NO_POOL', 'NO_POOL_SERVES', 'INVALID_REQUEST', 'REQUEST_DENIED'] as const),
  ...(['ADDRESS_IN_USE', 'ADDRESS_REFUSED', 'ADDRESS_DIFFERS'] as const),
];

export function allocateHandler(
  addresses: Addresses,
  { requirePod, reportRefusal }: AddressServiceDeps,
): Handlers<AddressServiceService>['allocate'] {
  return async (message, { signal, caller }) => {
    const request = readAllocateRequest(message);
    const { attachment, pod } = request;
    await requirePod(caller, pod, signal);
    const allocating = withAttachment(attachment, () => addresses.allocate(request, signal));
    if (pod)
      allocating.catch((error: unknown) => {
        if (error instanceof Failure && REPORTED_CODES.includes(error.code)) reportRefusal(pod, error);
      });
    const { endpoint, added } = await allocating;
    return { endpoint: endpointMessage(endpoint), alreadyAllocated: added.length === 0 };
  };
}

export function explainAllocationHandler(
  assignments: Assignments,
): Handlers<AddressServiceService>['explainAllocation'] {
  return async (message, { signal }) => {
    const { allocation, maxBlocksCount } = readExplainAllocationRequest(message);
    return explanationMessage(await assignments.explain(allocation, { maxBlocksCount }, signal));
  };
}

function readAllocateRequest(message: AllocateRequest): RequestedAllocation {
  return readChecked('Allocate', (checks) => readAllocation(message, checks));
}

/** Reads the fields that Allocate and ExplainAllocation share. */
function readAllocation(message: AllocateRequest, checks: Checks): RequestedAllocation {
  checks.check('node_name', subdomainFault(message.nodeName));
  const attachment = readAttachment(message.attachment, checks);
  const pod = message.pod && readPod(message.pod, checks);
  for (const { field, reason } of endpointNameFaults(attachment, pod)) checks.check(ATTACHMENT_FIELDS[field], reason);
  const netns = message.netns && readNetns('netns', message.netns, checks);
  const families = readFamilies('families', message.families, checks);
  const addresses = readAddresses(message.addresses, checks);
  checkOnePerFamily(addresses, families, checks);
  const implied = addresses.length > 0 ? [...new Set(addresses.map(({ family }) => family))] : [4 as const];
  return {
    attachment,
    nodeName: message.nodeName,
    pod,
    netns,
    families: families.length === 0 ? implied : families,
    addresses,
    pools: readPools(message.pools, checks),
    poolChoices: readPoolChoices(message.poolChoices, message.pools, checks),
    requests: readRequests(message.requests, checks),
    namespaceLabels: readNamespaceLabels(message.namespaceLabels, pod, checks),
    maxBlocksCount: readBlockCap(message.maxBlocksPerNode, checks),
  };
}

const MAX_BLOCKS_COUNT = 10_000;
const DEFAULT_BLOCKS_COUNT = 1000;
const MAX_POOLS_COUNT = 1000;

interface RequestedExplanation {
  readonly allocation: RequestedAllocation;
  readonly maxBlocksCount: number;
}

function readExplainAllocationRequest({
  request,
  maxBlocks,
  anyNamespace,
}: ExplainAllocationRequest): RequestedExplanation {
  return readChecked('ExplainAllocation', (checks) => {
    if (!request) checks.check('request', 'is missing');
    const tooMany = maxBlocks > MAX_BLOCKS_COUNT;
    checks.check('max_blocks', tooMany ? `is ${maxBlocks}; at most ${MAX_BLOCKS_COUNT} are allowed` : undefined);
    const allocation = readAllocation(request ?? AllocateRequest.fromPartial({}), request ? checks : new Checks());
    return {
      allocation: { isAnyNamespace: anyNamespace, ...allocation },
      maxBlocksCount: maxBlocks === 0 ? DEFAULT_BLOCKS_COUNT : maxBlocks,
    };
  });
}

function explanationMessage({ refusal, isRepeat, families, verdicts }: ExplainedAllocation): ExplainAllocationResponse {
  return {
    alreadyAllocated: isRepeat,
    refusalCode: refusal?.code ?? '',
    refusal: refusal?.message ?? '',
    families: families.map(familyMessage),
    requests: verdicts.map(verdictMessage),
  };
}

const ORIGINS: Readonly<Record<OfferOrigin, BlockOrigin>> = {
  own: BlockOrigin.BLOCK_ORIGIN_OWN,
  claimed: BlockOrigin.BLOCK_ORIGIN_CLAIMED,
  reclaimed: BlockOrigin.BLOCK_ORIGIN_RECLAIMED,
  borrowed: BlockOrigin.BLOCK_ORIGIN_BORROWED,
};

const MAX_NODES_COUNT = 100;

function familyMessage({ family, grant, recall, pools }: ExplainedFamily): FamilyMessage {
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
    recall:
      recall.length > 0
        ? {
            leased: recall.reduce((sum, { count }) => sum + BigInt(count), 0n),
            nodes: recall.slice(0, MAX_NODES_COUNT).map(nodeLeasesMessage),
          }
        : undefined,
  };
}
