import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { derivedNames } from '@podwire/shared/attachment/names';
import { Failure } from '@podwire/shared/failure/failure';
import { familyBits, formatAddress } from '@podwire/shared/net/address';
import { splitCidr } from '@podwire/shared/net/prefix';

import type { Allocation, Endpoint } from '../clients/clients.js';
import type { Wish } from '../cni/pod-request.js';
import type { Result } from '../cni/result-form.js';
import { addByDelegate, type DelegateTools } from './ipam-plugin.js';
import type { Delegate } from './mode.js';

interface DelegatedRequest {
  readonly attachment: Attachment;
  readonly wish: Wish;
  readonly delegate: Delegate;
}

/**
 * Gets an attachment its addresses from another IPAM plugin. Whether an earlier ADD got them is not told, so that they are taken for
 * allocated before: a wire then proves that a pod lives on them.
 * @throws Failure, as {@link addByDelegate}; ADDRESS_REFUSED when a wanted address is not among them
 */
export async function delegatedEndpoint(request: DelegatedRequest, tools: DelegateTools): Promise<Allocation> {
  const { attachment, wish, delegate } = request;
  const { addresses, dns } = await addByDelegate(delegate, tools);
  const given = addresses.map((cidr) => cidr.split('/')[0]);
  const missing = wish.addresses.find((address) => !given.includes(address));
  if (missing !== undefined) {
    throw new Failure(
      'ADDRESS_REFUSED',
      `${formatAttachment(attachment)} asks for ${missing}, and IPAM plugin ${delegate.type} gave ${given.join(', ')}; ask for it as that plugin is asked`,
    );
  }
  return { endpoint: endpointOf(attachment, addresses), alreadyAllocated: true, poolNames: [], dns };
}

/** What a result says that the pod's interface has: the record of addresses that another IPAM plugin gave. */
export function answeredEndpoint(attachment: Attachment, prevResult: Result | undefined): Endpoint | undefined {
  const { interfaces = [], ips = [] } = prevResult ?? {};
  const place = interfaces.findIndex(
    ({ name, sandbox }) => name === attachment.interfaceName && (sandbox ?? '') !== '',
  );
  const addresses = ips.flatMap((each) => (each.interface === place ? fullLength(each.address) : []));
  return addresses.length === 0 ? undefined : endpointOf(attachment, addresses);
}

function fullLength(cidr: string): string[] {
  const address = splitCidr(cidr)?.address;
  return address ? [`${formatAddress(address)}/${familyBits(address.family)}`] : [];
}

function endpointOf(attachment: Attachment, addresses: readonly string[]): Endpoint {
  const { hostInterfaceName, mac } = derivedNames(attachment);
  return { addresses, held: [], macAddress: mac, hostInterfaceName };
}
