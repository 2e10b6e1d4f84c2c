import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { derivedNames } from '@podwire/shared/attachment/names';
import { Failure } from '@podwire/shared/failure/failure';
import { formatAddress, parseAddress, type Address } from '@podwire/shared/net/address';
import { splitCidr } from '@podwire/shared/net/prefix';

import type { Clock } from '@podwire/shared/runtime/clock';
import type { Allocation, Endpoint, Ipam, Limits } from '../clients/clients.js';
import type { Command } from '../cni/environment.js';
import type { Result } from '../cni/result.js';
import type { AddressProvider, AddressRequest } from './address-provider.js';
import { authorize } from './ipam-addresses.js';
import {
  addByDelegate,
  callDelegate,
  isRefusal,
  pluginName,
  programOf,
  type Delegate,
  type IpamCircuitBreaker,
} from './ipam-plugin.js';
import { withPodCidrs, type PodCidrs } from './pod-cidr.js';

/** Dependencies of the providers that are programs. */
export interface PluginAddressesDeps {
  /** Authorizes what a pod requests. */
  readonly ipam: Ipam;
  readonly circuitBreaker: IpamCircuitBreaker;
  readonly clock: Clock;
  /** Ranges for `usePodCidr`. */
  readonly podCidrs: PodCidrs;
}

/** A delegated IPAM plugin: a program that is started for each call, and that cannot list its allocations. */
export function pluginAddresses(delegate: Delegate, deps: PluginAddressesDeps): AddressProvider {
  const { ipam, circuitBreaker, clock, podCidrs } = deps;
  const call = async (command: Command, limits: Limits) =>
    callDelegate(await withPodCidrs(delegate), command, { clock, limits });
  const complete = (limits: Limits) => withPodCidrs(delegate, () => podCidrs(limits));
  const release: AddressProvider['release'] = ({ network }, _, limits) =>
    circuitBreaker.run(network, delegate, () => call('DEL', limits));
  return {
    type: delegate.type,
    name: pluginName(delegate),
    source: { delegate },

    prepare: async (limits) => void programOf(await complete(limits), 'ADD'),
    async allocate(request, _, limits) {
      await authorize(request, { ipam, limits });
      const allocation = await allocate(await complete(limits), request, { clock, limits });
      return { ...allocation, undo: (undoLimits) => release(request.attachment, undefined, undoLimits) };
    },
    isRefusal: (error) => isRefusal(error, delegate),
    release,

    async check({ attachment, config }, limits) {
      await call('CHECK', limits);
      return endpointFromResult(attachment, config.prevResult);
    },

    async collect(_, limits) {
      await call('GC', limits);
    },

    async isServing(limits) {
      await call('STATUS', limits);
      return true;
    },
  };
}

/**
 * The plugin does not report whether an earlier ADD allocated the addresses, so they count as allocated before: an existing wire
 * then proves that a pod uses them.
 * @throws Failure, as {@link addByDelegate}; ADDRESS_REFUSED when a requested address is missing from the result
 */
async function allocate(
  delegate: Delegate,
  { attachment, podRequest }: AddressRequest,
  tools: Parameters<typeof addByDelegate>[1],
): Promise<Allocation> {
  const { addresses, dns } = await addByDelegate(delegate, tools);
  const returned = addresses.map(formatAddress);
  const missing = podRequest.addresses.find((address) => !returned.includes(address));
  if (missing !== undefined) {
    throw new Failure(
      'ADDRESS_REFUSED',
      `${formatAttachment(attachment)} requests ${missing}, but ${pluginName(delegate)} returned ${returned.join(', ')}; request it in the way that plugin supports`,
    );
  }
  return { endpoint: endpointOf(attachment, addresses), alreadyAllocated: true, dns };
}

/** Replaces a provider's addresses by the addresses that a pod requests without IPAM. */
export function addressesWithoutIpam({
  ipam,
}: Pick<PluginAddressesDeps, 'ipam'>): Pick<AddressProvider, 'allocate' | 'check'> {
  const endpointFor = ({ attachment, podRequest }: AddressRequest): Endpoint =>
    endpointOf(
      attachment,
      podRequest.addressesWithoutIpam.flatMap((text) => parseAddress(text) ?? []),
    );
  return {
    async allocate(request, _, limits) {
      await authorize(request, { ipam, limits });
      // They count as allocated before, so that only a wire decides whether an earlier ADD holds them.
      const undo = () => Promise.resolve();
      return { endpoint: endpointFor(request), alreadyAllocated: true, undo };
    },
    check: (request) => Promise.resolve(endpointFor(request)),
  };
}

/** The pod's addresses according to a result of ADD: the only record of a plugin's addresses. */
function endpointFromResult(attachment: Attachment, prevResult: Result | undefined): Endpoint | undefined {
  const { interfaces = [], ips = [] } = prevResult ?? {};
  const podInterfaceIndex = interfaces.findIndex(
    ({ name, sandbox }) => name === attachment.interfaceName && (sandbox ?? '') !== '',
  );
  const addresses = ips.flatMap((each) =>
    each.interface === podInterfaceIndex ? (splitCidr(each.address)?.address ?? []) : [],
  );
  return addresses.length === 0 ? undefined : endpointOf(attachment, addresses);
}

/** The endpoint of an attachment whose addresses podwire-ipam does not allocate. */
function endpointOf(attachment: Attachment, addresses: readonly Address[]): Endpoint {
  const { hostInterfaceName, mac } = derivedNames(attachment);
  return { addresses, addressesFromIpam: false, held: [], macAddress: mac, hostInterfaceName };
}
