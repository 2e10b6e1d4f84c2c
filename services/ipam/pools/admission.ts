import { Failure } from '@podwire/shared/failure/failure';
import { formatAddress } from '@podwire/shared/net/address';
import { formatPrefix, prefixContains, prefixesOverlap, type Prefix } from '@podwire/shared/net/prefix';
import { compareTexts } from '@podwire/shared/words/order';

import { overlappingBlock } from '../blocks/lookup.js';
import type { Node } from '../records/node.js';
import type { Pool, ServiceAddress } from '../records/pool.js';
import type { View } from '../records/view.js';
import { networkInPool, poolText, servesPods } from './pools.js';
import { checkPool, TUNNEL, type PoolFault, type PoolSpec } from './rules.js';

/** Another pool that has addresses of the range. @returns a failure POOL_OVERLAP; undefined if there is none */
export function poolConflict({ name, prefix }: PoolSpec, pools: readonly Pool[]): Failure | undefined {
  const other = pools.find((pool) => prefixesOverlap(pool.prefix, prefix));
  if (!other) return undefined;
  const text = `pool "${name}" ${formatPrefix(prefix)} overlaps ${poolText(other)}${drainNote(other)}; choose another range`;
  return new Failure('POOL_OVERLAP', text, { details: { pool: other.name } });
}

export function drainNote({ deletionTimeMs }: Pool): string {
  return deletionTimeMs === undefined ? '' : ', which is being deleted and is removed with its last address';
}

/** A block of another size in the range. @returns a failure POOL_OVERLAP; undefined if there is none */
export function blockConflict(view: View, { name, prefix, blockSizeBits }: PoolSpec): Failure | undefined {
  const block = blockOfOtherSize(view, prefix, blockSizeBits);
  if (!block) return undefined;
  const text = `pool "${name}" ${formatPrefix(prefix)} with blocks of /${blockSizeBits} overlaps block ${formatPrefix(block)}, which is left from a former pool with addresses in use, or cannot be read; choose blocks of /${block.length} or another range`;
  return new Failure('POOL_OVERLAP', text, { details: { block: formatPrefix(block) } });
}

function blockOfOtherSize(view: View, prefix: Prefix, blockSizeBits: number): Prefix | undefined {
  for (const block of view.blocksIn(prefix)) if (block.prefix.length !== blockSizeBits) return block.prefix;
  const across = [overlappingBlock(view, prefix)?.prefix, ...unreadableBlocksIn(view, prefix)];
  return across.find((block) => block && block.length !== blockSizeBits);
}

/** The unreadable blocks within a range, or one around it. */
function unreadableBlocksIn(view: View, prefix: Prefix): Prefix[] {
  const first = view.unreadableBlock(prefix)?.name.prefix;
  if (!first || !prefixContains(prefix, first)) return first ? [first] : [];
  return [...view.unreadable()].flatMap(({ name }) =>
    name.kind === 'block' && prefixContains(prefix, name.prefix) ? [name.prefix] : [],
  );
}

/** A host with addresses of the range, which pods and nodes would not reach. @returns a failure POOL_OVERLAP; undefined if there is none */
export function hostConflict(
  nodes: readonly Node[],
  spec: PoolSpec,
  services: readonly ServiceAddress[] = [],
): Failure | undefined {
  const host = servesPods(spec) ? hostIn(nodes, spec, services) : undefined;
  if (host === undefined) return undefined;
  const text = `pool "${spec.name}" ${formatPrefix(spec.prefix)} overlaps ${host}, so pods would get addresses of hosts; choose another range`;
  return new Failure('POOL_OVERLAP', text, { details: { pool: spec.name } });
}

function hostIn(nodes: readonly Node[], spec: PoolSpec, services: readonly ServiceAddress[]): string | undefined {
  const service = services.find(({ address }) => prefixContains(spec.prefix, address));
  if (service) return `address ${formatAddress(service.address)} of ${service.name}`;
  for (const node of nodes) {
    const network = networkInPool(node, spec);
    if (network) return `network ${formatPrefix(network)} of node "${node.name}"`;
  }
  return undefined;
}

/** Reason of Calico's pool controller. */
export const OVERLAP = 'CIDROverlap';

/** Why podwire-ipam allocates nothing from a pool. */
export interface PoolFinding {
  /** Reason of the pool's condition `Allocatable`. */
  readonly reason: typeof OVERLAP | 'InvalidPool' | 'BlockSizeConflict' | 'HostOverlap';
  /** The failure of the same pool in podwirectl. */
  readonly message: string;
}

/**
 * Checks pools that other tools have written, by the rules for pools that podwirectl creates. Difficulties:
 *
 * - A written pool cannot be refused, and several may overlap. As for Calico's pool controller, the first in this order serves:
 *   allocatable, being deleted, not allocatable, new; then the older one; then by name. A disabled pool blocks no other one.
 * - A pool that has blocks was accepted before, perhaps by Calico: only its own fields and its overlaps are checked.
 * - Every decision needs the result. What depends on all pools or all nodes is computed again only after they have changed.
 */
export class PoolAdmission {
  readonly #services: readonly ServiceAddress[];
  readonly #ofPools = new WeakMap<readonly Pool[], ReadonlyMap<string, PoolFinding>>();
  readonly #hosts = new WeakMap<readonly Node[], WeakMap<Pool, PoolFinding | 'none'>>();

  /** @param services - addresses of podwire-ipam, its datastore and the API server */
  constructor(services: readonly ServiceAddress[]) {
    this.#services = services;
  }

  /** The pools with their findings as `notAllocatable`. @param pools - the pools of the view, as they are stored */
  readonly apply = (view: View, pools: readonly Pool[]): readonly Pool[] => {
    const findings = this.findings(view, pools);
    const checked = pools.map((pool) => {
      const notAllocatable = foreignFinding(pool) ?? findings.get(pool.name)?.message;
      return notAllocatable === pool.notAllocatable ? pool : { ...pool, notAllocatable };
    });
    return checked.every((pool, index) => pool === pools[index]) ? pools : checked;
  };

  /** Findings by the pool's name. @param pools - the pools of the view */
  findings(view: View, pools: readonly Pool[]): ReadonlyMap<string, PoolFinding> {
    const known = this.#ofPools.get(pools) ?? findingsAmong(pools);
    this.#ofPools.set(pools, known);
    const more = pools.flatMap((pool) => {
      const isChecked =
        foreignFinding(pool) !== undefined ||
        pool.disabled ||
        pool.deletionTimeMs !== undefined ||
        known.has(pool.name);
      const finding = isChecked || hasOwnBlock(view, pool) ? undefined : this.#newPoolFinding(view, pool);
      return finding ? [[pool.name, finding] as const] : [];
    });
    return more.length === 0 ? known : new Map([...known, ...more]);
  }

  #newPoolFinding(view: View, pool: Pool): PoolFinding | undefined {
    const block = blockConflict(view, pool);
    if (block) return { reason: 'BlockSizeConflict', message: block.message };
    const nodes = view.nodes();
    const ofNodes = this.#hosts.get(nodes) ?? new WeakMap<Pool, PoolFinding | 'none'>();
    this.#hosts.set(nodes, ofNodes);
    const known = ofNodes.get(pool) ?? this.#hostFinding(nodes, pool) ?? 'none';
    ofNodes.set(pool, known);
    return known === 'none' ? undefined : known;
  }

  #hostFinding(nodes: readonly Node[], pool: Pool): PoolFinding | undefined {
    const host = hostConflict(nodes, pool, this.#services);
    return host && { reason: 'HostOverlap', message: host.message };
  }
}

/** The status of a pool for operators and their tools. */
export interface PoolStatus {
  readonly name: string;
  /** Whether podwire-ipam allocates from it. */
  readonly isAllocatable: boolean;
  readonly reason: string;
  readonly message: string;
  /** Whether the pool breaks a rule. */
  readonly isRefused: boolean;
  /** Whether a deletion waits for its addresses; undefined: as it is. */
  readonly isDrained: boolean | undefined;
}

/** The status of each pool, also of pools that cannot be read. */
export function poolStatuses(view: View, admission: PoolAdmission): PoolStatus[] {
  const pools = view.pools();
  const findings = admission.findings(view, pools);
  const unreadable = [...view.unreadable()].flatMap(({ name, reason }): PoolStatus[] => {
    if (name.kind !== 'pool') return [];
    const message = `pool "${name.name}" cannot be read: ${reason}; correct it`;
    const refusal = { isAllocatable: false, isRefused: true, isDrained: undefined };
    return [{ name: name.name, reason: 'Unreadable', message, ...refusal }];
  });
  return [...pools.map((pool) => statusOf(pool, findings.get(pool.name))), ...unreadable];
}

function statusOf(pool: Pool, finding: PoolFinding | undefined): PoolStatus {
  const { name, deletionTimeMs, disabled } = pool;
  const text = poolText(pool);
  // Blocks in the range of a pool that overlaps are another pool's.
  const isOverlap = foreignFinding(pool) === OVERLAP || (finding !== undefined && finding.reason !== 'InvalidPool');
  const isDrained = !isOverlap;
  const refusal = (reason: string, message: string, isRefused = false) => {
    return { name, isAllocatable: false, reason, message, isRefused, isDrained };
  };
  if (deletionTimeMs !== undefined)
    return refusal('Terminating', `${text} is being deleted and is removed with its last address`);
  if (disabled) return refusal('PoolDisabled', `${text} is disabled; set disabled to false to allocate from it`);
  if (finding) return refusal(finding.reason, finding.message, true);
  const message = `podwire-ipam allocates from ${text}`;
  return { name, isAllocatable: true, reason: 'OK', message, isRefused: false, isDrained };
}

/** The findings that follow from the pools alone. */
function findingsAmong(pools: readonly Pool[]): ReadonlyMap<string, PoolFinding> {
  const findings = new Map<string, PoolFinding>();
  const serving: Pool[] = [];
  for (const pool of pools.toSorted(compareRank)) {
    if (pool.deletionTimeMs !== undefined) serving.push(pool);
    else if (!pool.disabled && foreignFinding(pool) === undefined) {
      const finding = invalidFinding(pool) ?? overlapFinding(pool, serving);
      if (finding) findings.set(pool.name, finding);
      else serving.push(pool);
    }
  }
  return findings;
}

/** The finding of Calico's pool controller. */
function foreignFinding({ condition, notAllocatable }: Pool): string | undefined {
  return condition?.isOwn === false && !condition.isAllocatable ? notAllocatable : undefined;
}

function compareRank(a: Pool, b: Pool): number {
  return rankOf(a) - rankOf(b) || a.createTimeMs - b.createTimeMs || compareTexts(a.name, b.name);
}

function rankOf({ deletionTimeMs, condition }: Pool): number {
  if (deletionTimeMs !== undefined) return 1;
  if (!condition) return 3;
  return condition.isAllocatable ? 0 : 2;
}

function overlapFinding(pool: Pool, serving: readonly Pool[]): PoolFinding | undefined {
  const conflict = poolConflict(pool, serving);
  return conflict && { reason: OVERLAP, message: conflict.message };
}

function invalidFinding(pool: Pool): PoolFinding | undefined {
  const faults = faultsOf(pool).map(({ field, reason }) => `${field} ${reason}`);
  if (faults.length === 0) return undefined;
  return { reason: 'InvalidPool', message: `${poolText(pool)} is refused: ${faults.join('; ')}` };
}

function faultsOf(pool: Pool): readonly PoolFault[] {
  // Calico accepts a namespaceSelector without allowedUses, whose default includes tunnels.
  const withoutTunnels = pool.allowedUses.filter((use) => use !== TUNNEL);
  const allowedUses = pool.namespaceSelector === '' || withoutTunnels.length === 0 ? pool.allowedUses : withoutTunnels;
  const checked = checkPool({ ...pool, allowedUses, cidr: formatPrefix(pool.prefix) });
  return checked.ok ? [] : checked.faults;
}

/** Whether the pool has a block of its size: it has served before. */
function hasOwnBlock(view: View, { prefix, blockSizeBits }: Pool): boolean {
  for (const block of view.blocksIn(prefix)) if (block.prefix.length === blockSizeBits) return true;
  return false;
}
