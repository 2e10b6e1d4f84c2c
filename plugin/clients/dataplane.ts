import {
  PodServiceService,
  type AttachPodResponse,
  type Interface as InterfaceMessage,
  type PodNetwork,
} from '@podwire/proto/podwire/dataplane/v1/pod';
import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { hostInterfaceName } from '@podwire/shared/attachment/names';
import { Failure } from '@podwire/shared/failure/failure';

import type { Dataplane, Interface, Limits, WantedPod, Wire } from './clients.js';
import { RepeatingPeer, type PeerOptions } from './retrying-client.js';

/** The most that the contract gives in one page. */
const PAGE_SIZE = 1000;

/** podwire-dataplane over gRPC. */
export function dataplaneClient(options: PeerOptions): Dataplane {
  const peer = new RepeatingPeer(options);
  const { attachPod, detachPod, checkPod } = PodServiceService;
  const wireOf = ({ hostInterface, podInterface }: AttachPodResponse): Wire => ({
    hostInterface: interfaceOf(peer.required(hostInterface, 'a host interface')),
    podInterface: interfaceOf(peer.required(podInterface, 'a pod interface')),
  });
  return {
    openAttachPod(limits) {
      const { make, close } = peer.open(attachPod, limits);
      return { make: async (pod, within) => wireOf(await make({ pod: messageOf(pod) }, within)), close };
    },

    async detachPod({ attachment, netns }, limits) {
      try {
        await peer.call(detachPod, { attachment, netns, hostInterfaceName: hostInterfaceName(attachment) }, limits);
      } catch (failure) {
        // The interface of that name is another's, so this attachment has none.
        if (!(failure instanceof Failure && failure.code === 'HOST_INTERFACE_TAKEN')) throw failure;
      }
    },

    async checkPod(pod, limits) {
      const { differences } = await peer.call(checkPod, { pod: messageOf(pod) }, limits);
      return differences[0];
    },

    isAttached: (attachment, limits) => isListed(peer, attachment, limits),
  };
}

/** Scans the list of all attachments: the API has no lookup of one, and this is called rarely. */
async function isListed(peer: RepeatingPeer, attachment: Attachment, limits: Limits): Promise<boolean> {
  const wanted = formatAttachment(attachment);
  let pageToken = '';
  do {
    const page = await peer.call(PodServiceService.listPods, { pageSize: PAGE_SIZE, pageToken }, limits);
    if (page.pods.some((pod) => pod.attachment && formatAttachment(pod.attachment) === wanted)) return true;
    pageToken = page.nextPageToken;
  } while (pageToken !== '');
  return false;
}

/** What the plugin leaves to podwire-dataplane: the routes, and the kernel's default. */
const LEFT_OPEN = { routes: [], txQueueLength: 0 };

function messageOf({ addresses, sourcePrefixes, ...pod }: WantedPod): PodNetwork {
  return { addresses: [...addresses], sourcePrefixes: [...sourcePrefixes], ...pod, ...LEFT_OPEN };
}

function interfaceOf({ name, macAddress, mtuBytes }: InterfaceMessage): Interface {
  return { name, macAddress, mtuBytes };
}
