import { NetlinkError, type Namespace } from '@podwire/netlink';

import { tooManyReason, podUnreadableFailure, type PodListBounds, type PodListKind } from './pod-lists.js';
import type { PodListing } from './pod-observe.js';

/** Requests that read a pod's namespace, links included. */
export type BoundedPod = PodListing & Pick<Namespace, 'links'>;

/** Bounds the lists of a pod's namespace: beyond a limit they fail with POD_UNREADABLE. */
export function boundedPod(pod: Namespace, bounds: PodListBounds): BoundedPod {
  const netns = pod.path ?? '';
  const { maxCount, timeoutMs } = bounds;
  const bounded = async <List>(kind: PodListKind, list: Promise<List>): Promise<List> => {
    try {
      return await list;
    } catch (error) {
      const reason = error instanceof NetlinkError ? reasonOf(error, kind, bounds) : undefined;
      throw reason === undefined ? error : podUnreadableFailure(netns, reason);
    }
  };
  return {
    links: () => bounded('links', pod.links(bounds)),
    addresses: (filter) => bounded('addresses', pod.addresses({ maxCount, timeoutMs, ...filter })),
    routes: (filter) => bounded('routes', pod.routes({ maxCount, timeoutMs, ...filter })),
    rules: (filter) => bounded('rules', pod.rules({ maxCount, timeoutMs, ...filter })),
    neighbours: (filter) => bounded('neighbours', pod.neighbours({ maxCount, timeoutMs, ...filter })),
    readSysctls: (keys) => pod.readSysctls(keys),
    sequence: (steps) => pod.sequence(steps),
  };
}

/** @returns undefined when the kernel refused for a reason that the pod did not cause */
function reasonOf({ code }: NetlinkError, kind: PodListKind, bounds: PodListBounds): string | undefined {
  switch (code) {
    case 'E2BIG':
      return tooManyReason(kind, bounds);
    case 'ETIMEDOUT':
      return `${kind} that take more than ${bounds.timeoutMs} ms to read`;
    case 'EINTR':
      return `${kind} that change each time they are read`;
    default:
      return undefined;
  }
}
