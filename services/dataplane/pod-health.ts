import type { Family } from '@podwire/shared/net/address';

import type { Condition } from './routes/wanted.js';

/**
 * Whether pods can be wired, as health checks are told: not once there is something against every family that pools have, and
 * while the pools are not known, against every family. What is against some pods alone is a condition.
 * @param poolFamilies - undefined while the pools are not known
 */
export function canWirePods(conditions: readonly Condition[], poolFamilies: readonly Family[] | undefined): boolean {
  const defeated = new Set(conditions.flatMap(({ defeats = [] }) => defeats));
  const families = poolFamilies && poolFamilies.length > 0 ? poolFamilies : ([4, 6] as const);
  return !families.every((family) => defeated.has(family));
}
