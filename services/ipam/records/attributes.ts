import type { Attachment } from '@podwire/shared/attachment/attachment';
import { handleId } from '@podwire/shared/attachment/names';

/**
 * The attributes of a container's address: Calico's `node`, `namespace`, `pod`, `timestamp`, and two that distinguish
 * attachments.
 */

/** The holder of an address, from its attributes. */
interface Holder {
  readonly nodeName: string;
  /** Its UID is empty, because the attributes do not have it. */
  readonly pod: PodIdentity | undefined;
}

interface HandleHolder {
  readonly handleId: string;
  /** The owner's own description. */
  readonly attributes: Readonly<Record<string, string>>;
  /** Node; undefined for virtual owners. */
  readonly nodeName: string | undefined;
  readonly nowMs: number;
}

/**
 * Names of attributes that the owner of a handle cannot set: the service sets them, or they distinguish attachments.
 */
export const RESERVED_ATTRIBUTES: readonly string[] = ['node', 'timestamp', 'network', 'interface'];

/** The attributes of an address that a handle holds without being an attachment's. */
export function handleAttributes({ handleId: id, attributes, nodeName, nowMs }: HandleHolder): AllocationAttributes {
  const node = nodeName === undefined ? {} : { node: nodeName };
  return { handleId: id, owner: { ...attributes, ...node, timestamp: calicoTime(nowMs) }, releasedAtMs: undefined };
}

/**
 * Whether the attributes belong to the attachment. The handle alone is ambiguous: two interfaces of one container
 * share it, and so do network `a.b` with container `c` and network `a` with container `b.c`.
 */
export function belongsTo(attachment: Attachment): (attributes: AllocationAttributes) => boolean {
  const handle = handleId(attachment);
  return (attributes) =>
    attributes.handleId === handle &&
    attributes.owner.network === attachment.network &&
    attributes.owner.interface === attachment.interfaceName;
}

/**
 * The attachment of attributes that Podwire wrote.
 * @returns undefined for addresses that other writers allocated, whose attributes have no interface
 */
export function attachmentOf({ handleId: handle, owner }: AllocationAttributes): Attachment | undefined {
  const { network, interface: interfaceName } = owner;
  if (network === undefined || interfaceName === undefined || !handle?.startsWith(`${network}.`)) return undefined;
  return { network, containerId: handle.slice(network.length + 1), interfaceName };
}

/**
 * Attributes of a virtual machine's address as Calico's plugin writes them (libcalico-go/lib/backend/model/block.go).
 */
const VIRTUAL_MACHINE_ATTRIBUTES: readonly string[] = ['vmi-name', 'vmi-uid', 'vm-uid', 'vmim-uid'];

/**
 * A virtual machine's handle: `<network>.vmi.<namespace>.<name>`, or a hash after `.vmi.`
 * (libcalico-go/lib/ipam/vmipam).
 */
const VIRTUAL_MACHINE_HANDLE = /.\.vmi\../;

/**
 * Whether a KubeVirt virtual machine holds the address. Calico's plugin keeps it while the machine is stopped, for the
 * next pod that runs it. Its handle does not name a container, and the attributes of the pod are removed with the pod.
 */
export function isVirtualMachine({ handleId: handle, owner }: AllocationAttributes): boolean {
  if (owner.network !== undefined || owner.interface !== undefined) return false;
  const isNamed = VIRTUAL_MACHINE_ATTRIBUTES.some((name) => owner[name] !== undefined);
  return isNamed || (handle !== undefined && VIRTUAL_MACHINE_HANDLE.test(handle));
}

/**
 * The container IDs that a handle may name. Names of networks and container IDs may both contain dots, so there can be
 * several.
 */
export function containerIdsOf(handle: string): string[] {
  const parts = handle.split('.');
  return parts.slice(1).map((_, index) => parts.slice(index + 1).join('.'));
}

/** An owner's own description: `pod`, `note`, and so on. */
export type OwnerAttributes = Readonly<Record<string, string>>;

const NO_ATTRIBUTES: OwnerAttributes = {};

export function sameAttributes(a: AllocationAttributes, b: AllocationAttributes): boolean {
  return (
    a.handleId === b.handleId &&
    a.releasedAtMs === b.releasedAtMs &&
    sameOwnerAttributes(a.owner, b.owner) &&
    (a.alternateOwner === b.alternateOwner ||
      sameOwnerAttributes(a.alternateOwner ?? NO_ATTRIBUTES, b.alternateOwner ?? NO_ATTRIBUTES))
  );
}

export function sameOwnerAttributes(a: OwnerAttributes, b: OwnerAttributes): boolean {
  const names = Object.keys(a);
  return names.length === Object.keys(b).length && names.every((name) => a[name] === b[name]);
}

/** Whether the attributes name a holder without its interface, as Calico's own plugin writes them. */
export function isUnattached({ owner }: AllocationAttributes): boolean {
  return owner.network === undefined && owner.interface === undefined;
}

export function holderOf({ owner }: AllocationAttributes): Holder {
  const { node = '', namespace, pod } = owner;
  const known = namespace !== undefined && pod !== undefined;
  return { nodeName: node, pod: known ? { namespace, name: pod, uid: '' } : undefined };
}

/** Cache: concurrent requests have the same time. */
let lastTime = { timeMs: Number.NaN, text: '' };

/** A time as Go prints it and Calico stores it: `2026-08-22 06:33:25.1 +0000 UTC`. */
export function calicoTime(timeMs: number): string {
  if (timeMs !== lastTime.timeMs) {
    const [date = '', time = ''] = new Date(timeMs).toISOString().replace('Z', '').split('T');
    lastTime = { timeMs, text: `${date} ${time.replace(/\.?0+$/, '')} +0000 UTC` };
  }
  return lastTime.text;
}

const CALICO_TIME = /^(\d{4}-\d{2}-\d{2}) (\d{2}:\d{2}:\d{2})(\.\d{1,9})? \+0000 UTC/;

/** Allocation time in epoch milliseconds, from the attributes; undefined when they have none. */
export function allocatedAtMs({ owner }: AllocationAttributes): number | undefined {
  const [, date, time, fraction = ''] = CALICO_TIME.exec(owner.timestamp ?? '') ?? [];
  const timeMs = Date.parse(`${date}T${time}${fraction.slice(0, 4)}Z`);
  return Number.isNaN(timeMs) ? undefined : timeMs;
}

/** An allocation's properties besides its address. Several ordinals of a block may share one value. */
export interface AllocationAttributes {
  /** The handle that owns the address; undefined where there is none, as during the cool-down. */
  readonly handleId: string | undefined;
  /** The owner's own description: `node`, `namespace`, `pod`, `interface`, `network`, `timestamp`. Stored as `secondary`. */
  readonly owner: Readonly<Record<string, string>>;
  /**
   * The description of a second owner, such as the pod that a virtual machine migrates to: `alternateOwnerAttrs`. Never
   * empty. Calico's tools and SetAttributes write it, no decision reads it, and it is removed with the allocation.
   */
  readonly alternateOwner?: Readonly<Record<string, string>> | undefined;
  /** When the address was released, in epoch milliseconds, while it is cooling down; undefined while it is in use. */
  readonly releasedAtMs: number | undefined;
}

/** The Kubernetes pod behind an endpoint. */
export interface PodIdentity {
  readonly namespace: string;
  readonly name: string;
  /** Empty when the runtime did not pass it. */
  readonly uid: string;
}

/** Distinguishes one network namespace from all earlier ones of the node. */
export interface NetnsIdentity {
  readonly bootId: string;
  readonly inode: bigint;
}
