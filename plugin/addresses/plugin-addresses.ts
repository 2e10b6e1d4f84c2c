import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { derivedNames } from '@podwire/shared/attachment/names';
import { Failure } from '@podwire/shared/failure/failure';

import type { Allocation, Endpoint } from '../clients/clients.js';
import type { Result } from '../cni/result.js';
import type { AddressProvider, AddressRequest, AddressTools } from './address-provider.js';
import { authorize } from './ipam-addresses.js';
import {
  addByDelegate,
  callDelegate,
  fullLength,
  isRefusal,
  pluginName,
  programOf,
  type Delegate,
} from './ipam-plugin.js';

/** A delegated IPAM plugin: a program that is started for each call, and that cannot list its allocations. */
export function pluginAddresses(delegate: Delegate): AddressProvider {
  return {
    type: delegate.type,
    name: pluginName(delegate),
    source: { delegate },
    part: 'ipam-plugin',
    services: [],

    prepare: () => void programOf(delegate, 'ADD'),
    allocate: (request, _, tools) => allocate(delegate, request, tools),
    isRefusal: (error) => isRefusal(error, delegate),
    release: ({ network }, _, tools) =>
      tools.circuitBreaker.run(network, delegate, () => callDelegate(delegate, 'DEL', tools)),

    async check({ attachment, config }, tools) {
      await callDelegate(delegate, 'CHECK', tools);
      return endpointFromResult(attachment, config.prevResult);
    },

    async collect(_, tools) {
      await callDelegate(delegate, 'GC', tools);
    },

    async isServing(tools) {
      await callDelegate(delegate, 'STATUS', tools);
      return true;
    },
  };
}

/**
 * The plugin does not report whether an earlier ADD allocated the addresses, so they count as allocated before: an existing wire
 * then proves that a pod uses them.
 * @throws Failure, as {@link addByDelegate}; REQUEST_DENIED; ADDRESS_REFUSED when a requested address is missing from the result
 */
async function allocate(delegate: Delegate, request: AddressRequest, tools: AddressTools): Promise<Allocation> {
  const { attachment, podRequest } = request;
  await authorize(request, tools);
  const { addresses, dns } = await addByDelegate(delegate, tools);
  const returned = addresses.map((cidr) => cidr.split('/')[0]);
  const missing = podRequest.addresses.find((address) => !returned.includes(address));
  if (missing !== undefined) {
    throw new Failure(
      'ADDRESS_REFUSED',
      `${formatAttachment(attachment)} requests ${missing}, but ${pluginName(delegate)} returned ${returned.join(', ')}; request it in the way that plugin supports`,
    );
  }
  return { endpoint: endpointOf(attachment, addresses), alreadyAllocated: true, poolNames: [], dns };
}

/** The pod's addresses according to a result of ADD: the only record of a plugin's addresses. */
function endpointFromResult(attachment: Attachment, prevResult: Result | undefined): Endpoint | undefined {
  const { interfaces = [], ips = [] } = prevResult ?? {};
  const podInterfaceIndex = interfaces.findIndex(
    ({ name, sandbox }) => name === attachment.interfaceName && (sandbox ?? '') !== '',
  );
  const addresses = ips.flatMap((each) =>
    each.interface === podInterfaceIndex ? (fullLength(each.address) ?? []) : [],
  );
  return addresses.length === 0 ? undefined : endpointOf(attachment, addresses);
}

/** The endpoint of an attachment whose addresses podwire-ipam does not allocate. */
export function endpointOf(attachment: Attachment, addresses: readonly string[]): Endpoint {
  const { hostInterfaceName, mac } = derivedNames(attachment);
  return { addresses, addressesFromIpam: false, held: [], macAddress: mac, hostInterfaceName };
}
