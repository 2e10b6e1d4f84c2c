import type { Attachment } from '@podwire/shared/attachment/attachment';
import { HOST_MAC } from '@podwire/shared/attachment/names';
import { Failure } from '@podwire/shared/failure/failure';

import { aliasOf, attachmentOfAlias, ROUTE_PROTOCOL, type Wanted, type WantedEnd } from './network.js';
import { keyText, type Observed, type ObservedEnd, type ObservedLink, type ObservedRoute } from './observed.js';
import { formatDestination, type Side } from './step.js';

/**
 * Observed state of an attachment's veth pair: missing; both ends in place; or the host end alone, with its peer in a namespace
 * that the pod has left.
 */
type WireState = 'absent' | 'paired' | 'stale';

export function wireState({ host, pod }: Observed): WireState {
  if (!host.link) return 'absent';
  return pod.link && arePeers(host.link, pod.link) ? 'paired' : 'stale';
}

/**
 * Whether a host link was made for the attachment, by its alias. Also accepts a link whose creator was killed before it set the
 * alias: a veth without alias, never up, with the MAC address that only Podwire gives at creation.
 */
export function isMadeFor(link: ObservedLink, attachment: Attachment): boolean {
  if (link.kind !== 'veth') return false;
  return link.alias === aliasOf(attachment) || ((link.alias ?? '') === '' && !link.up && link.mac === HOST_MAC);
}

/** Whether each end has the other's index as its peer index. */
export function arePeers(host: ObservedLink, pod: ObservedLink): boolean {
  return host.kind === 'veth' && pod.kind === 'veth' && host.peerIndex === pod.index && pod.peerIndex === host.index;
}

/** A foreign object in the place of one of the attachment's. */
interface Obstacle {
  /** Object in the notation of differences: `pod link eth0`. */
  readonly object: string;
  /** Description of the foreign object. */
  readonly actual: string;
  /** The failure that refuses to remove it. */
  readonly failure: Failure;
}

/**
 * The conflict with the wanted state, or undefined.
 *
 * Podwire's own route on the node is no conflict: IPAM has given the address to this attachment since. Nor is a route of another
 * of the pod's interfaces.
 */
export function findObstacle(wanted: Wanted, observed: Observed): Obstacle | undefined {
  const { host, pod } = observed;
  if (host.link && !isMadeFor(host.link, wanted.attachment)) {
    return { failure: hostInterfaceTakenFailure(host.link), ...foreignLink('host', host.link) };
  }
  if (pod.link && wireState(observed) !== 'paired') {
    return { failure: interfaceExistsFailure(pod.link), ...foreignLink('pod', pod.link) };
  }
  return (
    queueCountObstacle(wanted.host, host.link) ??
    nodeRouteObstacle({ wanted: wanted.host, observed: host }) ??
    podRouteObstacle({ wanted: wanted.pod, observed: pod })
  );
}

/** The kernel fixes a link's queues at creation, and recreating the wire would disconnect the pod. */
function queueCountObstacle({ link: wanted }: WantedEnd, found: ObservedLink | undefined): Obstacle | undefined {
  const { name, queueCount } = wanted;
  if (queueCount === undefined || !found || found.queueCount === queueCount) return undefined;
  const failure = new Failure(
    'INTERFACE_EXISTS',
    `host interface ${name} has ${found.queueCount} queues, but ${queueCount} are requested: their number is fixed at ` +
      'creation; detach the pod and attach it again',
    { details: { interface: name } },
  );
  return { object: `host link ${name} numtxqueues`, actual: String(found.queueCount), failure };
}

function foreignLink(side: Side, { name, kind, alias }: ObservedLink) {
  return { object: `${side} link ${name}`, actual: `a foreign one: kind ${kind ?? 'none'}, alias "${alias ?? ''}"` };
}

/** The failure for a host link of another owner. */
export function hostInterfaceTakenFailure(link: ObservedLink): Failure {
  const owner = attachmentOfAlias(link.alias);
  const whose = owner
    ? `belongs to container ${owner.containerId} on network ${owner.network}`
    : 'was not created by Podwire';
  return new Failure(
    'HOST_INTERFACE_TAKEN',
    `host interface ${link.name} ${whose} (kind ${link.kind ?? 'none'}, alias ${JSON.stringify(link.alias ?? '')}): ` +
      'remove it, or choose another name for this attachment',
    { details: { interface: link.name } },
  );
}

function interfaceExistsFailure(link: ObservedLink): Failure {
  return new Failure(
    'INTERFACE_EXISTS',
    `the pod already has an interface ${link.name} (kind ${link.kind ?? 'none'}) of another owner: ` +
      'remove it, or request another interface name',
    { details: { interface: link.name } },
  );
}

interface End {
  readonly wanted: WantedEnd;
  readonly observed: ObservedEnd;
}

/** A foreign route that would precede the node's own, or that the kernel would not allow beside it. */
function nodeRouteObstacle({ wanted, observed }: End): Obstacle | undefined {
  const foreign = observed.routes.find((route) =>
    wanted.routes.some(
      ({ destination, metric }) =>
        destination === route.destination && route.metric <= metric && isForeign(route, wanted.link.name),
    ),
  );
  if (!foreign) return undefined;
  const destination = formatDestination(foreign.destination);
  const holder = holderOf(foreign);
  const failure = new Failure(
    'ROUTE_TAKEN',
    `the node already has a route to ${destination} ${holder}, which is not Podwire’s; remove that route, or the user of the ` +
      'address there',
    { details: { route: destination, interface: foreign.device ?? '' } },
  );
  return { object: `host route ${destination} dev ${wanted.link.name}`, actual: holder, failure };
}

/**
 * A route of the pod that drops packets in place of the wanted one. Routes by other interfaces are no conflict: the wanted one
 * gets a higher metric.
 */
function podRouteObstacle({ wanted, observed }: End): Obstacle | undefined {
  const blocking = observed.routes.find((route) =>
    wanted.routes.some(
      ({ destination, metric }) => destination === route.destination && route.metric <= metric && !route.unicast,
    ),
  );
  if (!blocking) return undefined;
  const destination = formatDestination(blocking.destination);
  const failure = new Failure(
    'ROUTE_TAKEN',
    `the pod already has a route to ${destination} that drops packets (blackhole, unreachable or prohibit); remove it`,
    { details: { route: destination, interface: '' } },
  );
  return { object: `pod route ${destination} dev ${wanted.link.name}`, actual: 'dropped', failure };
}

function holderOf({ device, unicast }: ObservedRoute): string {
  if (!unicast) return 'that drops packets';
  return device === null ? 'by several interfaces' : `by ${device}`;
}

/** Whether a route is not Podwire's. Podwire's are by a pod's interface, or to an address that another node had borrowed. */
function isForeign({ device, deviceAlias, protocol, unicast }: ObservedRoute, own: string): boolean {
  const isOurs = attachmentOfAlias(deviceAlias) !== undefined || (unicast && protocol === ROUTE_PROTOCOL);
  return device !== own && !isOurs;
}

/**
 * The pod's addresses that the node routed elsewhere until now: to an earlier pod, or by an earlier wire of this one. Their
 * tracked flows belong to the earlier one.
 */
export function movedAddresses(wanted: Wanted, observed: Observed): MovedAddress[] {
  const isStale = wireState(observed) === 'stale';
  return wanted.host.routes.flatMap(({ destination, device: own }): MovedAddress[] => {
    const found = observed.host.routes.find((route) => route.destination === destination && route.device !== own);
    const device = found?.device ?? (isStale ? own : undefined);
    return device === undefined ? [] : [{ destination, device }];
  });
}

interface MovedAddress {
  /** CIDR of full length. */
  readonly destination: string;
  /** Name of the interface that it was routed to. */
  readonly device: string;
}

/** The state right after the veth pair was created: two bare ends, and the existing surroundings. */
export function withNewWire(wanted: Wanted, observed: Observed): Observed {
  return { host: newEnd(wanted.host, observed.host), pod: newEnd(wanted.pod, observed.pod) };
}

/** The state when nothing exists for the attachment, and nothing conflicts. */
export function emptyObservation(podSysctls: ReadonlyMap<string, string | null> = new Map()): Observed {
  const none = {
    link: undefined,
    qdisc: undefined,
    addresses: [],
    routes: [],
    rules: [],
    hasEarlierLink: false,
    neighbours: [],
  };
  return { host: { sysctls: new Map(), ...none }, pod: { sysctls: podSysctls, ...none } };
}

function newEnd(wanted: WantedEnd, observed: ObservedEnd): ObservedEnd {
  const { name, mac, mtuBytes, txQueueLength = 0, queueCount = 0 } = wanted.link;
  const ofNamespace = wanted.sysctls.filter((sysctl) => sysctl.device === undefined);
  const kept = ofNamespace.flatMap(({ key }): [string, string | null][] => {
    const value = observed.sysctls.get(keyText(key));
    return value === undefined ? [] : [[keyText(key), value]];
  });
  const unknownIndex = 0;
  const state = { alias: null, up: false, running: false, index: unknownIndex, peerIndex: unknownIndex };
  return {
    link: { name, mac, mtuBytes, txQueueLength, queueCount, kind: 'veth', ...state },
    qdisc: undefined,
    addresses: [],
    routes: observed.routes.filter((route) => route.device !== name),
    rules: observed.rules,
    hasEarlierLink: observed.hasEarlierLink,
    neighbours: [],
    sysctls: new Map(kept),
  };
}
