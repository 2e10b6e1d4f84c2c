import { DIRECTIONS, type Profile } from '@podwire/shared/network-policy/policy';

import { isList, isObject, objectsOf, type JsonObject } from '../nft/table.js';
import { logs } from './drop-log.js';
import type { Targets } from './elements.js';
import { addProfile, BASE_TABLE, JUMPS } from './rules.js';

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

/** Interfaces of pods that a listed table leads to no chain, though they need one. */
export function openPods(objects: readonly JsonObject[], pods: ReadonlyMap<string, Targets>): string[] {
  const led = new Map(DIRECTIONS.map((direction) => [direction, keysOf(objects, JUMPS[direction].name)]));
  const isOpen = ([device, targets]: readonly [string, Targets]) =>
    DIRECTIONS.some((direction) => targets[direction] !== undefined && !led.get(direction)?.has(device));
  return [...pods].filter(isOpen).map(([device]) => device);
}

function keysOf(objects: readonly JsonObject[], name: string): ReadonlySet<unknown> {
  const map = objects.map((object) => object.map).find((each) => isObject(each) && each.name === name);
  const elements = isObject(map) && isList(map.elem) ? map.elem : [];
  return new Set(elements.map((each) => (isList(each) ? each[0] : undefined)));
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
