import { Failure, violationsFailure } from '@podwire/shared/failure/failure';
import { splitCidr } from '@podwire/shared/net/prefix';

import type { Allocation } from '../clients/clients.js';
import { writeResult, type ResultIp } from '../cni/result-form.js';
import type { CommandTools } from '../commands/context.js';
import { finishEarlier } from '../commands/settle-entry.js';
import { undo, type Progress } from '../commands/undo.js';
import { obtainEndpoint } from '../commands/wanted-pod.js';
import type { PodRequest } from '../requests/request.js';
import { givenGateway, isBroadcast, nodeGateway, poolPrefix } from './gateway.js';
import { readIpamOptions, type IpamOptions } from './ipam-options.js';

/**
 * ADD of `podwire-ipam`: gives the plugin above it addresses, as it needs them to wire a pod by itself.
 *
 * An address comes with the length of its pool's prefix, as `ptp` and `bridge` make routes of it and fail with one of full length; and
 * with a gateway in that prefix, which is the node's own in the pool unless the configuration names one. The dataplane has no part in it.
 *
 * Idempotent: repeated for the same attachment it gives the same answer.
 * @returns an IPAM result in the form of the configuration's cniVersion
 * @throws Failure with what could not be undone, where that failed too
 */
export async function addAddresses(request: PodRequest, tools: CommandTools): Promise<object> {
  const { attachment, config, wish } = request;
  const options = readIpamOptions(request.configuration);
  if (wish.addressesWithoutIpam.length > 0) throw withoutIpam();
  const netns = tools.netns.identify(request.netns, { allowsOwn: request.overridesNetns });
  await finishEarlier(attachment, tools);

  let progress: Progress = { reached: 'addresses', held: false, allocation: undefined };
  try {
    const allocation = await obtainEndpoint(request, netns, tools);
    const { endpoint, alreadyAllocated } = allocation;
    progress = { reached: 'addresses', held: alreadyAllocated, allocation: endpoint.held };
    const ips = await ipsOf({ request, allocation, options }, tools);
    tools.limits.signal.throwIfAborted();
    tools.knownAllocations.remember(attachment, endpoint.held);
    await tools.journal.added(attachment);
    const rest = options.dns ? { dns: options.dns } : {};
    return writeResult({ interfaces: [], ips, routes: options.routes, rest }, config.cniVersion);
  } catch (error) {
    throw await undo({ attachment, progress, error }, tools);
  }
}

function withoutIpam(): Failure {
  return violationsFailure('INVALID_CONFIG', 'request refused', [
    { field: 'ipAddrsNoIpam', reason: 'asks for addresses without IPAM, and podwire-ipam is run as IPAM; remove it' },
  ]);
}

interface Answering {
  readonly request: PodRequest;
  readonly allocation: Allocation;
  readonly options: IpamOptions;
}

/** The addresses as interfaces get them. @throws Failure ADDRESS_REFUSED for one that no interface of its pool can have */
function ipsOf({ request, allocation, options }: Answering, tools: CommandTools): Promise<ResultIp[]> {
  const { endpoint, poolNames } = allocation;
  const { network } = request.attachment;
  const nodeName = request.config.nodeName ?? tools.nodeName;
  return Promise.all(
    endpoint.addresses.map(async (cidr, index) => {
      const poolName = poolNames[index] ?? '';
      const address = splitCidr(cidr)?.address;
      if (!address) throw new Failure('INTERNAL', `podwire-ipam: answered ${JSON.stringify(cidr)} for an address`);
      const prefix = await poolPrefix(poolName, tools);
      const text = cidr.slice(0, cidr.indexOf('/'));
      if (isBroadcast(address, prefix)) {
        throw new Failure(
          'ADDRESS_REFUSED',
          `${text} is the broadcast address of pool ${poolName}, which no interface beside others can have; reserve it, and repeat the request`,
        );
      }
      const place = { network, nodeName, poolName };
      const gateway = options.gateways
        ? givenGateway(options.gateways, prefix)
        : await nodeGateway(place, prefix, tools);
      if (gateway === text) {
        throw new Failure(
          'ADDRESS_REFUSED',
          `${text} is the gateway of the configuration; reserve it, and repeat the request`,
        );
      }
      return { address: `${text}/${prefix.length}`, ...(gateway !== undefined && { gateway }) };
    }),
  );
}
