import { familyOf, type Address, type Family } from '@podwire/shared/net/address';
import { formatPrefix, hostPrefix } from '@podwire/shared/net/prefix';

import type { End, Repair } from './difference.js';
import type { Difference } from '@podwire/shared/attachment/pod-network';
import { repairLimit } from './repair-limit.js';
import { repairLink } from './repair-link.js';
import { clearNeighbours, deleteNeighbours, repairNeighbours, permanentAddresses } from './repair-neighbours.js';
import { ROUTE_PROTOCOL, type Wanted, type WantedSysctl } from './network.js';
import { keyText, type Observed, type ObservedLink, type ObservedRoute } from './observed.js';
import { withSourceRouting } from './source-routing.js';
import {
  formatDestination,
  formatKey,
  formatRoute,
  formatRule,
  type LinkSpec,
  type Route,
  type Rule,
  type Side,
  type Step,
  type SysctlKey,
} from './step.js';
import { wireState, withNewWire } from './wire.js';

/**
 * The steps from the observed to the wanted state, in order: missing objects are added before surplus ones are deleted. Empty
 * when there are no differences. The caller has ruled out conflicts (`findObstacle`).
 */
export function diff(wanted: Wanted, observed: Observed): Step[] {
  return repairs(wanted, observed).map(({ step }) => step);
}

/** The differences that {@link diff} would repair, in the same order. */
export function differences(wanted: Wanted, observed: Observed): Difference[] {
  return repairs(wanted, observed).flatMap((repair) => repair.differences);
}

/**
 * The steps that correct attributes which the kernel did not set as requested: some kernels ignore the MAC address given at
 * creation. Empty when both links match.
 */
export function corrections(wanted: Wanted, links: Readonly<Partial<Record<Side, ObservedLink>>>): Step[] {
  const of = (side: Side): Step[] => {
    const steps = repairLink({ side, wanted: wanted[side], link: links[side] }).map(({ step }) => step);
    // Changing a link's MAC address deletes its neighbour entries.
    const isMacSet = steps.some((step) => step.type === 'link-set' && step.change.mac !== undefined);
    const lost = isMacSet ? wanted[side].neighbours : [];
    return [
      ...steps,
      ...lost.map((neighbour): Step => ({ type: 'neighbour-set', side, neighbour, previous: undefined })),
    ];
  };
  return [...of('host'), ...of('pod')];
}

function repairs(asked: Wanted, found: Observed): Repair[] {
  const wanted = withSourceRouting(asked, found.pod);
  const wiring = repairWire(wanted, found);
  const observed = wireState(found) === 'paired' ? found : withNewWire(wanted, found);
  const [host, clearedHost] = clearNeighbours({ side: 'host', wanted: wanted.host, observed: observed.host });
  const [pod, clearedPod] = clearNeighbours({ side: 'pod', wanted: wanted.pod, observed: observed.pod });
  const stale = staleAddresses(host);
  const isLate = ({ disables }: WantedSysctl) => disables !== undefined && hasOf(disables, host);
  return [
    ...wiring,
    // The node's end is configured before the pod's comes up, so that no packet of the pod meets an unguarded interface.
    ...clearedHost,
    ...repairLimit(host),
    ...repairLink({ side: 'host', wanted: wanted.host, link: observed.host.link }),
    ...repairSysctls(host, (sysctl) => !isLate(sysctl)),
    ...addAddresses(host),
    ...repairSysctls(pod, ({ early }) => early),
    ...clearedPod,
    ...repairLimit(pod),
    ...repairLink({ side: 'pod', wanted: wanted.pod, link: observed.pod.link }),
    ...addAddresses(pod),
    ...repairNeighbours(pod),
    ...repairRoutes(pod),
    // Rules follow the routes of their table; they are deleted before those.
    ...addRules(pod),
    ...repairSysctls(pod, ({ early }) => !early),
    ...repairNeighbours(host),
    // Last, so that no packet is sent to a pod that is not ready.
    ...repairRoutes(host),
    ...deleteRules(pod),
    ...deleteRoutes(pod),
    ...deleteAddresses(pod, stale),
    ...deleteRoutes(host),
    ...deleteNeighbours(host, stale),
    ...repairSysctls(host, isLate),
  ];
}

/** Whether the link has an object of a family that disabling the family would delete. */
function hasOf(family: Family, end: End): boolean {
  const there = [...unwantedRoutes(end).map(({ destination }) => destination), ...permanentAddresses(end)];
  return there.some((text) => familyOf(text) === family);
}

function repairWire(wanted: Wanted, observed: Observed): Repair[] {
  const { name } = wanted.host.link;
  const add: Step = { type: 'link-add', side: 'host', link: wanted.host.link, peer: wanted.pod.link };
  const missing = (object: string): Difference => ({ object, wanted: 'present', actual: 'missing' });
  const podLink = missing(`pod link ${wanted.pod.link.name}`);
  switch (wireState(observed)) {
    case 'paired':
      return [];
    case 'absent':
      return [{ step: add, differences: [missing(`host link ${name}`), podLink] }];
    case 'stale':
      return [
        { step: { type: 'link-delete', side: 'host', name }, differences: [] },
        {
          step: add,
          differences: [
            { object: `host link ${name}`, wanted: 'its peer in the pod', actual: 'its peer elsewhere' },
            podLink,
          ],
        },
      ];
  }
}

function repairSysctls({ side, wanted, observed }: End, isDue: (sysctl: WantedSysctl) => boolean): Repair[] {
  const foundOf = (key: SysctlKey) => observed.sysctls.get(keyText(key));
  const isSet = (key: SysctlKey) => wanted.sysctls.some((other) => other.key === key && foundOf(key) !== other.value);
  return wanted.sysctls.filter(isDue).flatMap((sysctl) => {
    const isAlsoSet = sysctl.follows !== undefined && isSet(sysctl.follows);
    return repairSysctl(side, { sysctl, found: foundOf(sysctl.key), isAlsoSet });
  });
}

interface SysctlPair {
  readonly sysctl: WantedSysctl;
  readonly found: string | null | undefined;
  /** Whether the plan also sets a sysctl that changes this one. */
  readonly isAlsoSet: boolean;
}

function repairSysctl(side: Side, { sysctl, found, isAlsoSet }: SysctlPair): Repair[] {
  const { key, value, device, optional } = sysctl;
  const known = found ?? undefined;
  const isUnavailable = found === null && optional;
  // Namespace-wide settings existed before, so a rollback restores them.
  const isUnread = found === undefined && device === undefined;
  if ((known === value && !isAlsoSet) || isUnavailable) return [];
  const difference = { object: `${side} sysctl ${formatKey(key)}`, wanted: value, actual: known ?? 'missing' };
  return [
    {
      step: {
        type: 'sysctl-write',
        side,
        key,
        value,
        previous: known,
        device,
        optional,
        ...(isUnread && { readPrevious: true }),
      },
      differences: known === value ? [] : [difference],
    },
  ];
}

function addAddresses({ side, wanted, observed }: End): Repair[] {
  const missing = wanted.addresses.filter((address) => !observed.addresses.includes(address));
  return missing.map((address) => {
    const device = wanted.link.name;
    const object = `${side} address ${formatDestination(address)} dev ${device}`;
    const difference = { object, wanted: 'present', actual: 'missing' };
    // The kernel may have created the node's own route in the meantime.
    const type = side === 'host' ? 'address-set' : 'address-add';
    return { step: { type, side, device, address }, differences: [difference] };
  });
}

function repairRoutes({ side, wanted, observed }: End): Repair[] {
  return wanted.routes.flatMap((route): Repair[] => {
    const found = observed.routes.find(isInPlaceOf(route));
    if (found && isSameRoute(found, route)) return [];
    const previous = found && asRoute(found);
    const step: Step = previous ? { type: 'route-replace', side, route, previous } : { type: 'route-add', side, route };
    const object = `${side} route ${formatRoute(route)}`;
    const actual = previous ? formatRoute(previous) : 'missing';
    return [{ step, differences: [{ object, wanted: 'present', actual }] }];
  });
}

function addRules({ wanted, observed }: End): Repair[] {
  return wanted.rules
    .filter((rule) => !observed.rules.some(isSameRule(rule)))
    .map((rule) => repairRule('rule-add', rule));
}

function deleteRules({ wanted, observed }: End): Repair[] {
  return observed.rules
    .filter((rule) => !wanted.rules.some(isSameRule(rule)))
    .map((rule) => repairRule('rule-delete', rule));
}

function repairRule(type: 'rule-add' | 'rule-delete', rule: Rule): Repair {
  const [wanted, actual] = type === 'rule-add' ? ['present', 'missing'] : ['absent', 'present'];
  return {
    step: { type, side: 'pod', rule },
    differences: [{ object: `pod rule ${formatRule(rule)}`, wanted, actual }],
  };
}

function isSameRule(rule: Rule): (other: Rule) => boolean {
  return (other) => formatRule(other) === formatRule(rule);
}

/** Podwire's routes by this link that are no longer wanted. */
function unwantedRoutes({ wanted, observed }: End): Route[] {
  const isUnwanted = (route: ObservedRoute) =>
    route.device === wanted.link.name &&
    route.protocol === ROUTE_PROTOCOL &&
    !wanted.routes.some((other) => isInPlaceOf(other)(route));
  return observed.routes.filter(isUnwanted).flatMap((route) => asRoute(route) ?? []);
}

/** Routes through a next hop precede the next hop's own, so that a rollback restores them in reverse order. */
function deleteRoutes(end: End): Repair[] {
  const unwanted = unwantedRoutes(end);
  const ordered = [
    ...unwanted.filter(({ gateway }) => gateway !== undefined),
    ...unwanted.filter(({ gateway }) => gateway === undefined),
  ];
  return ordered.map((route) => ({
    step: { type: 'route-delete', side: end.side, route },
    differences: [{ object: `${end.side} route ${formatRoute(route)}`, wanted: 'absent', actual: 'present' }],
  }));
}

/**
 * Addresses that the attachment had: the node routes them to it, and they are no longer wanted. Other addresses in the pod belong
 * to the workload (a virtual IP of keepalived, another plugin's) and stay.
 */
function staleAddresses(host: End): string[] {
  return unwantedRoutes(host).map((route) => route.destination);
}

function deleteAddresses({ side, wanted, observed }: End, stale: readonly string[]): Repair[] {
  return observed.addresses
    .filter((address) => stale.includes(address) && !wanted.addresses.includes(address))
    .map((address) => {
      const device = wanted.link.name;
      const object = `${side} address ${formatDestination(address)} dev ${device}`;
      const difference = { object, wanted: 'absent', actual: 'present' };
      return { step: { type: 'address-delete', side, device, address }, differences: [difference] };
    });
}

/** A table has one route per destination and metric. */
function isInPlaceOf({ destination, metric, table }: Route): (found: ObservedRoute) => boolean {
  return (found) => found.destination === destination && found.metric === metric && found.table === table;
}

function isSameRoute(found: ObservedRoute, route: Route): boolean {
  return (
    found.unicast &&
    found.device === route.device &&
    found.gateway === route.gateway &&
    found.scope === route.scope &&
    found.protocol === route.protocol
  );
}

/** The step that restores a route; undefined for kinds that Podwire never creates. */
function asRoute({ device, scope, unicast, ...rest }: ObservedRoute): Route | undefined {
  if (!unicast || device === null || (scope !== 'link' && scope !== 'global')) return undefined;
  const { destination, gateway, metric, protocol, onlink, table } = rest;
  return {
    destination,
    device,
    gateway,
    metric,
    scope,
    protocol,
    ...(onlink && { onlink }),
    ...(table !== undefined && { table }),
  };
}

interface Pair {
  readonly wanted: Wanted;
  readonly observed: Observed;
}

/** Drops the node's routes to addresses that another pod has received since: they are neither requested nor removed. */
export function withoutLostRoutes(lost: readonly { readonly address: Address }[], { wanted, observed }: Pair): Pair {
  if (lost.length === 0) return { wanted, observed };
  const destinations = lost.map(({ address }) => formatPrefix(hostPrefix(address)));
  const isOwn = ({ destination }: { readonly destination: string }) => !destinations.includes(destination);
  return {
    wanted: { ...wanted, host: { ...wanted.host, routes: wanted.host.routes.filter(isOwn) } },
    observed: { ...observed, host: { ...observed.host, routes: observed.host.routes.filter(isOwn) } },
  };
}

/**
 * The wanted state of a pod that is already wired, without what later plugins of a chain (`tuning`) and privileged workloads may
 * set, and what blocks no packets: queue length, forwarding, an MTU below the wire's, and the MAC address, which the node's
 * neighbour entries follow.
 *
 * The MTU is the pod's own when it differs from the node's end: an unchanged one follows the node's.
 */
export function withPodChanges(wanted: Wanted, { host, pod }: Observed): Wanted {
  if (!host.link || !pod.link || wireState({ host, pod }) !== 'paired') return wanted;
  const isMtuOwn = pod.link.mtuBytes !== host.link.mtuBytes && pod.link.mtuBytes < wanted.pod.link.mtuBytes;
  const mac = pod.link.mac ?? wanted.pod.link.mac;
  const own: LinkSpec = {
    ...wanted.pod.link,
    txQueueLength: undefined,
    ...(isMtuOwn && { mtuBytes: pod.link.mtuBytes }),
    mac,
  };
  const sysctls = wanted.pod.sysctls.filter(({ early }) => early);
  const neighbours = wanted.host.neighbours.map((neighbour) => ({ ...neighbour, mac }));
  return { ...wanted, host: { ...wanted.host, neighbours }, pod: { ...wanted.pod, link: own, sysctls } };
}
