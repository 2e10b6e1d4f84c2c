import { Failure } from '@podwire/shared/failure/failure';

/** What a kernel lists of a pod's namespace. */
export type PodListKind = 'links' | 'addresses' | 'routes' | 'rules' | 'neighbours';

/**
 * How much of a pod's namespace is read. A privileged pod can fill its own tables, and its lists must cost neither the memory nor the
 * time of the node's other pods.
 */
export interface PodListBounds {
  /** Most objects of a kind, those of no interest included. */
  readonly maxCount: number;
  /** Most time for a list, in milliseconds. */
  readonly timeoutMs: number;
}

/** Far above what a pod needs: a pod has five routes. A list of this length takes 30 ms of a processor. */
export const POD_LIST_BOUNDS: PodListBounds = { maxCount: 4096, timeoutMs: 2000 };

/** A list beyond its bounds: the pod is neither checked nor repaired. Others are not concerned. */
export function unreadablePod(netns: string, reason: string): Failure {
  const message = `pod namespace ${netns}: ${reason}; remove them in the pod, or delete the pod`;
  return new Failure('POD_UNREADABLE', message, { details: { netns } });
}

/** @returns why a list that is too long is not read */
export function tooMany(kind: PodListKind, { maxCount }: Pick<PodListBounds, 'maxCount'>): string {
  return `more than ${maxCount} ${kind}`;
}
