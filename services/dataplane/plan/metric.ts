import type { Wanted, WantedEnd } from '../wiring/network.js';
import type { ObservedRoute } from '../wiring/observed.js';
import type { Route } from '../wiring/step.js';

/** How many interfaces of one pod can have routes to one destination. */
const INTERFACES_MAX = 64;

/**
 * The wanted state with metrics that no other interface of the pod has taken: of the interfaces that lead to a destination the one
 * that was attached first keeps the best metric, and each later one gets the next. What an attachment has already stays as it is,
 * also when the others have gone, so that a pod's routes do not change under it.
 */
export function withFreeMetrics(wanted: Wanted, podRoutes: readonly ObservedRoute[]): Wanted {
  return { ...wanted, pod: endWithFreeMetrics(wanted.pod, podRoutes) };
}

/** {@link withFreeMetrics} of the pod's end alone. */
export function endWithFreeMetrics(pod: WantedEnd, podRoutes: readonly ObservedRoute[]): WantedEnd {
  return { ...pod, routes: pod.routes.map((route) => ({ ...route, metric: metricOf(route, podRoutes) })) };
}

function metricOf({ destination, device, metric: best }: Route, podRoutes: readonly ObservedRoute[]): number {
  const [own, taken] = [new Set<number>(), new Set<number>()];
  for (const route of podRoutes)
    if (route.destination === destination && route.table === undefined)
      (route.device === device ? own : taken).add(route.metric);
  let free: number | undefined;
  for (let metric = best; metric < best + INTERFACES_MAX; metric++) {
    if (taken.has(metric)) continue;
    if (own.size === 0 || own.has(metric)) return metric;
    free ??= metric;
  }
  return free ?? best;
}
