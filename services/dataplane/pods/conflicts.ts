import { Failure } from '@podwire/shared/failure/failure';
import { formatAddress } from '@podwire/shared/net/address';

import type { Condition } from '../routes/wanted.js';
import type { LostAddress, SharedAddress } from './registry.js';

/** Takes no address from the attachment that was given it last. @throws Failure ROUTE_TAKEN where one is lost */
export function refuseLost([lost]: readonly LostAddress[]): void {
  if (!lost) return;
  const address = formatAddress(lost.address);
  const message = `${address} was given to ${lost.holder} since: delete the one of the two that podwirectl who ${address} does not name`;
  throw new Failure('ROUTE_TAKEN', message, { details: { route: address, interface: '' } });
}

/** What an operator should know of addresses that several of the node's pods have. */
export function addressConflicts(shared: readonly SharedAddress[]): Condition[] {
  return shared.map(({ address, holder, others }) => ({
    reason: 'AddressShared',
    message:
      `${address} was given to ${holder} while ${others.join(', ')} had it, as may be where IPAM's datastore was restored: the node leads it ` +
      `to the former, and the latter neither gets nor sends packets with it. Delete the pod that podwirectl who ${address} does not name`,
  }));
}
