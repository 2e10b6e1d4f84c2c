import {
  PodServiceService,
  type AttachedPod,
  type AttachPodResponse,
  type Interface as InterfaceMessage,
  type PodNetwork,
} from '@podwire/proto/podwire/dataplane/v1/pod';
import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { hostInterfaceName } from '@podwire/shared/attachment/names';
import { Failure } from '@podwire/shared/failure/failure';

import type { Dataplane, Interface, Limits, DesiredPod, Wire } from './clients.js';
import { RetryingPeer, type PeerOptions } from './retrying-client.js';

/** The largest page of the contract. */
const PAGE_SIZE = 1000;

/** podwire-dataplane over gRPC. */
export function dataplaneClient(options: PeerOptions): Dataplane {
  const peer = new RetryingPeer(options);
  const { attachPod, detachPod, checkPod, getPod } = PodServiceService;
  const wireOf = ({ hostInterface, podInterface }: AttachPodResponse): Wire => ({
    hostInterface: interfaceOf(peer.required(hostInterface, 'a host interface')),
    podInterface: interfaceOf(peer.required(podInterface, 'a pod interface')),
  });
  return {
    async attachPod(pod, limits) {
      return wireOf(await peer.call(attachPod, { pod: messageOf(pod) }, limits));
    },

    async detachPod({ attachment, netns }, limits) {
      try {
        await peer.call(detachPod, { attachment, netns, hostInterfaceName: hostInterfaceName(attachment) }, limits);
      } catch (failure) {
        // The interface of that name belongs to another attachment, so this one is detached.
        if (!(failure instanceof Failure && failure.code === 'HOST_INTERFACE_TAKEN')) throw failure;
      }
    },

    async checkPod(pod, limits) {
      const { differences } = await peer.call(checkPod, { pod: messageOf(pod) }, limits);
      return differences[0];
    },

    async isAttached(attachment, limits) {
      try {
        await peer.call(getPod, { attachment }, limits);
        return true;
      } catch (failure) {
        if (failure instanceof Failure && failure.code === 'ATTACHMENT_NOT_FOUND') return false;
        // A dataplane of an earlier release lacks GetPod.
        if (!(failure instanceof Failure && failure.code === 'UNIMPLEMENTED')) throw failure;
        return isListed(peer, attachment, limits);
      }
    },
  };
}

async function isListed(peer: RetryingPeer, attachment: Attachment, limits: Limits): Promise<boolean> {
  const key = formatAttachment(attachment);
  for await (const pod of listedPods(peer, limits)) {
    if (pod.attachment && formatAttachment(pod.attachment) === key) return true;
  }
  return false;
}

/** The attachments that the kernel holds, page after page. */
export async function* listedPods(peer: RetryingPeer, limits: Limits): AsyncGenerator<AttachedPod, void> {
  let pageToken = '';
  do {
    const page = await peer.call(PodServiceService.listPods, { pageSize: PAGE_SIZE, pageToken }, limits);
    yield* page.pods;
    pageToken = page.nextPageToken;
  } while (pageToken !== '');
}

/** Fields whose default podwire-dataplane chooses. */
const DATAPLANE_DEFAULTS = { routes: [], txQueueLength: 0 };

function messageOf({ addresses, sourcePrefixes, ...pod }: DesiredPod): PodNetwork {
  return { addresses: [...addresses], sourcePrefixes: [...sourcePrefixes], ...pod, ...DATAPLANE_DEFAULTS };
}

function interfaceOf({ name, macAddress, mtuBytes }: InterfaceMessage): Interface {
  return { name, macAddress, mtuBytes };
}
