import { Failure } from '@podwire/shared/failure/failure';
import type { Family } from '@podwire/shared/net/address';
import { comparePrefixes, type Prefix } from '@podwire/shared/net/prefix';

import type { OfferOrigin } from '../blocks/search.js';
import { evaluateRequests, type RequestVerdict } from '../policies/evaluation.js';
import { requireUnlocked } from '../records/datastore-lock.js';
import type { EndpointAddress } from '../records/endpoint.js';
import type { View } from '../records/view.js';
import { allocate, demandOf, policyInputOf, type Allocation, type AllocationInput } from './allocate.js';
import { explainDemand, type PoolExplanation } from './refusal.js';

/** An address that an allocation would return: a new one, or a held one. */
interface ExplainedGrant {
  readonly address: EndpointAddress;
  /** Undefined when the attachment already holds it. */
  readonly origin: OfferOrigin | undefined;
}

export interface ExplainedFamily {
  readonly family: Family;
  /** Undefined when no address would be allocated. */
  readonly grant: ExplainedGrant | undefined;
  readonly pools: readonly PoolExplanation[];
}

/** The preview of an allocation. */
export interface ExplainedAllocation {
  /** Undefined if it would succeed. */
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
  /** Maximum number of blocks named over all pools and families; the others are only counted. */
  readonly maxBlocksCount: number;
}

/** Decides an allocation, reports what it considered, and discards the result. */
export function explainAllocation(view: View, input: ExplainInput): ExplainedAllocation {
  const decided = attempt(view, input);
  const allocation = decided instanceof Failure ? undefined : decided;
  let left = input.maxBlocksCount;
  const families = input.request.families.map((family): ExplainedFamily => {
    const node = { labels: view.node(input.request.nodeName)?.labels ?? {}, changes: [] };
    const pools = explainDemand(view, demandOf(family, { node, ...input }), { maxBlocksCount: left });
    left -= pools.reduce((sum, { blocks }) => sum + blocks.length, 0);
    return { family, grant: allocation && grantOf(allocation, family), pools };
  });
  return {
    refusal: decided instanceof Failure ? decided : undefined,
    isRepeat: allocation?.added.length === 0,
    families,
    verdicts: verdictsOf(view, input),
  };
}

function verdictsOf(view: View, { request }: AllocationInput): readonly RequestVerdict[] {
  const policyInput = policyInputOf(request);
  if (!policyInput || view.unreadableRecord({ kind: 'requestPolicies' })) return [];
  return evaluateRequests(view, policyInput);
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
