import { PodServiceService, type AttachedPod } from '@podwire/proto/podwire/dataplane/v1/pod';

import { allPages, type Service } from '../clients/services.js';
import type { Verb } from '../command-line/verb.js';
import { attachmentText } from '../output/words.js';

export const podsList: Verb = {
  name: 'pods list',
  about: 'the pods that are wired on this node, as its kernel reports them',
  details: 'Addresses are those that the node routes to the pod.',
  run: async (_, { dataplane, json }) => {
    const pods = await listPods(dataplane);
    return {
      sections: [
        {
          kind: 'table',
          columns: ['HOST INTERFACE', 'STATE', 'ADDRESSES', { right: 'MTU' }, 'ATTACHMENT'],
          rows: pods.map(({ attachment, hostInterface, addresses, up }) => [
            hostInterface?.name ?? '',
            up ? 'up' : 'down',
            addresses.join(', '),
            String(hostInterface?.mtuBytes ?? ''),
            attachmentText(attachment),
          ]),
          none: 'pods: none',
        },
      ],
      hints: pods.some(({ up }) => !up) ? ['a wire is down; to check it: podwirectl pods check'] : [],
      data: () => json.of(PodServiceService.listPods, { pods, nextPageToken: '' }),
    };
  },
};

export async function listPods(dataplane: Service): Promise<AttachedPod[]> {
  const pages = await allPages((page) => dataplane.call(PodServiceService.listPods, page));
  return pages.flatMap(({ pods }) => pods);
}
