import { isUnattached, isVirtualMachine, type AllocationAttributes } from '../records/attributes.js';
import { isHeld, type Block } from '../records/block.js';
import { isLease } from '../records/lease.js';
import type { Pool } from '../records/pool.js';
import type { View } from '../records/view.js';

/**
 * A node on which another program, such as Calico's plugin, allocates in the pools: it has a container's address that
 * Podwire did not allocate, and no session. That program cannot recall leases.
 */
export function foreignAllocator(view: View, pools: readonly Pool[]): string | undefined {
  for (const { prefix } of pools)
    for (const block of view.blocksIn(prefix))
      for (const nodeName of foreignNodesIn(block)) if (!view.session(nodeName)) return nodeName;
  return undefined;
}

/** Cache: most blocks have not changed since the last look. */
const foreignNodes = new WeakMap<Block, readonly string[]>();

function foreignNodesIn(block: Block): readonly string[] {
  const known = foreignNodes.get(block);
  if (known) return known;
  const names = [
    ...new Set(block.attributes.flatMap((each) => (isForeignContainer(each) ? (each.owner.node ?? []) : []))),
  ];
  foreignNodes.set(block, names);
  return names;
}

/** Tunnels and leases have a `type`, and their handles no container. */
function isForeignContainer(attributes: AllocationAttributes): boolean {
  const { handleId, owner } = attributes;
  if (!isHeld(attributes) || !isUnattached(attributes) || isLease(attributes)) return false;
  return isVirtualMachine(attributes) || (owner.type === undefined && handleId?.includes('.') === true);
}
