import { inventoryDigest } from '@podwire/shared/attachment/inventory-digest';
import type { InventoryAttachment, UnknownAllocation } from '@podwire/proto/podwire/ipam/v1/lease';
import type { AttachmentRecord } from '@podwire/dataplane/records/record';
import type { AllocatedAddress } from '@podwire/shared/attachment/allocation';
import type { AttachmentUsage } from '@podwire/plugin/clients/clients';
import type { Attachment } from '@podwire/shared/attachment/attachment';
import type { Boot } from '@podwire/shared/runtime/boot';

/** The largest inventory of the contract. */
const MAX_ATTACHMENTS_COUNT = 4096;
const MAX_LEASES_COUNT = 1024;

/** Allocations that the datastore has for this node, and the node keeps without a record. */
export interface KeptAllocation extends AllocatedAddress {
  readonly attachment: Attachment;
}

interface Holdings {
  /** Records of attachments that are or were completely wired. */
  readonly records: readonly AttachmentRecord[];
  /** Available leases, and leases of ADDs in progress. */
  readonly leases: readonly AllocatedAddress[];
  readonly kept: readonly KeptAllocation[];
}

/** Inventory of the node, in the form of the contract. */
export interface Inventory {
  readonly attachments: InventoryAttachment[];
  readonly leases: AllocatedAddress[];
  /** Also over the kept allocations, so that it equals the datastore's when nothing has changed. */
  readonly digest: Buffer;
}

export function inventoryOf({ records, leases, kept }: Holdings): Inventory {
  const attachments = records.flatMap(({ network, allocation, state }): InventoryAttachment[] => {
    if (!allocation) return [];
    const { pod, addresses } = allocation;
    return [{ attachment: network.attachment, pod, addresses: [...addresses], ended: state !== 'attached' }];
  });
  const entries = [
    ...records.flatMap(({ network: { attachment }, allocation }) =>
      (allocation?.addresses ?? []).map((each) => ({ ...each, attachment })),
    ),
    ...leases.map((lease) => ({ ...lease, attachment: undefined })),
    ...kept,
  ];
  return {
    attachments: attachments.slice(0, MAX_ATTACHMENTS_COUNT),
    leases: leases.slice(0, MAX_LEASES_COUNT).map(({ address, sequenceNumber }) => ({ address, sequenceNumber })),
    digest: inventoryDigest(entries),
  };
}

/**
 * Whether an allocation without a record, a wire and an ADD in progress is garbage. That needs proof that no other main plugin has
 * wired the pod: the pod's boot has ended, or Podwire wires all pods of the network.
 * @param usage - of the attachment, by the plugin
 */
export function isGarbage(
  { netns, allocateTime }: Pick<UnknownAllocation, 'netns' | 'allocateTime'>,
  usage: AttachmentUsage,
  boot: Boot,
): boolean {
  if (usage === 'pending' || usage === 'gateway') return false;
  // podwire-ipam hides what a second machine with the node's name has, so that another boot is an earlier one.
  const isOfEarlierBoot = netns?.bootId
    ? netns.bootId !== boot.id
    : allocateTime !== undefined && allocateTime.getTime() < boot.startedAtMs;
  return isOfEarlierBoot || usage === 'wired';
}
