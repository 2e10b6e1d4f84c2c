import { comparePrefixes } from '@podwire/shared/net/prefix';
import { compareNames } from '@podwire/shared/words/order';

import type { Affinity } from '../../records/block.js';

/** Records of one kind, few enough to be sorted again after each change. */
export class NameList<Named extends { readonly name: string }> {
  readonly #byKey = new Map<string, Named>();
  #sorted: readonly Named[] | undefined;

  set(key: string, value: Named): void {
    this.#byKey.set(key, value);
    this.#sorted = undefined;
  }

  delete(key: string): void {
    if (this.#byKey.delete(key)) this.#sorted = undefined;
  }

  sorted(): readonly Named[] {
    this.#sorted ??= sortByName([...this.#byKey.values()]);
    return this.#sorted;
  }
}

/** Affinities by owner; the owner's text is the key prefix of its affinities. */
export class AffinityList {
  readonly #byOwner = new Map<string, Map<string, Affinity>>();
  readonly #sorted = new Map<string, readonly Affinity[]>();

  set(owner: string, key: string, affinity: Affinity): void {
    this.#sorted.delete(owner);
    const known = this.#byOwner.get(owner) ?? new Map<string, Affinity>();
    this.#byOwner.set(owner, known.set(key, affinity));
  }

  delete(owner: string, key: string): void {
    const known = this.#byOwner.get(owner);
    if (!known?.delete(key)) return;
    this.#sorted.delete(owner);
    if (known.size === 0) this.#byOwner.delete(owner);
  }

  /** In the order of their blocks. */
  of(owner: string): readonly Affinity[] {
    const known = this.#byOwner.get(owner);
    if (!known) return [];
    const sorted = this.#sorted.get(owner) ?? sortAffinities([...known.values()]);
    this.#sorted.set(owner, sorted);
    return sorted;
  }

  *all(): Generator<Affinity, void, void> {
    for (const known of this.#byOwner.values()) yield* known.values();
  }
}

export function sortByName<Named extends { readonly name: string }>(values: Named[]): Named[] {
  return values.sort(compareNames);
}

export function sortAffinities(affinities: Affinity[]): Affinity[] {
  return affinities.sort((a, b) => comparePrefixes(a.block, b.block));
}
