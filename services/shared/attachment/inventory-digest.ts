import { hash } from 'node:crypto';

import type { AllocatedAddress } from './allocation.js';
import { formatAttachment, type Attachment } from './attachment.js';

interface InventoryEntry extends AllocatedAddress {
  /** Attachment; undefined for a lease. */
  readonly attachment: Attachment | undefined;
}

/**
 * SHA-256 of what a node holds. A node and podwire-ipam compute it of their own records: while both are equal, the node does
 * not send its inventory. Independent of the order.
 */
export function inventoryDigest(entries: readonly InventoryEntry[]): Buffer {
  const lines = entries.map(({ address, sequenceNumber, attachment }) => {
    const owner = attachment ? formatAttachment(attachment) : 'lease';
    return `${address} ${sequenceNumber} ${owner}\n`;
  });
  return hash('sha256', lines.sort().join(''), 'buffer');
}
