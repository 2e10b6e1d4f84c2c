import type { Leases } from '@podwire/dataplane/leases/leases';
import type { AttachmentRecord } from '@podwire/dataplane/records/record';
import type { NodeAddresses, RecordedPod } from '@podwire/plugin/clients/clients';
import type { Attachment } from '@podwire/shared/attachment/attachment';
import { familyBits, formatAddress } from '@podwire/shared/net/address';

/** The parts of the running dataplane that have the node's addresses. */
export interface AddressParts {
  readonly leases: Leases;
  readonly recordOf: (attachment: Attachment) => AttachmentRecord | undefined;
}

/** The node's leases and records, as CNI commands use them. */
export function nodeAddresses({ leases, recordOf }: AddressParts): NodeAddresses {
  return {
    take: (attachment, families, signal) => leases.take(attachment, families, signal),
    giveBack: (taken) => leases.giveBack(taken),
    hasLeases: (families) => leases.hasLeases(families),
    recorded(attachment) {
      const record = recordOf(attachment);
      return record && recordedPod(record);
    },
    returned: (attachment, signal) => leases.returned(attachment, signal),
    forget: (attachment) => leases.forget(attachment),
  };
}

function recordedPod({ network, allocation, identity, state }: AttachmentRecord): RecordedPod {
  return {
    addresses: network.addresses.map((address) => `${formatAddress(address)}/${familyBits(address.family)}`),
    allocation,
    netnsInode: identity.inode,
    isDead: state === 'dead',
  };
}
