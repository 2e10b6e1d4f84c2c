import { Failure, violationsFailure, type Violation } from '@podwire/shared/failure/failure';
import type { Family } from '@podwire/shared/net/address';
import { comparePrefixes, formatPrefix, parsePrefix } from '@podwire/shared/net/prefix';

import type { Demand, Obstacle, PoolUse } from '../blocks/demand.js';
import { unavailableReason, type Pool } from '../records/pool.js';
import type { PoolChoice } from '../records/request-policy.js';
import type { View } from '../records/view.js';
import type { Labels } from '../selectors/parser.js';
import { matches } from '../selectors/selector.js';

/** A pool of the requested family, with the reason why it cannot serve, if any. */
export interface PoolEvaluation {
  readonly pool: Pool;
  readonly skipReason: string | undefined;
  /** How to make it serve; undefined when it does. */
  readonly remedy: string | undefined;
}

/**
 * The candidate pools of a demand in the order of attempts, each with the reason if it cannot serve. Requested pools
 * serve regardless of their selectors and assignmentMode. Without requested pools, all pools of the family are
 * candidates.
 */
export function evaluatePools(view: View, demand: Demand): PoolEvaluation[] {
  const requested = requestedPools(view, demand);
  if (requested.length > 0)
    return requested.map((pool) => poolEvaluation(pool, availabilityObstacle(pool) ?? useObstacle(pool, demand.use)));
  return view
    .pools()
    .filter(({ prefix }) => prefix.family === demand.family)
    .map((pool) =>
      poolEvaluation(
        pool,
        availabilityObstacle(pool) ?? selectionObstacle(pool, demand) ?? useObstacle(pool, demand.use),
      ),
    );
}

function poolEvaluation(pool: Pool, obstacle: Obstacle | undefined): PoolEvaluation {
  return { pool, skipReason: obstacle?.reason, remedy: obstacle?.remedy };
}

function availabilityObstacle(pool: Pool): Obstacle | undefined {
  const reason = unavailableReason(pool);
  if (reason === undefined) return undefined;
  if (pool.deletionTimeMs !== undefined) return { reason, remedy: 'create a pool in place of the one being deleted' };
  if (pool.disabled) return { reason, remedy: 'enable the pool' };
  return { reason, remedy: 'remove what the reason names' };
}

function useObstacle(pool: Pool, use: PoolUse): Obstacle | undefined {
  const reason = wrongUseReason(pool, use);
  return reason === undefined ? undefined : { reason, remedy: `add ${use} to the pool’s allowedUses` };
}

/** The pools that may serve, in the order of attempts. */
export function servingPools(view: View, demand: Demand): Pool[] {
  const serving: Pool[] = [];
  for (const { pool, skipReason } of evaluatePools(view, demand)) if (skipReason === undefined) serving.push(pool);
  return serving;
}

function requestedPools(view: View, { pools, family }: Demand): Pool[] {
  if (pools.length === 0) return [];
  const found = pools.flatMap((text) => findPool(view, text) ?? []).filter(({ prefix }) => prefix.family === family);
  return [...new Set(found)];
}

/** The pool with this name or exactly this CIDR. */
export function findPool(view: View, text: string): Pool | undefined {
  const parsed = parsePrefix(text);
  if (!parsed.ok) return view.pool(text);
  return view.pools().find(({ prefix }) => comparePrefixes(prefix, parsed.prefix) === 0);
}

/** Pools that a request names. */
interface RequestedPools {
  readonly pools: readonly string[];
  readonly families: readonly Family[];
  /** Details of some of the pools, such as the family that each was requested for. */
  readonly poolChoices?: readonly PoolChoice[];
}

/**
 * Checks all pools that a request names.
 * @throws Failure INVALID_REQUEST for pools that do not exist, or whose family is not requested or differs from the one
 * they were requested for; NO_POOL_SERVES for the first unavailable pool
 */
export function checkRequestedPools(view: View, { pools, families, poolChoices = [] }: RequestedPools): void {
  const violations: Violation[] = [];
  pools.forEach((text, index) => {
    const pool = findPool(view, text);
    const field = `pools[${index}]`;
    if (!pool)
      violations.push({ field, reason: `is "${text}", but there is no such pool; list the pools for their names` });
    else if (!families.includes(pool.prefix.family)) {
      const reason = `is pool "${pool.name}" ${formatPrefix(pool.prefix)}, but no IPv${pool.prefix.family} address is requested`;
      violations.push({ field, reason });
    } else {
      const family = poolChoices.find((choice) => choice.pool === text && isOther(choice.family, pool))?.family;
      if (family !== undefined) {
        const reason = `is pool "${pool.name}" ${formatPrefix(pool.prefix)}, but requested as an IPv${family} pool; request it as an IPv${pool.prefix.family} pool`;
        violations.push({ field, reason });
      }
    }
  });
  if (violations.length > 0) throw violationsFailure('INVALID_REQUEST', 'requested pools refused', violations);
  for (const text of pools) {
    const pool = findPool(view, text);
    const reason = pool && unavailableReason(pool);
    if (reason === undefined) continue;
    const message = `pool "${pool?.name}" was requested and is ${reason}; enable it, or request another`;
    throw new Failure('NO_POOL_SERVES', message, { details: { pool: pool?.name ?? '' } });
  }
}

function isOther(family: Family | undefined, { prefix }: Pool): boolean {
  return family !== undefined && family !== prefix.family;
}

/** Why a pool does not serve requests that name no pool. */
function selectionObstacle(
  { assignmentMode, nodeSelector, namespaceSelector }: Pool,
  demand: Demand,
): Obstacle | undefined {
  if (assignmentMode === 'Manual') {
    const reason = 'its assignmentMode is Manual, so it serves only requests that name it';
    return { reason, remedy: 'request the pool by its name, or set its assignmentMode to Automatic' };
  }
  return (
    selectorObstacle('nodeSelector', nodeSelector, nodeSubject(demand)) ??
    selectorObstacle('namespaceSelector', namespaceSelector, namespaceSubject(demand))
  );
}

function namespaceSubject({ namespaceLabels, isAnyNamespace }: Demand): Subject {
  return { of: 'the namespace', labels: namespaceLabels, isAny: isAnyNamespace };
}

function nodeSubject({ owner, nodeLabels }: Demand): Subject {
  const of = owner.kind === 'host' ? `node ${owner.name}` : `virtual owner ${owner.name}`;
  return { of, labels: nodeLabels };
}

/** Why a pool does not allow a use; undefined when it does. */
export function wrongUseReason({ allowedUses }: Pool, use: PoolUse): string | undefined {
  if (allowedUses.includes(use)) return undefined;
  const purpose = { Workload: 'containers', Tunnel: 'tunnels', LoadBalancer: 'load balancers' }[use];
  return `not for ${purpose}: its allowedUses are ${allowedUses.join(', ') || 'empty'}`;
}

interface Subject {
  readonly of: string;
  readonly labels: Labels;
  /** Whether every selector counts as matching. Default: false. */
  readonly isAny?: boolean | undefined;
}

/**
 * An invalid selector excludes only its own pool. The pool may be intended for other pods, so it must not serve. A typo
 * in one pool must not stop every pod of the cluster.
 */
function selectorObstacle(
  field: string,
  selector: string,
  { of, labels, isAny = false }: Subject,
): Obstacle | undefined {
  const match = matches(selector, labels);
  if (match.fault !== undefined) {
    const reason = `its ${field} "${selector}" cannot be read: ${match.fault}`;
    return { reason, remedy: `correct the pool’s ${field}` };
  }
  if (match.matches || isAny) return undefined;
  const shown = Object.entries(labels).map(([name, value]) => `${name}=${value}`);
  const named = shown.length > NAMED_LABELS ? [...shown.slice(0, NAMED_LABELS), '…'] : shown;
  const has = named.length === 0 ? 'no labels' : `the labels ${named.join(', ')}`;
  return {
    reason: `its ${field} "${selector}" does not match ${of}, which has ${has}`,
    remedy: `change the pool’s ${field} or the labels of ${of}`,
  };
}

/** Maximum number of labels shown in a reason. */
const NAMED_LABELS = 8;
