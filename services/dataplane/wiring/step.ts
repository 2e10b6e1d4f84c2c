import type { Mac } from '@podwire/shared/net/mac';

/** The namespace in which a step is applied: the node's or the pod's. */
export type Side = 'host' | 'pod';

/** One end of a veth pair at its creation. */
export interface LinkSpec {
  readonly name: string;
  readonly mac: Mac;
  readonly mtuBytes: number;
  /** Transmit queue length in packets; undefined: the kernel's default. */
  readonly txQueueLength: number | undefined;
  /** Number of transmit and of receive queues; undefined: the kernel's default. Fixed at creation. */
  readonly queueCount: number | undefined;
}

/** Changeable attributes of a link; absent ones stay unchanged. */
export interface LinkChange {
  readonly up?: boolean;
  /** Empty: no alias. */
  readonly alias?: string;
  readonly mac?: Mac;
  readonly mtuBytes?: number;
  readonly txQueueLength?: number;
}

/** A unicast route. */
export interface Route {
  /** CIDR: `10.65.0.7/32`, `0.0.0.0/0`, `::/0`. */
  readonly destination: string;
  /** Name of the outgoing link. */
  readonly device: string;
  /** Next hop; undefined when the destination is on the link. */
  readonly gateway: string | undefined;
  /** The next hop is on the link, regardless of other routes. */
  readonly onlink?: true;
  /** Priority among routes to one destination, the lowest first: from 0 for IPv4, from 1 for IPv6. */
  readonly metric: number;
  /** Always `global` for IPv6, which has no scopes. */
  readonly scope: 'link' | 'global';
  /** Origin of the route: a number of linux/rtnetlink.h, or {@link ROUTE_PROTOCOL}. */
  readonly protocol: number;
  /** Number of its table; undefined: the main one. */
  readonly table?: number;
}

/** A rule that routes packets of one source by a separate table. */
export interface Rule {
  /** CIDR. */
  readonly source: string;
  readonly table: number;
  /** The kernel evaluates rules in ascending order; the main table's rule has 32766. */
  readonly priority: number;
  /** Protocol, as a route's. */
  readonly protocol: number;
}

/** A permanent neighbour entry. */
export interface Neighbour {
  readonly device: string;
  readonly address: string;
  readonly mac: Mac;
}

/** Parameters of a token bucket filter (`tbf`). */
export interface TokenBucket {
  readonly rateBytesPerSecond: number;
  readonly burstBytes: number;
  /** Bytes that may wait for tokens. */
  readonly limitBytes: number;
}

/** Path of a file below /proc/sys by segments, as interface names may hold dots. */
export type SysctlKey = readonly string[];

export interface SysctlWrite {
  readonly type: 'sysctl-write';
  readonly side: Side;
  readonly key: SysctlKey;
  readonly value: string;
  /** Value before; undefined when not read: the key is created with a link of the same plan, or is read during the write. */
  readonly previous: string | undefined;
  /** The previous value is read during the write; the applied step has it. */
  readonly readPrevious?: true;
  /** The link that owns the key, which vanishes with it; undefined when the namespace does. */
  readonly device: string | undefined;
  /** A failure is reported as a warning. */
  readonly optional: boolean;
}

/** A write that reads the previous value, with that value. */
export function withPreviousValue(write: SysctlWrite, previous: string | undefined): SysctlWrite {
  const { type, side, key, value, device, optional } = write;
  return { type, side, key, value, previous, device, optional };
}

/** One change of the kernel's state. Links are given by name instead of index, as a plan may use links that it creates. */
export type Step =
  | { readonly type: 'link-add'; readonly side: 'host'; readonly link: LinkSpec; readonly peer: LinkSpec }
  | { readonly type: 'link-delete'; readonly side: 'host'; readonly name: string }
  | {
      readonly type: 'link-set';
      readonly side: Side;
      readonly name: string;
      readonly change: LinkChange;
      /** The same attributes before the change. */
      readonly previous: LinkChange;
    }
  | {
      /** `address-set` succeeds when the address exists. */
      readonly type: 'address-add' | 'address-set' | 'address-delete';
      readonly side: Side;
      readonly device: string;
      /** CIDR. */
      readonly address: string;
    }
  | { readonly type: 'route-add' | 'route-delete'; readonly side: Side; readonly route: Route }
  | { readonly type: 'route-replace'; readonly side: Side; readonly route: Route; readonly previous: Route }
  | { readonly type: 'rule-add' | 'rule-delete'; readonly side: 'pod'; readonly rule: Rule }
  | {
      readonly type: 'neighbour-set';
      readonly side: Side;
      readonly neighbour: Neighbour;
      /** The previous permanent entry; learned entries are a cache and are ignored. */
      readonly previous: Neighbour | undefined;
    }
  | { readonly type: 'neighbour-delete'; readonly side: Side; readonly neighbour: Neighbour }
  | {
      /** Limits the packets that leave by a link. */
      readonly type: 'limit-set';
      readonly side: Side;
      readonly device: string;
      readonly bucket: TokenBucket;
      readonly previous: TokenBucket | undefined;
    }
  | {
      readonly type: 'limit-delete';
      readonly side: Side;
      readonly device: string;
      /** Undefined: the deleted qdisc was another program's. */
      readonly previous: TokenBucket | undefined;
    }
  | SysctlWrite;

/**
 * The step that reverts `step`.
 * @returns undefined when none does: a deleted wire was stale and had no peer in the pod; a sysctl of unknown value belongs to a
 * link that is itself removed; a deleted qdisc was another program's
 */
export function inverseOf(step: Step): Step | undefined {
  switch (step.type) {
    case 'link-add':
      return { type: 'link-delete', side: 'host', name: step.link.name };
    case 'link-delete':
      return undefined;
    case 'link-set':
      return { ...step, change: step.previous, previous: step.change };
    case 'address-add':
    case 'address-set':
      return { ...step, type: 'address-delete' };
    case 'address-delete':
      return { ...step, type: 'address-add' };
    case 'route-add':
      return { ...step, type: 'route-delete' };
    case 'route-delete':
      return { ...step, type: 'route-add' };
    case 'route-replace':
      return { ...step, route: step.previous, previous: step.route };
    case 'rule-add':
      return { ...step, type: 'rule-delete' };
    case 'rule-delete':
      return { ...step, type: 'rule-add' };
    case 'neighbour-set':
      return step.previous
        ? { ...step, neighbour: step.previous, previous: step.neighbour }
        : { type: 'neighbour-delete', side: step.side, neighbour: step.neighbour };
    case 'neighbour-delete':
      return { type: 'neighbour-set', side: step.side, neighbour: step.neighbour, previous: undefined };
    case 'limit-set':
      return step.previous
        ? { ...step, bucket: step.previous, previous: step.bucket }
        : { type: 'limit-delete', side: step.side, device: step.device, previous: step.bucket };
    case 'limit-delete':
      return step.previous && { ...step, type: 'limit-set', bucket: step.previous, previous: undefined };
    case 'sysctl-write':
      return step.previous === undefined ? undefined : { ...step, value: step.previous, previous: step.value };
  }
}

/**
 * The steps that revert finished ones, in reverse order. Objects on a link that was itself created go with that link and get no
 * step: that is faster, and works when the pod's namespace is gone.
 */
export function rollbackSteps(finished: readonly Step[]): Step[] {
  const made = new Set<string>();
  for (const step of finished) {
    if (step.type === 'link-add') made.add(`host ${step.link.name}`).add(`pod ${step.peer.name}`);
  }
  const isRemovedWithLink = (step: Step) => {
    const device = deviceOf(step);
    // A replaced route was on another link before, and must be restored there.
    return device !== undefined && step.type !== 'route-replace' && made.has(`${step.side} ${device}`);
  };
  return finished
    .toReversed()
    .filter((step) => !isRemovedWithLink(step))
    .flatMap((step) => inverseOf(step) ?? []);
}

/** The link that a step changes an object on; undefined when it creates or deletes a link, or concerns none. */
function deviceOf(step: Step): string | undefined {
  switch (step.type) {
    case 'link-add':
    case 'link-delete':
    case 'rule-add':
    case 'rule-delete':
      return undefined;
    case 'link-set':
      return step.name;
    case 'address-add':
    case 'address-set':
    case 'address-delete':
    case 'limit-set':
    case 'limit-delete':
    case 'sysctl-write':
      return step.device;
    case 'route-add':
    case 'route-delete':
    case 'route-replace':
      return step.route.device;
    case 'neighbour-set':
    case 'neighbour-delete':
      return step.neighbour.device;
  }
}

/** Plans in the notation of `ip`, `tc` and `sysctl`, for messages, logs and tests. The pod's namespace is written as `pod`. */

/** The equivalent command. */
export function formatStep(step: Step): string {
  switch (step.type) {
    case 'link-add':
      return ip(step, `link add ${formatSpec(step.link)} type veth peer name ${formatSpec(step.peer)} netns pod`);
    case 'link-delete':
      return ip(step, `link delete ${step.name}`);
    case 'link-set':
      return ip(step, `link set ${step.name}${formatChange(step.change)}`);
    case 'address-add':
      return ip(step, `address add ${step.address} dev ${step.device}${withoutDad(step.address)}`);
    case 'address-set':
      return ip(step, `address replace ${step.address} dev ${step.device}${withoutDad(step.address)}`);
    case 'address-delete':
      return ip(step, `address delete ${step.address} dev ${step.device}`);
    case 'route-add':
      return ip(step, `route add ${formatRoute(step.route)}`);
    case 'route-replace':
      return ip(step, `route replace ${formatRoute(step.route)}`);
    case 'route-delete':
      return ip(step, `route delete ${formatRoute(step.route)}`);
    case 'rule-add':
      return ip(step, `rule add ${formatRule(step.rule)}`);
    case 'rule-delete':
      return ip(step, `rule delete ${formatRule(step.rule)}`);
    case 'neighbour-set':
      return ip(step, `neighbour replace ${formatNeighbour(step.neighbour)}`);
    case 'neighbour-delete':
      return ip(step, `neighbour delete ${step.neighbour.address} dev ${step.neighbour.device}`);
    case 'limit-set':
      return tc(step, `replace dev ${step.device} root handle 5057: ${formatBucket(step.bucket)}`);
    case 'limit-delete':
      return tc(step, `delete dev ${step.device} root`);
    case 'sysctl-write':
      return `${step.side === 'pod' ? 'ip netns exec pod ' : ''}sysctl -w ${formatKey(step.key)}=${step.value}`;
  }
}

/** `default via 169.254.1.1 dev eth0 proto 87`, as `ip route` prints it. */
export function formatRoute({ destination, gateway, device, protocol, scope, metric, table, onlink }: Route): string {
  return [
    formatDestination(destination),
    gateway === undefined ? '' : ` via ${gateway}`,
    ` dev ${device} proto ${protocol}`,
    scope === 'link' ? ' scope link' : '',
    metric === 0 ? '' : ` metric ${metric}`,
    onlink ? ' onlink' : '',
    table === undefined ? '' : ` table ${table}`,
  ].join('');
}

/** `from 10.65.0.7 lookup 1459617793 priority 30087 protocol 87`. */
export function formatRule({ source, table, priority, protocol }: Rule): string {
  return `from ${formatDestination(source)} lookup ${table} priority ${priority} protocol ${protocol}`;
}

/** Duplicate address detection would block an address for a second. */
function withoutDad(cidr: string): string {
  return cidr.includes(':') ? ' nodad' : '';
}

/** A CIDR as `ip route` prints it: `default`, and single addresses without their length. */
export function formatDestination(cidr: string): string {
  const [address = '', length] = cidr.split('/');
  if (length === '0') return 'default';
  return length === (address.includes(':') ? '128' : '32') ? address : cidr;
}

/** `169.254.1.1 dev eth0 lladdr ee:ee:ee:ee:ee:ee nud permanent`. */
export function formatNeighbour({ address, device, mac }: Neighbour): string {
  return `${address} dev ${device} lladdr ${mac} nud permanent`;
}

/** Key as `sysctl` writes it: dots between the segments, and a slash for a dot within one. */
export function formatKey(key: SysctlKey): string {
  return key.map((segment) => segment.replaceAll('.', '/')).join('.');
}

/** `tbf rate 10000000bit burst 62500 limit 93750`. */
export function formatBucket({ rateBytesPerSecond, burstBytes, limitBytes }: TokenBucket): string {
  return `tbf rate ${rateBytesPerSecond * 8}bit burst ${burstBytes} limit ${limitBytes}`;
}

function tc({ side }: { readonly side: Side }, command: string): string {
  return `tc ${side === 'pod' ? '-n pod ' : ''}qdisc ${command}`;
}

function ip({ side }: { readonly side: Side }, command: string): string {
  return `ip ${side === 'pod' ? '-n pod ' : ''}${command}`;
}

function formatSpec({ name, mac, mtuBytes, txQueueLength, queueCount }: LinkSpec): string {
  return [
    `${name} address ${mac} mtu ${mtuBytes}`,
    txQueueLength === undefined ? '' : ` txqueuelen ${txQueueLength}`,
    queueCount === undefined ? '' : ` numtxqueues ${queueCount} numrxqueues ${queueCount}`,
  ].join('');
}

function formatChange({ up, alias, mac, mtuBytes, txQueueLength }: LinkChange): string {
  return [
    mac === undefined ? '' : ` address ${mac}`,
    mtuBytes === undefined ? '' : ` mtu ${mtuBytes}`,
    txQueueLength === undefined ? '' : ` txqueuelen ${txQueueLength}`,
    alias === undefined ? '' : ` alias ${JSON.stringify(alias)}`,
    up === undefined ? '' : up ? ' up' : ' down',
  ].join('');
}
