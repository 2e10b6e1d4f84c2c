import { familyOf } from '@podwire/shared/net/address';

import { GATEWAY, METRIC, ROUTE_PROTOCOL, RULE_PRIORITY, tableOf, type Wanted, type WantedEnd } from './network.js';
import type { ObservedEnd, ObservedRoute } from './observed.js';
import type { Route, Rule } from './step.js';

/**
 * Source routing in pods: a packet from an address of an interface other than the pod's first leaves by that interface,
 * regardless of the main table. Otherwise answers would leave by the first one, whose host end drops foreign source addresses.
 */

/** Input for deciding whether an interface is a pod's first. */
type PodRoutes = Pick<ObservedEnd, 'routes' | 'hasEarlierLink'>;

/**
 * Whether an interface is not its pod's first: an earlier one exists, or has left a better metric, or this one already has source
 * routing. Source routing and metrics stay, so that a check of one interface does not depend on when another was detached.
 */
export function isSecondaryInterface(asked: WantedEnd, around: PodRoutes): boolean {
  return isSecondary(endWithFreeMetrics(asked, around.routes), around);
}

function isSecondary({ link, routes }: WantedEnd, around: PodRoutes): boolean {
  const table = tableOf(link.name);
  const hasWorseMetric = routes.some(({ destination, metric }) => metric > METRIC[familyOf(destination)]);
  return around.hasEarlierLink || hasWorseMetric || around.routes.some((route) => route.table === table);
}

/** Adapts the wanted state to the pod: free metrics, and source routing when the interface is not the first. */
export function withSourceRouting(asked: Wanted, pod: PodRoutes): Wanted {
  const wanted = withFreeMetrics(asked, pod.routes);
  if (!isSecondary(wanted.pod, pod)) return wanted;
  const { link, addresses } = wanted.pod;
  const families = ([4, 6] as const).filter((family) => addresses.some((cidr) => familyOf(cidr) === family));
  const table = tableOf(link.name);
  const routes = families.map((family): Route => {
    const [destination, common] = [
      family === 4 ? '0.0.0.0/0' : '::/0',
      { device: link.name, gateway: GATEWAY[family] },
    ];
    // The next hop's own route may lead to another interface in the main table. A link-local next hop needs no route.
    const onlink = family === 4 ? { onlink: true as const } : {};
    return {
      destination,
      ...common,
      metric: METRIC[family],
      scope: 'global',
      protocol: ROUTE_PROTOCOL,
      table,
      ...onlink,
    };
  });
  const rules = addresses.map((source): Rule => ({ source, table, priority: RULE_PRIORITY, protocol: ROUTE_PROTOCOL }));
  return { ...wanted, pod: { ...wanted.pod, routes: [...wanted.pod.routes, ...routes], rules } };
}

/** Most interfaces of one pod that can have routes to one destination. */
const INTERFACES_MAX = 64;

/**
 * Replaces metrics that another interface of the pod uses: among interfaces with one destination, the first attached keeps the
 * best metric, and each later one gets the next. Existing metrics never change, even when other interfaces are gone, so that a
 * pod's routes stay stable.
 */
export function withFreeMetrics(wanted: Wanted, podRoutes: readonly ObservedRoute[]): Wanted {
  return { ...wanted, pod: endWithFreeMetrics(wanted.pod, podRoutes) };
}

/** {@link withFreeMetrics} for the pod's end alone. */
function endWithFreeMetrics(pod: WantedEnd, podRoutes: readonly ObservedRoute[]): WantedEnd {
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
