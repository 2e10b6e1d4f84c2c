import { Failure } from '@podwire/shared/failure/failure';
import type { Address, Family } from '@podwire/shared/net/address';
import { comparePrefixes, type Prefix } from '@podwire/shared/net/prefix';

import type { AuthorizedNode, Demand } from '../../blocks/demand.js';
import { sumLeases, type NodeLeases } from '../../blocks/leased-addresses.js';
import { beginSearch, type OfferOrigin } from '../../blocks/search.js';
import { evaluateRequests, type RequestVerdict } from '../../request-policies/evaluation.js';
import { holderOf } from '../../records/attributes.js';
import { requireUnlocked } from '../../records/datastore-lock.js';
import type { EndpointAddress } from '../../records/endpoint.js';
import { isLease } from '../../records/lease.js';
import type { View } from '../../records/view.js';
import { allocationOf } from '../addresses.js';
import { allocate, demandOf, policyInputOf, type Allocation, type AllocationInput } from './allocate.js';
import { explainDemand, isRecallable, isUsable, type PoolExplanation } from './refusal.js';

/** An address that an allocation would return: a new one, or a held one. */
interface ExplainedGrant {
  readonly address: EndpointAddress;
  /** Origin; undefined when the attachment already holds it. */
  readonly origin: OfferOrigin | undefined;
}

export interface ExplainedFamily {
  readonly family: Family;
  /** Grant; undefined when no address would be allocated. */
  readonly grant: ExplainedGrant | undefined;
  /** The leases that would be recalled for the allocation; empty if it needs none, or if none would serve. */
  readonly recall: readonly NodeLeases[];
  readonly pools: readonly PoolExplanation[];
}

/** The preview of an allocation. */
export interface ExplainedAllocation {
  /** Refusal; undefined if it would succeed, at once or after a recall of leases. */
  readonly refusal: Failure | undefined;
  readonly isRepeat: boolean;
  /** The requested ones, in that order. */
  readonly families: readonly ExplainedFamily[];
  /**
   * The request policies' verdict on every requested item, allowed or not. Empty if the policies cannot be read; then
   * that is the refusal.
   */
  readonly verdicts: readonly RequestVerdict[];
}

interface ExplainInput extends AllocationInput {
  /** Maximum number of blocks named over all pools and families; further blocks are only counted. */
  readonly maxBlocksCount: number;
}

/** Decides an allocation, reports what it considered, and discards the result. */
export function explainAllocation(view: View, input: ExplainInput): ExplainedAllocation {
  const decided = attempt(view, input);
  const [refusal, allocation] = decided instanceof Failure ? [decided, undefined] : [undefined, decided];
  let left = input.maxBlocksCount;
  const explained = input.request.families.map((family): FamilyDemand => {
    const node: AuthorizedNode = { labels: view.node(input.request.nodeName)?.labels ?? {}, changes: [] };
    const demand = demandOf(family, { node, ...input });
    const pools = explainDemand(view, demand, { maxBlocksCount: left });
    left -= pools.reduce((sum, { blocks }) => sum + blocks.length, 0);
    return { family, demand, pools };
  });
  const recalls = explained.map((each) => (refusal ? recallFor(view, input, each) : []));
  const isRecalled = recalls.every((recall) => recall !== undefined);
  return {
    refusal: isRecalled ? undefined : refusal,
    isRepeat: allocation?.added.length === 0,
    families: explained.map(({ family, pools }, index) => ({
      family,
      grant: allocation && grantOf(allocation, family),
      recall: recalls[index] ?? [],
      pools,
    })),
    verdicts: verdictsOf(view, input),
  };
}

interface FamilyDemand extends Pick<ExplainedFamily, 'family' | 'pools'> {
  readonly demand: Demand;
}

/** The leases that one family of a refused allocation needs; undefined if the refusal has another reason. */
function recallFor(
  view: View,
  input: AllocationInput,
  { family, demand, pools }: FamilyDemand,
): readonly NodeLeases[] | undefined {
  const addresses = input.request.addresses.filter((address) => address.family === family);
  const decided = attempt(view, { ...input, request: { ...input.request, families: [family], addresses } });
  if (!(decided instanceof Failure)) return [];
  const leases =
    decided.code === 'POOLS_EXHAUSTED'
      ? sumLeases(pools.map(({ recallable }) => recallable))
      : decided.code === 'ADDRESS_IN_USE'
        ? addresses.flatMap((address) => leaseOf(view, demand, address))
        : [];
  return leases.length > 0 ? leases : undefined;
}

/** The lease of a requested address; empty if it is not leased, cannot be recalled, or is of a block out of reach. */
function leaseOf(view: View, demand: Demand, address: Address): NodeLeases[] {
  const held = allocationOf(view, address);
  if (!held || !isLease(held.attributes) || !isUsable(beginSearch(view, demand, []), held.block)) return [];
  const { nodeName } = holderOf(held.attributes);
  return isRecallable(view, nodeName) ? [{ nodeName, count: 1 }] : [];
}

function verdictsOf(view: View, { request }: AllocationInput): readonly RequestVerdict[] {
  if (view.unreadableRecord({ kind: 'requestPolicies' })) return [];
  return evaluateRequests(view, policyInputOf(request));
}

function attempt(view: View, input: AllocationInput): Allocation | Failure {
  try {
    const { changes, outcome } = allocate(view, input);
    requireUnlocked(view, changes);
    return outcome;
  } catch (failure) {
    if (failure instanceof Failure) return failure;
    throw failure;
  }
}

function grantOf(
  { endpoint, added, claimed, reclaimed, borrowed }: Allocation,
  family: Family,
): ExplainedGrant | undefined {
  const address = endpoint.addresses.find((candidate) => candidate.address.family === family);
  if (!address) return undefined;
  if (!added.includes(family)) return { address, origin: undefined };
  const isIn = (blocks: readonly Prefix[]): boolean =>
    blocks.some((block) => comparePrefixes(block, address.block) === 0);
  if (isIn(reclaimed)) return { address, origin: 'reclaimed' };
  if (isIn(claimed)) return { address, origin: 'claimed' };
  return { address, origin: isIn(borrowed) ? 'borrowed' : 'own' };
}
