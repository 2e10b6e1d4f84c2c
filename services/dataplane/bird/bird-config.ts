import { createHash } from 'node:crypto';

import { formatAddress, type Family } from '@podwire/shared/net/address';
import { formatPrefix } from '@podwire/shared/net/prefix';

import type { ClusterNode, ClusterPool } from '../cluster/cluster.js';
import { BGP_PORT, type Session } from './sessions.js';

/** Where BIRD writes its log. */
export type BirdLog = 'syslog' | 'stderr';

/** What a node's BIRD is to do. */
export interface BirdDemand {
  readonly self: ClusterNode;
  readonly pools: readonly ClusterPool[];
  /** In order. */
  readonly sessions: readonly Session[];
  /** CIDRs that this node tells the others, in order. */
  readonly own: readonly string[];
  /** CIDRs of blocks whose pool was deleted, in order. */
  readonly orphans: readonly string[];
  /** Whether the node passes on what others tell it. */
  readonly isReflector: boolean;
  readonly log: BirdLog;
}

/** Podwire's protocol number of routes. */
const PODWIRE_PROTOCOL = 87;

/**
 * Metric of BIRD's routes in the kernel. Larger than those of Podwire's own, which are 0, and 1024 for IPv6: where both have a
 * route to an address, as while a pod moves, the node's own pod is right.
 */
const KERNEL_METRIC = 2048;

/** How long routes of a neighbour that is restarting are kept, in seconds (RFC 4724). */
const RESTART_SECONDS = 120;

/**
 * How long this node, when it restarts, waits for its neighbours before it changes the kernel's routes, in seconds. Short: in
 * a large cluster some neighbour is always away, and would be waited for to the end.
 */
const RECOVERY_SECONDS = 15;

const FAMILIES: readonly Family[] = [4, 6];

/**
 * The whole configuration of BIRD 2 on a node.
 *
 * In: what lies in a pool, or is a block whose pool was deleted, and is not this node's own. Out: this node's own, and what
 * others told when the node is a route reflector. Into the kernel: what came by BGP, of pools that have no encapsulation; the
 * rest is tunnelled by routes of Podwire's. Routes that BIRD learns from the kernel only tell it where next hops are.
 */
export function renderBird(demand: BirdDemand): string {
  return [
    `# Written by podwire-dataplane for node ${plain(demand.self.name)}, which overwrites all changes.`,
    demand.log === 'stderr' ? 'log stderr all;' : 'log syslog all;',
    `router id ${routerId(demand.self)};`,
    'timeformat protocol iso long;',
    `graceful restart wait ${RECOVERY_SECONDS};`,
    'protocol device podwire_device { scan time 10; }',
    'protocol direct podwire_direct { ipv4; ipv6; interface -"podw*", -"*.podwire", "*"; }',
    // Each session says how; without this there are none.
    ...(demand.sessions.some(({ bfd }) => bfd) ? ['protocol bfd podwire_bfd { }'] : []),
    ...FAMILIES.flatMap((family) => familyPart(family, demand)),
    ...demand.sessions.map(sessionPart),
    '',
  ].join('\n');
}

function familyPart(family: Family, { pools, own, orphans, isReflector }: BirdDemand): string[] {
  const ofFamily = (cidr: string) => cidr.includes(':') === (family === 6);
  const mine = own.filter(ofFamily);
  const lost = orphans.filter(ofFamily);
  const ranges = pools.filter(({ cidr }) => cidr.family === family);
  const all = ranges.map(({ cidr }) => formatPrefix(cidr)).sort();
  const direct = ranges
    .filter(({ encapsulation, loadBalancerOnly }) => encapsulation === 'none' || loadBalancerOnly)
    .map(({ cidr }) => formatPrefix(cidr))
    .sort();
  return [
    `filter podwire_import${family} {`,
    ...when(mine, 'reject'),
    ...when([...all, ...lost].map(withMore), 'accept'),
    '  reject;',
    '}',
    `filter podwire_export${family} {`,
    `  if proto = "podwire_own${family}" then accept;`,
    ...(isReflector ? ['  if source = RTS_BGP then accept;'] : []),
    '  reject;',
    '}',
    `filter podwire_program${family} {`,
    '  if source != RTS_BGP then reject;',
    ...when(mine, 'reject'),
    ...when([...direct, ...lost].map(withMore), 'accept'),
    '  reject;',
    '}',
    `filter podwire_learn${family} {`,
    `  if krt_source = ${PODWIRE_PROTOCOL} then reject;`,
    ...when([...all, ...lost].map(withMore), 'reject'),
    '  accept;',
    '}',
    `protocol kernel podwire_kernel${family} {`,
    `  learn; persist; scan time 10; graceful restart; metric ${KERNEL_METRIC};`,
    `  ipv${family} { import filter podwire_learn${family}; export filter podwire_program${family}; };`,
    '}',
    `protocol static podwire_own${family} {`,
    `  ipv${family};`,
    ...mine.map((cidr) => `  route ${cidr} blackhole;`),
    '}',
  ];
}

function sessionPart(session: Session): string {
  const { family, name, about, port, clientOf, password, bfd } = session;
  return [
    `protocol bgp '${name}' {`,
    `  description "${plain(about)}";`,
    `  local ${session.local} as ${session.localAs};`,
    `  neighbor ${session.neighbour}${port === BGP_PORT ? '' : ` port ${port}`} as ${session.neighbourAs};`,
    bfd && !bfd.multihop ? '  direct;' : '  multihop;',
    ...(bfd ? [`  bfd { interval ${bfd.intervalMs} ms; multiplier ${bfd.multiplier}; };`] : []),
    `  graceful restart on; graceful restart time ${RESTART_SECONDS};`,
    '  hold time 90; keepalive time 30;',
    '  connect delay time 1; connect retry time 3; error wait time 1, 30;',
    ...(session.passive ? ['  passive on;'] : []),
    ...(password === undefined ? [] : [`  password "${password}";`]),
    ...(clientOf === undefined ? [] : [`  rr client; rr cluster id ${clientOf};`]),
    `  ipv${family} { import filter podwire_import${family}; export filter podwire_export${family}; };`,
    '}',
  ].join('\n');
}

/** BIRD knows no empty sets. */
function when(prefixes: readonly string[], then: 'accept' | 'reject'): string[] {
  return prefixes.length === 0 ? [] : [`  if net ~ [ ${prefixes.join(', ')} ] then ${then};`];
}

/** The prefix and all that lie in it. */
function withMore(cidr: string): string {
  return `${cidr}+`;
}

/** BIRD's identity is an IPv4 address; a node that has none gets one that is made of its name. */
function routerId({ name, ipv4 }: ClusterNode): string {
  if (ipv4) return formatAddress(ipv4.address);
  const bits = createHash('sha1').update(name).digest().readUInt32BE(0);
  return formatAddress({ family: 4, value: BigInt(bits === 0 ? 1 : bits) });
}

/** Text that cannot end the text or comment it stands in. */
function plain(text: string): string {
  return text.replaceAll(/[^A-Za-z0-9 ._:-]/g, '?');
}
