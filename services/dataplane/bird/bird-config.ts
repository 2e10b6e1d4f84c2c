import { createHash } from 'node:crypto';
import { chmod, chown, mkdir, open, readFile, rename, rm, stat } from 'node:fs/promises';
import { dirname } from 'node:path';

import { FAMILIES, formatAddress, type Family } from '@podwire/shared/net/address';
import { formatPrefix, hostPrefix } from '@podwire/shared/net/prefix';

import type {
  Cluster,
  ClusterBlock,
  ClusterChange,
  ClusterNode,
  ClusterPool,
  ClusterView,
} from '../cluster/cluster.js';
import { BGP_PORT, type Session } from './sessions.js';

/** Destination of BIRD's log. */
type BirdLog = 'syslog' | 'stderr';

/** The inputs of a node's BIRD configuration. */
export interface BirdConfigInput {
  readonly self: ClusterNode;
  readonly pools: readonly ClusterPool[];
  /** Sorted. */
  readonly sessions: readonly Session[];
  /** CIDRs that this node announces, sorted. */
  readonly own: readonly string[];
  /** CIDRs of blocks whose pool was deleted, in order. */
  readonly orphans: readonly string[];
  /** Whether the node reflects received routes. */
  readonly isReflector: boolean;
  readonly log: BirdLog;
}

/** Podwire's protocol number of routes. */
const PODWIRE_PROTOCOL = 87;

/**
 * Kernel metric of BIRD's routes. Higher than Podwire's own (0, and 1024 for IPv6): where both have a route to an address, as
 * while a pod moves, the route to the node's own pod must win.
 */
const KERNEL_METRIC = 2048;

/** How long routes of a restarting neighbour are kept, in seconds (RFC 4724). */
const RESTART_SECONDS = 120;

/**
 * Time that this node waits for its neighbours after a restart before it changes the kernel's routes, in seconds. It is short: in
 * a large cluster some neighbour is always down, so the wait always takes its full time.
 */
const RECOVERY_SECONDS = 15;

/**
 * The whole configuration of BIRD 2 on a node.
 *
 * Import: prefixes in a pool, or blocks whose pool was deleted, except this node's own. Export: this node's own, and received
 * routes when the node is a route reflector. Into the kernel: BGP routes of pools without encapsulation; Podwire's routes tunnel
 * the rest. Routes that BIRD learns from the kernel only resolve next hops.
 */
export function renderBird(input: BirdConfigInput): string {
  return [
    `# Written by podwire-node for node ${escapeText(input.self.name)}, which overwrites all changes.`,
    input.log === 'stderr' ? 'log stderr all;' : 'log syslog all;',
    `router id ${routerId(input.self)};`,
    'timeformat protocol iso long;',
    `graceful restart wait ${RECOVERY_SECONDS};`,
    'protocol device podwire_device { scan time 10; }',
    'protocol direct podwire_direct { ipv4; ipv6; interface -"podw*", -"*.podwire", "*"; }',
    // Each session sets its own; without this there are none.
    ...(input.sessions.some(({ bfd }) => bfd) ? ['protocol bfd podwire_bfd { }'] : []),
    ...FAMILIES.flatMap((family) => familySection(family, input)),
    ...input.sessions.map(sessionSection),
    '',
  ].join('\n');
}

function familySection(family: Family, { pools, own, orphans, isReflector }: BirdConfigInput): string[] {
  const ofFamily = (cidr: string) => cidr.includes(':') === (family === 6);
  const ownCidrs = own.filter(ofFamily);
  const orphanCidrs = orphans.filter(ofFamily);
  const ranges = pools.filter(({ cidr }) => cidr.family === family);
  const all = ranges.map(({ cidr }) => formatPrefix(cidr)).sort();
  const direct = ranges
    .filter(({ encapsulation, loadBalancerOnly }) => encapsulation === 'none' || loadBalancerOnly)
    .map(({ cidr }) => formatPrefix(cidr))
    .sort();
  return [
    `filter podwire_import${family} {`,
    ...netRule(ownCidrs, 'reject'),
    ...netRule([...all, ...orphanCidrs].map(withSubprefixes), 'accept'),
    '  reject;',
    '}',
    `filter podwire_export${family} {`,
    `  if proto = "podwire_own${family}" then accept;`,
    ...(isReflector ? ['  if source = RTS_BGP then accept;'] : []),
    '  reject;',
    '}',
    `filter podwire_program${family} {`,
    '  if source != RTS_BGP then reject;',
    ...netRule(ownCidrs, 'reject'),
    ...netRule([...direct, ...orphanCidrs].map(withSubprefixes), 'accept'),
    '  reject;',
    '}',
    `filter podwire_learn${family} {`,
    `  if krt_source = ${PODWIRE_PROTOCOL} then reject;`,
    ...netRule([...all, ...orphanCidrs].map(withSubprefixes), 'reject'),
    '  accept;',
    '}',
    `protocol kernel podwire_kernel${family} {`,
    `  learn; persist; scan time 10; graceful restart; metric ${KERNEL_METRIC};`,
    `  ipv${family} { import filter podwire_learn${family}; export filter podwire_program${family}; };`,
    '}',
    `protocol static podwire_own${family} {`,
    `  ipv${family};`,
    ...ownCidrs.map((cidr) => `  route ${cidr} blackhole;`),
    '}',
  ];
}

function sessionSection(session: Session): string {
  const { family, name, about, port, clientOf, password, bfd } = session;
  return [
    `protocol bgp '${name}' {`,
    `  description "${escapeText(about)}";`,
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

/** BIRD has no empty sets. */
function netRule(prefixes: readonly string[], then: 'accept' | 'reject'): string[] {
  return prefixes.length === 0 ? [] : [`  if net ~ [ ${prefixes.join(', ')} ] then ${then};`];
}

/** The prefix and all prefixes inside it. */
function withSubprefixes(cidr: string): string {
  return `${cidr}+`;
}

/** BIRD's router ID is an IPv4 address; a node without one gets an ID derived from its name. */
function routerId({ name, ipv4 }: ClusterNode): string {
  if (ipv4) return formatAddress(ipv4.address);
  const bits = createHash('sha1').update(name).digest().readUInt32BE(0);
  return formatAddress({ family: 4, value: BigInt(bits === 0 ? 1 : bits) });
}

/** Escapes text so that it cannot end the string or comment around it. */
function escapeText(text: string): string {
  return text.replaceAll(/[^A-Za-z0-9 ._:-]/g, '?');
}

/** A block's role in BIRD's configuration on this node. */
interface BlockRole {
  /** CIDRs that this node announces: its blocks, and its addresses in blocks of other nodes. */
  readonly own: readonly string[];
  /** The CIDR, when the block is another node's and no pool's filter accepts it. */
  readonly orphans: readonly string[];
}

const NO_ROLE: BlockRole = { own: [], orphans: [] };

/**
 * Tracks incrementally what BIRD's configuration needs from the blocks: of 10,000 blocks a node has a handful, and only those may
 * change its configuration.
 */
export class AdvertisedBlocks {
  readonly #roles = new Map<string, BlockRole>();

  /** @returns whether anything changed. A change of pools may orphan blocks, so it checks every block. */
  update({ self, cluster }: ClusterView, change: ClusterChange): boolean {
    const cidrs =
      change.blocks === 'all' || change.hasOtherChanges
        ? new Set([...this.#roles.keys(), ...cluster.blocks.keys()])
        : change.blocks;
    let hasChanged = false;
    for (const cidr of cidrs) {
      const role = roleOf(self, cluster.blocks.get(cidr), cluster);
      const before = this.#roles.get(cidr) ?? NO_ROLE;
      hasChanged ||= !equalTexts(role.own, before.own) || !equalTexts(role.orphans, before.orphans);
      if (role === NO_ROLE) this.#roles.delete(cidr);
      else this.#roles.set(cidr, role);
    }
    return hasChanged;
  }

  /** Sorted, without duplicates. */
  own(): string[] {
    return this.#all(({ own }) => own);
  }

  /** Sorted. */
  orphans(): string[] {
    return this.#all(({ orphans }) => orphans);
  }

  #all(of: (role: BlockRole) => readonly string[]): string[] {
    return [...new Set([...this.#roles.values()].flatMap(of))].sort();
  }
}

function roleOf(self: string, block: ClusterBlock | undefined, { pools }: Cluster): BlockRole {
  if (!block) return NO_ROLE;
  const isOwn = block.nodeName === self;
  const cidr = formatPrefix(block.cidr);
  const borrowed = block.borrowed.filter(({ nodeName }) => nodeName === self && !isOwn);
  const own = [...(isOwn ? [cidr] : []), ...borrowed.map(({ address }) => formatPrefix(hostPrefix(address)))];
  const isOrphan = !isOwn && (block.poolName === undefined || !pools.has(block.poolName));
  return own.length === 0 && !isOrphan ? NO_ROLE : { own, orphans: isOrphan ? [cidr] : [] };
}

function equalTexts(a: readonly string[], b: readonly string[]): boolean {
  return a.length === b.length && a.every((text, index) => text === b[index]);
}

/** It contains session passwords: readable only for its owner and the group of its directory, which is BIRD's. */
const MODE = 0o640;

/**
 * BIRD's configuration on disk. A change is written to a candidate file, checked there, and renamed, so that BIRD never reads a
 * partial file, whenever it starts.
 */
export class ConfigFile {
  readonly path: string;
  /** Path of the candidate until it has been checked. */
  readonly candidatePath: string;

  constructor(path: string) {
    this.path = path;
    this.candidatePath = `${path}.candidate`;
  }

  /** @returns undefined when there is none */
  async read(): Promise<string | undefined> {
    try {
      return await readFile(this.path, 'utf8');
    } catch {
      return undefined;
    }
  }

  /** Creates the directory if missing, and writes the candidate with fsync. */
  async propose(text: string): Promise<void> {
    const directory = dirname(this.path);
    await mkdir(directory, { recursive: true });
    const { gid } = await stat(directory);
    await rm(this.candidatePath, { force: true });
    const file = await open(this.candidatePath, 'wx', MODE);
    try {
      await file.writeFile(text);
      await file.sync();
    } finally {
      await file.close();
    }
    await chown(this.candidatePath, -1, gid);
    await chmod(this.candidatePath, MODE);
  }

  /** Renames the candidate to the configuration. */
  accept(): Promise<void> {
    return rename(this.candidatePath, this.path);
  }

  /** Removes the candidate. */
  reject(): Promise<void> {
    return rm(this.candidatePath, { force: true });
  }
}
