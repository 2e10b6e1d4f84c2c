/**
 * How long things have been missing, for grace periods. Time counts only while it was observed: a machine that slept, or
 * an API server that was down, must not end a grace period.
 */

/** Observed time without each missing thing, in milliseconds. The first observation is 0. */
export type MissingTimes = ReadonlyMap<string, number>;

interface MissingObservation {
  /** Missing now. */
  readonly missing: Iterable<string>;
  /** Returned since the last observation, even if missing again: their time begins again. */
  readonly returned: ReadonlySet<string>;
  /** Observed time since the last observation. */
  readonly elapsedMs: number;
}

export function trackMissing(before: MissingTimes, observation: MissingObservation): MissingTimes {
  const { missing, returned, elapsedMs } = observation;
  const times = new Map<string, number>();
  for (const name of missing) {
    const beforeMs = returned.has(name) ? undefined : before.get(name);
    times.set(name, beforeMs === undefined ? 0 : beforeMs + elapsedMs);
  }
  return times;
}

/** The things that have been missing for the grace period. */
export function overdue(times: MissingTimes, graceMs: number): string[] {
  return [...times].flatMap(([name, missingMs]) => (missingMs >= graceMs ? [name] : []));
}

/**
 * The observed time between two observations, in milliseconds. Times are by the monotonic clock.
 * @param lastMs - time of the last one; undefined when there was none
 * @param longestMs - the longest time between two observations; more is a pause of the process
 */
export function observedMs(nowMs: number, lastMs: number | undefined, longestMs: number): number {
  return lastMs === undefined ? 0 : Math.min(nowMs - lastMs, longestMs);
}

/** Nodes of IPAM against nodes of Kubernetes. */
export interface NodeCensus {
  /** IPAM's nodes that were seen in this cluster. */
  readonly registered: readonly string[];
  /** Kubernetes' Nodes, of one consistent list. */
  readonly present: ReadonlySet<string>;
  /** Nodes whose deletion the API server reported by an event. */
  readonly deleted: ReadonlySet<string>;
}

export interface NodeDeletionDecision {
  readonly names: readonly string[];
  /** Nodes that are not deleted, as the API server may have lost its data. */
  readonly refused: readonly string[];
  /** Why some are refused; empty when none is. */
  readonly reason: string;
}

/**
 * Overdue nodes to delete. A missing node proves little by itself: an API server that was restored from an old
 * backup lacks nodes that still run. So nodes whose deletion was not seen are deleted only while they are few.
 * @param overdueNames - nodes that were missing for the grace period
 */
export function decideNodeDeletions(overdueNames: readonly string[], census: NodeCensus): NodeDeletionDecision {
  const { registered, present, deleted } = census;
  const missing = overdueNames.filter((name) => !present.has(name));
  if (missing.length === 0) return { names: [], refused: [], reason: '' };
  if (present.size === 0) return { names: [], refused: missing, reason: 'the API server has no Node at all' };
  const lostCount = registered.filter((name) => !present.has(name) && !deleted.has(name)).length;
  if (lostCount * 2 <= registered.length) return { names: missing, refused: [], reason: '' };
  const refused = missing.filter((name) => !deleted.has(name));
  const names = missing.filter((name) => deleted.has(name));
  if (refused.length === 0) return { names, refused, reason: '' };
  const reason = `${lostCount} of ${registered.length} nodes are missing, and their deletion was not seen`;
  return { names, refused, reason };
}
