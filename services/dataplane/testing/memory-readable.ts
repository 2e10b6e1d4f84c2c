import { tooMany, unreadablePod, type PodListBounds, type PodListKind } from '../pods/pod-lists.js';
import type { MemoryNamespace } from './memory-namespace.js';

interface Reading extends Pick<PodListBounds, 'maxCount'> {
  readonly netns: string;
  /** What is listed of it. */
  readonly kinds: readonly PodListKind[];
}

/** A pod's namespace that is to be read. @throws Failure POD_UNREADABLE where it holds more than that */
export function readable(pod: MemoryNamespace, { netns, kinds, maxCount }: Reading): MemoryNamespace {
  const kind = kinds.find((each) => pod[each].length > maxCount);
  if (kind !== undefined) throw unreadablePod(netns, tooMany(kind, { maxCount }));
  return pod;
}
