import type { NetnsIdentity as NetnsMessage } from '@podwire/proto/podwire/ipam/v1/endpoint';
import type { Checks } from '@podwire/shared/rpc/checks';

import type { NetnsIdentity } from '../allocator/records.js';

const UUID = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/;

/** @param field - where the message is, for what is found wrong with it */
export function readNetns(field: string, { bootId, inode }: NetnsMessage, checks: Checks): NetnsIdentity {
  checks.check(`${field}.boot_id`, UUID.test(bootId) ? undefined : 'is not a UUID in lower case');
  checks.check(`${field}.inode`, inode > 0n ? undefined : 'is 0; inodes are numbered from 1');
  return { bootId, inode };
}
