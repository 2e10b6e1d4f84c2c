import type { Profile } from '@podwire/shared/network-policy/policy';

import { isObject, objectsOf, type JsonObject } from '../nft/table.js';
import { logs } from './drop-log.js';
import { addProfile, BASE_TABLE } from './rules.js';

/**
 * Whether a listed table has all rules: each chain of every table, and each listed chain of these profiles. Releases of nft list
 * rules in different forms, so they are counted; rules that log are not, as some kernels lack them.
 */
export function hasRules(objects: readonly JsonObject[], profiles: readonly Profile[]): boolean {
  const listed = countsByChain(objects);
  const isComplete = ([chain, count]: readonly [chain: unknown, count: number]) => listed.get(chain) === count;
  const commands = profiles.flatMap(addProfile);
  const ofProfiles = countsByChain(commands.flatMap((command) => ('add' in command ? [command.add] : [])));
  return (
    [...countsByChain(objectsOf(BASE_TABLE))].every(isComplete) &&
    [...ofProfiles].filter(([chain]) => listed.has(chain)).every(isComplete)
  );
}

/** Number of rules by the name of the chain. */
function countsByChain(objects: readonly JsonObject[]): ReadonlyMap<unknown, number> {
  const counts = new Map<unknown, number>();
  for (const object of objects) {
    const { chain, rule } = object;
    if (isObject(chain)) counts.set(chain.name, counts.get(chain.name) ?? 0);
    if (isObject(rule) && !logs(object)) counts.set(rule.chain, (counts.get(rule.chain) ?? 0) + 1);
  }
  return counts;
}
