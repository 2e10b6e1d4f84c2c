import { calicoTime, type AllocationAttributes } from './attributes.js';

/**
 * An unbound lease: an address that a node may give to a pod before IPAM knows the pod. In the datastore it is an
 * ordinary Calico allocation with the handle `podwire-lease.<node name>`, and attributes that name the node and its
 * boot. BindAddresses replaces both by the handle and attributes of the pod's attachment.
 */

const HANDLE_PREFIX = 'podwire-lease.';

/** The handle of a node's unbound leases. */
export function leaseHandle(nodeName: string): string {
  return `${HANDLE_PREFIX}${nodeName}`;
}

/** Whether a handle is of some node's leases. */
export function isLeaseHandle(handleId: string): boolean {
  return handleId.startsWith(HANDLE_PREFIX);
}

/**
 * Whether an allocation is an unbound lease of any node. An attachment may have the same handle: a container
 * called like the node, on a network `podwire-lease`.
 */
export function isLease({ handleId, owner }: Pick<AllocationAttributes, 'handleId' | 'owner'>): boolean {
  return handleId !== undefined && isLeaseHandle(handleId) && owner.interface === undefined;
}

/** Whether an allocation is an unbound lease of one node. */
export function isLeaseOf(nodeName: string): (attributes: AllocationAttributes) => boolean {
  const handle = leaseHandle(nodeName);
  return (attributes) => attributes.handleId === handle && isLease(attributes);
}

interface LeaseHolder {
  readonly nodeName: string;
  /** Identity of the node's boot (proc(5), /proc/sys/kernel/random/boot_id). */
  readonly bootId: string;
  readonly nowMs: number;
}

/** The attributes of an unbound lease. */
export function leaseAttributes({ nodeName, bootId, nowMs }: LeaseHolder): AllocationAttributes {
  const owner = { node: nodeName, type: 'podwireLease', 'boot-id': bootId, timestamp: calicoTime(nowMs) };
  return { handleId: leaseHandle(nodeName), owner, releasedAtMs: undefined };
}

/** The boot that a lease was made in; empty if its attributes do not name one. */
export function leaseBootId({ owner }: Pick<AllocationAttributes, 'owner'>): string {
  return owner['boot-id'] ?? '';
}
