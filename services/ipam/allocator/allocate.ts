import type { Attachment } from '@podwire/shared/attachment/attachment';
import { handleId } from '@podwire/shared/attachment/names';
import { Failure } from '@podwire/shared/failure/failure';
import type { Prefix } from '@podwire/shared/net/prefix';
import type { Family } from '@podwire/shared/net/address';

import { attributesFor } from './attributes.js';
import { takeAddress, touchBlock } from './block.js';
import { chooseBlock } from './choose-block.js';
import { describeEndpoint, endpointAddress, endpointKey, makeEndpoint, storedEndpoint } from './endpoint.js';
import { explainRefusal } from './explain.js';
import { handleChanges, heldBy, type HeldAddress } from './holding.js';
import { judgePools } from './pools.js';
import type { AllocationRequest, Block, Endpoint, EndpointAddress } from './records.js';
import type { Change, Decision, EndpointKey, View } from './view.js';

export interface AllocationInput {
  readonly request: AllocationRequest;
  readonly nowMs: number;
}

/** What an allocation came to. */
export interface Allocation {
  readonly endpoint: Endpoint;
  /** The families that got an address by this decision; empty when the attachment held all it asked for. */
  readonly added: readonly Family[];
  /** The blocks that became the node's with it. */
  readonly claimed: readonly Prefix[];
  /** Another container of the same pod, whose endpoint this one took over; it keeps its addresses. */
  readonly replaced: Attachment | undefined;
}

/**
 * Gives an attachment one address of each family that it asks for and does not hold, all of them or none.
 *
 * Idempotent per attachment: what it holds already is found and answered, in full, also when it asks for less.
 * @throws Failure NO_POOL when there is no pool of a family, POOLS_EXHAUSTED when none can serve, with the reason for each
 */
export function allocate(view: View, { request, nowMs }: AllocationInput): Decision<Allocation> {
  const { attachment } = request;
  const [first, ...rest] = heldBy(view, attachment);
  if (!first) return allocateFirst(view, { request, nowMs });
  const held = [first, ...rest] as const;
  const known = describeEndpoint(view, attachment, held);
  const missing = request.families.filter((family) => !held.some(({ block }) => block.prefix.family === family));
  // The container lives where its first address was given; its other family belongs there too.
  const subject = { ...request, nodeName: known.nodeName, pod: known.pod };
  const grants = grantAll(view, { request: { ...subject, families: missing }, nowMs });
  const netns = request.netns ?? known.netns;
  const endpoint = { ...known, netns, addresses: [...known.addresses, ...grants.map(({ address }) => address)] };
  return {
    changes: [
      ...allocationChanges(view, attachment, grants),
      ...refreshEndpoint(view, { endpoint, held, changed: missing.length > 0 || !sameNetns(endpoint, known) }),
    ],
    outcome: { endpoint, added: missing, claimed: claimedBy(grants), replaced: undefined },
  };
}

function allocateFirst(view: View, { request, nowMs }: AllocationInput): Decision<Allocation> {
  const { attachment, nodeName, pod, netns, families } = request;
  const grants = grantAll(view, { request, nowMs });
  const endpoint = makeEndpoint(
    { attachment, nodeName, pod, netns },
    grants.map(({ address }) => address),
  );
  const key = endpointKey(request);
  const before = view.endpoint(key);
  const replaced = before && !storedEndpoint(view, key, attachment) ? before.attachment : undefined;
  return {
    changes: [...allocationChanges(view, attachment, grants), putEndpoint(key, endpoint)],
    outcome: { endpoint, added: families, claimed: claimedBy(grants), replaced },
  };
}

/** An address that is given: the block without it is what the view shows, the block with it is what will be stored. */
interface Grant {
  readonly block: Block;
  readonly address: EndpointAddress;
  readonly changes: readonly Change[];
  readonly claimed: boolean;
}

function grantAll(view: View, input: AllocationInput): Grant[] {
  const { families, nodeName, attachment } = input.request;
  const grants = families.map((family) => ({ family, grant: grant(view, family, input) }));
  const refused = grants.flatMap(({ family, grant }) => (grant ? [] : [family]));
  if (refused.length > 0) throw refusal(view, { families: refused, nodeName, attachment });
  return grants.flatMap(({ grant }) => (grant ? [grant] : []));
}

function grant(view: View, family: Family, { request, nowMs }: AllocationInput): Grant | undefined {
  const { attachment, nodeName } = request;
  const pools = judgePools(view, family).flatMap(({ pool, passedOver }) => (passedOver === undefined ? [pool] : []));
  const chosen = chooseBlock(view, { family, nodeName, attachment, nowMs, pools });
  const taken = chosen && takeAddress(chosen.block, attributesFor(request, nowMs));
  if (!taken) return undefined;
  const { block } = taken;
  return {
    block,
    address: endpointAddress(view, taken),
    changes: [...chosen.changes, { type: 'put', record: { kind: 'block', value: block } }],
    claimed: chosen.claimed,
  };
}

interface Refused {
  readonly families: readonly Family[];
  readonly nodeName: string;
  readonly attachment: Attachment;
}

function refusal(view: View, { families, nodeName, attachment }: Refused): Failure {
  const noPool = families.filter((family) => judgePools(view, family).length === 0);
  const text = families.map((family) => explainRefusal(view, { family, nodeName, attachment })).join('. ');
  return new Failure(noPool.length > 0 ? 'NO_POOL' : 'POOLS_EXHAUSTED', text, { details: { node: nodeName } });
}

function allocationChanges(view: View, attachment: Attachment, grants: readonly Grant[]): Change[] {
  if (grants.length === 0) return [];
  const blocks = grants.map(({ block }) => block);
  const id = handleId(attachment);
  return [
    ...grants.flatMap(({ changes }) => changes),
    ...handleChanges(view, id, blocks),
    { type: 'expectUnreleased', handleId: id },
  ];
}

interface Refresh {
  readonly endpoint: Endpoint;
  readonly held: readonly HeldAddress[];
  readonly changed: boolean;
}

/**
 * Writes the endpoint of a known attachment where it is missing or out of date, unless its name went to another container.
 * A release that was decided without seeing it would leave it behind; the changed blocks make that lose its comparison.
 */
function refreshEndpoint(view: View, { endpoint, held, changed }: Refresh): Change[] {
  const key = endpointKey(endpoint);
  const own = storedEndpoint(view, key, endpoint.attachment);
  const wanted = own ? changed : !view.endpoint(key);
  if (!wanted) return [];
  const blocks = held.map(({ block }): Change => ({
    type: 'put',
    record: { kind: 'block', value: touchBlock(block) },
  }));
  return [...blocks, putEndpoint(key, endpoint)];
}

function putEndpoint(key: EndpointKey, value: Endpoint): Change {
  return { type: 'put', record: { kind: 'endpoint', key, value } };
}

function sameNetns({ netns: a }: Endpoint, { netns: b }: Endpoint): boolean {
  return a?.bootId === b?.bootId && a?.inode === b?.inode;
}

function claimedBy(grants: readonly Grant[]): Prefix[] {
  return grants.flatMap(({ claimed, block }) => (claimed ? [block.prefix] : []));
}
