import type { Family } from '@podwire/shared/net/address';
import { splitCidr } from '@podwire/shared/net/prefix';

import type { Asked, Refuse } from './address-list.js';

/** Pools of one family that are asked for. */
export interface PoolTexts {
  readonly texts: readonly string[];
  readonly family: Family;
}

/**
 * Reads pools, each by its name or its CIDR. Whether they exist is IPAM's to say.
 * @returns undefined when there are none, or when one is of the other family
 */
export function readPools(
  place: string,
  { texts, family }: PoolTexts,
  refuse: Refuse,
): Asked<readonly string[]> | undefined {
  const faults = texts.flatMap((text) => {
    if (text === '') return ['has an empty entry; give the name of a pool, or its CIDR'];
    const address = splitCidr(text)?.address;
    if (!address || address.family === family) return [];
    return [`has ${text}, which is of IPv${address.family}; give pools of IPv${family}`];
  });
  for (const reason of faults) refuse({ field: place, reason });
  return texts.length === 0 || faults.length > 0 ? undefined : { place, value: texts };
}
