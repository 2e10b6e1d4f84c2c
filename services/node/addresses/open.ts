import { join } from 'node:path';

import type { NodeAddressParts } from '@podwire/dataplane/node-addresses';
import type { Peer } from '@podwire/shared/rpc/client';
import type { Clock } from '@podwire/shared/runtime/clock';
import type { Logger } from '@podwire/shared/runtime/log';

import { AddressBook, type AddressBookOptions } from './address-book.js';
import { AddressEvents } from './events.js';
import { ipamLeaseApi } from './lease-api.js';
import { TmpfsLeaseFile } from './lease-file.js';
import { readMachineId } from './machine-id.js';

/** File beside the records; a name without a suffix is not taken for a record. */
const LEASE_FILE = 'leases';

/** File in the state directory, which a reboot keeps. */
const MACHINE_ID_FILE = 'machine-id';

interface AddressSettings {
  readonly nodeName: string;
  readonly recordsDirectory: string;
  readonly stateDirectory: string;
  readonly leasesLow: number;
  readonly leasesHigh: number;
}

interface AddressDeps extends Pick<AddressBookOptions, 'boot' | 'random'> {
  readonly log: Logger;
  readonly clock: Clock;
  /** podwire-ipam. It need not run yet. */
  readonly ipam: Peer;
}

/** Opens the address book of this process. */
export async function openAddressBook(
  { nodeName, recordsDirectory, stateDirectory, leasesLow, leasesHigh }: AddressSettings,
  { log, clock, random, boot, ipam }: AddressDeps,
  parts: NodeAddressParts,
): Promise<AddressBook> {
  const events = new AddressEvents(log);
  const idPath = join(stateDirectory, MACHINE_ID_FILE);
  const path = join(recordsDirectory, LEASE_FILE);
  return AddressBook.open({
    ...parts,
    api: ipamLeaseApi(ipam, clock),
    file: new TmpfsLeaseFile({ path, nodeName, bootId: boot.id, events }),
    marks: { lowCount: leasesLow, highCount: leasesHigh },
    nodeName,
    machineId: await readMachineId(idPath, boot.id, (error) => events.machineIdFailed(idPath, error)),
    boot,
    events,
    clock,
    random,
  });
}
