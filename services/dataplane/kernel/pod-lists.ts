import { Failure } from '@podwire/shared/failure/failure';

/** Lists that the kernel returns for a pod's namespace. */
export type PodListKind = 'links' | 'addresses' | 'routes' | 'rules' | 'neighbours';

/**
 * Limits for reading a pod's namespace. A privileged pod can fill its own tables; its lists must not consume the memory or the
 * time of the node's other pods.
 */
export interface PodListBounds {
  /** Most objects of a kind, including filtered ones. */
  readonly maxCount: number;
  /** Most time for a list, in milliseconds. */
  readonly timeoutMs: number;
}

/** Far above need: a pod has five routes. A list of this length takes 30 ms of CPU time. */
export const POD_LIST_BOUNDS: PodListBounds = { maxCount: 4096, timeoutMs: 2000 };

/** A list beyond its limits: the pod is neither checked nor repaired. Other pods are unaffected. */
export function podUnreadableFailure(netns: string, reason: string): Failure {
  const message = `pod namespace ${netns}: ${reason}; remove them in the pod, or delete the pod`;
  return new Failure('POD_UNREADABLE', message, { details: { netns } });
}

/** @returns the reason why a list that is too long is not read */
export function tooManyReason(kind: PodListKind, { maxCount }: Pick<PodListBounds, 'maxCount'>): string {
  return `more than ${maxCount} ${kind}`;
}
