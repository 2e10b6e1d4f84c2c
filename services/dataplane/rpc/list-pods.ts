import type { AttachedPod, ListPodsRequest, ListPodsResponse } from '@podwire/proto/podwire/dataplane/v1/pod';
import { checked } from '@podwire/shared/rpc/checks';
import { formatPageToken, readPageSize, readPageToken, type ListScope } from '@podwire/shared/rpc/paging';
import type { Handler } from '@podwire/shared/rpc/unary';

import type { AttachedPage, Page } from '../attachments/attached-page.js';
import { interfaceMessage } from '../pods/pods-rpc.js';
import type { Dataplane } from '../pods/pods.js';

const SCOPE: ListScope = ['pods'];

export function listPods(dataplane: Dataplane): Handler<ListPodsRequest, ListPodsResponse> {
  return async (message) => {
    const { links, last } = await dataplane.list(readPage(message));
    return {
      pods: links.map(attachedPodMessage),
      nextPageToken: last === undefined ? '' : formatPageToken(SCOPE, last),
    };
  };
}

function readPage(message: ListPodsRequest): Page {
  return checked('ListPods', (checks) => ({
    limit: readPageSize(message, checks),
    after: readPageToken(message, SCOPE, checks),
  }));
}

function attachedPodMessage({ attachment, link, addresses }: AttachedPage['links'][number]): AttachedPod {
  return { attachment, hostInterface: interfaceMessage(link), addresses: [...addresses], up: link.running };
}
