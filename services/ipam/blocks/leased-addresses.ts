import { addressAt } from '@podwire/shared/net/prefix';
import { compareTexts } from '@podwire/shared/words/order';

import { holderOf } from '../records/attributes.js';
import { isHeld, type Block } from '../records/block.js';
import { isLease } from '../records/lease.js';
import { LEASE_VALID_MS, type NodeSession } from '../records/session.js';
import type { View } from '../records/view.js';
import type { ReservedAddresses } from '../reservations/reservations.js';

/** How many unbound leases a node holds. */
export interface NodeLeases {
  /** Empty if the leases do not name a node. */
  readonly nodeName: string;
  readonly count: number;
}

/**
 * The unbound leases of a block, by the names of their nodes.
 * @param reserved - leases of these addresses do not count
 */
export function leasesIn(block: Block, reserved?: ReservedAddresses): NodeLeases[] {
  if (!block.attributes.some(isLease)) return [];
  const counts = new Map<string, number>();
  block.allocations.forEach((index, ordinal) => {
    const attributes = index === null ? undefined : block.attributes[index];
    if (!attributes || !isHeld(attributes) || !isLease(attributes)) return;
    if (reserved?.contains(addressAt(block.prefix, ordinal))) return;
    const { nodeName } = holderOf(attributes);
    counts.set(nodeName, (counts.get(nodeName) ?? 0) + 1);
  });
  return sorted(counts);
}

/** The sums of several lists, by the names of the nodes. */
export function sumLeases(lists: Iterable<readonly NodeLeases[]>): NodeLeases[] {
  const counts = new Map<string, number>();
  for (const list of lists)
    for (const { nodeName, count } of list) counts.set(nodeName, (counts.get(nodeName) ?? 0) + count);
  return sorted(counts);
}

/**
 * Remedy if the nodes that hold leases do not return them; undefined without a lease. Only an operator knows whether their
 * pods still run. The node that was not heard of for longest is named first.
 */
export function holdersText(view: View, leases: readonly NodeLeases[]): string | undefined {
  if (leases.length === 0) return undefined;
  const heardAtMs = ({ nodeName }: NodeLeases): number => view.session(nodeName)?.heardAtMs ?? Number.POSITIVE_INFINITY;
  const holders = leases.toSorted((a, b) => heardAtMs(a) - heardAtMs(b));
  const named = holders.slice(0, NAMED_NODES).map(({ nodeName, count }) => {
    const session = view.session(nodeName);
    return session ? `${nodeName} (${count}, ${validityText(session)})` : `${nodeName} (${count})`;
  });
  const more = holders.length > NAMED_NODES ? ` and ${holders.length - NAMED_NODES} more` : '';
  return `start podwire-node on the nodes that hold leases and do not answer, or run "podwirectl delete node NODE" for nodes that are gone: ${named.join(', ')}${more}`;
}

function validityText({ heardAtMs }: NodeSession): string {
  const [heardAt, until] = [heardAtMs, heardAtMs + LEASE_VALID_MS].map((timeMs) => new Date(timeMs).toISOString());
  return `last heard of at ${heardAt}, gives them to pods until ${until}`;
}

function sorted(counts: ReadonlyMap<string, number>): NodeLeases[] {
  return [...counts]
    .map(([nodeName, count]) => ({ nodeName, count }))
    .sort((a, b) => compareTexts(a.nodeName, b.nodeName));
}

/** Maximum number of nodes named in a message. */
const NAMED_NODES = 4;

/** `12 leased to n2 (8), n3 (4)`, or `3 leased to n2`; undefined without a lease. */
export function leasesText(leases: readonly NodeLeases[]): string | undefined {
  if (leases.length === 0) return undefined;
  const total = leases.reduce((sum, { count }) => sum + count, 0);
  const named = leases.slice(0, NAMED_NODES).map(({ nodeName, count }) => {
    const node = nodeName || 'an unknown node';
    return leases.length === 1 ? node : `${node} (${count})`;
  });
  const more = leases.length > NAMED_NODES ? [`${leases.length - NAMED_NODES} more nodes`] : [];
  return `${total} leased to ${[...named, ...more].join(', ')}`;
}
