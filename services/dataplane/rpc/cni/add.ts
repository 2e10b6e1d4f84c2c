import { AddReply, type AddRequest } from '@podwire/proto/calico/cni/cnibackend';
import { Failure } from '@podwire/shared/failure/failure';
import type { Handler } from '@podwire/shared/rpc/unary';

import type { Attached } from '../../attachments/outcomes.js';
import type { PodNetwork } from '../../plan/pod-network.js';
import { CALICO_NETWORK } from '../../pods/calico-attachment.js';
import { errorMessage, readAdd } from '../../pods/calico-cni-rpc.js';
import type { Dataplane } from '../../pods/pods.js';
import type { CniParts } from './del.js';
import { withinLimit } from './limit.js';

export function cniAdd({ dataplane, refused }: CniParts): Handler<AddRequest, AddReply> {
  return async (request, call) => {
    try {
      const network = readAdd(request);
      const { host, pod } = await withinLimit(call.signal, (signal) => attach(dataplane, network, signal));
      return { successful: true, errorMessage: '', hostInterfaceName: host.name, containerMac: pod.mac ?? network.mac };
    } catch (error) {
      refused('Add', error);
      return AddReply.fromPartial({ successful: false, errorMessage: errorMessage(error) });
    }
  };
}

/**
 * Calico's host interfaces have the same name for each sandbox of a pod, so that an earlier one's may be there, whose Del was lost
 * or is still to come. It gives way to the new one, as with Calico's own dataplane; what is not of this service does not.
 */
async function attach(dataplane: Dataplane, network: PodNetwork, signal: AbortSignal): Promise<Attached> {
  try {
    return await dataplane.attach(network, signal);
  } catch (error) {
    if (!(error instanceof Failure) || error.code !== 'HOST_INTERFACE_TAKEN') throw error;
    const { hostInterfaceName } = network;
    const { links } = await dataplane.list({ limit: Infinity, after: '' });
    const earlier = links.find(({ link }) => link.name === hostInterfaceName)?.attachment;
    if (earlier?.network !== CALICO_NETWORK) throw error;
    await dataplane.detach({ attachment: earlier, hostInterfaceName }, signal);
    return dataplane.attach(network, signal);
  }
}
