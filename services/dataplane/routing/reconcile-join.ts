import type { ClusterChange } from '../cluster/cluster.js';

/** What may have changed over two changes. */
export function joinChanges(earlier: ClusterChange, later: ClusterChange): ClusterChange {
  const others = earlier.others || later.others;
  if (earlier.blocks === 'all' || later.blocks === 'all') return { blocks: 'all', others };
  return { blocks: new Set([...earlier.blocks, ...later.blocks]), others };
}
