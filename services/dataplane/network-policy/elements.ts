import { FAMILIES, formatAddress, type Address, type Family } from '@podwire/shared/net/address';
import type { Direction } from '@podwire/shared/network-policy/policy';

import { concatJson, jumpTo, type ElementsChange, type Json, type NftSet, type SetDefinition } from '../nft/table.js';
import { elementJson, familyOfKey, type ElementKey, type ElementsDelta, type MemberSet } from './members.js';
import { FILTERED, JUMPS, KNOWN, OWN, POD_SETS, SELF, setDefinition } from './rules.js';

/** The chains that judge a pod's connections; undefined: they need no judgement. */
export interface Targets extends Readonly<Record<Direction, string | undefined>> {
  /** Addresses of the pod. */
  readonly addresses: readonly Address[];
}

/** A pod without policies; no interface has this name. */
export const PROBE = {
  device: 'podwire-probe',
  from: undefined,
  to: { addresses: [], egress: undefined, ingress: undefined },
};

/** Changes of one transaction: the kernel looks each set up by its name among all sets. */
const CHANGES_MAX = 500;

/** The elements of a set that is written as a whole. */
export function wholeSets(id: string, members: MemberSet | undefined): NftSet[] {
  const keys = [...(members?.keys ?? [])];
  return FAMILIES.map((family) => ({ ...setDefinition(id, family), elements: elementsOf(family, keys) }));
}

/** The changes of the sets of nftables for a change of a set. */
function setChanges(id: string, { added, deleted }: ElementsDelta): ElementsChange[] {
  return FAMILIES.flatMap((family) => {
    const set = setDefinition(id, family);
    const change = { set, added: elementsOf(family, added), deleted: elementsOf(family, deleted) };
    return change.added.length + change.deleted.length > 0 ? [change] : [];
  });
}

function elementsOf(family: Family, keys: readonly ElementKey[]): Json[] {
  return keys.filter((key) => familyOfKey(key) === family).map(elementJson);
}

/** The elements of the sets and maps of pods. */
export function podSets(pods: ReadonlyMap<string, Targets>): NftSet[] {
  const sets = new Map<SetDefinition, Json[]>(POD_SETS.map((set) => [set, []]));
  for (const [device, targets] of pods)
    for (const [set, element] of podElements(device, targets)) sets.get(set)?.push(element);
  return [...sets].map(([set, elements]) => ({ ...set, elements }));
}

/** The changes that lead pods from their chains to new ones; undefined: the interface is not, or no longer, a pod's. */
export function podChanges(
  pods: readonly { readonly device: string; readonly from: Targets | undefined; readonly to: Targets | undefined }[],
): ElementsChange[] {
  const changes = new Map<SetDefinition, { readonly set: SetDefinition; added: Json[]; deleted: Json[] }>();
  const changeOf = (set: SetDefinition) => {
    const change = changes.get(set) ?? { set, added: [], deleted: [] };
    changes.set(set, change);
    return change;
  };
  for (const { device, from, to } of pods) {
    const [before, after] = [from, to].map((targets) => (targets ? podElements(device, targets) : []));
    const texts = ([set, element]: PodElement) => `${set.name} ${JSON.stringify(element)}`;
    const [old, wanted] = [before, after].map((elements) => new Set(elements?.map(texts)));
    for (const each of before ?? []) if (!wanted?.has(texts(each))) changeOf(each[0]).deleted.push(each[1]);
    for (const each of after ?? []) if (!old?.has(texts(each))) changeOf(each[0]).added.push(each[1]);
  }
  return [...changes.values()];
}

type PodElement = readonly [set: SetDefinition, element: Json];

function podElements(device: string, targets: Targets): PodElement[] {
  const jump = (direction: Direction): PodElement[] => {
    const chain = targets[direction];
    return chain === undefined ? [] : [[JUMPS[direction], [device, jumpTo(chain)]]];
  };
  const jumps = [...jump('egress'), ...jump('ingress')];
  const own = targets.addresses.map((each): PodElement => [OWN[each.family], concatJson(device, formatAddress(each))]);
  const filtered: PodElement[] = jumps.length > 0 ? [[FILTERED, device], ...own] : [];
  return [[KNOWN, device], [SELF, concatJson(device, device)], ...filtered, ...jumps];
}

/** The changes in transactions of a size that the kernel takes. */
export function* transactions(changes: readonly ElementsChange[]): IterableIterator<readonly ElementsChange[]> {
  for (let first = 0; first < changes.length; first += CHANGES_MAX) yield changes.slice(first, first + CHANGES_MAX);
}

/** Changes of sets that are not in the kernel yet. */
export class PendingElements {
  readonly #sets = new Map<string, Map<ElementKey, 'added' | 'deleted'>>();

  add(id: string, { added, deleted }: ElementsDelta): void {
    const pending = this.#sets.get(id) ?? new Map<ElementKey, 'added' | 'deleted'>();
    this.#sets.set(id, pending);
    const note = (key: ElementKey, kind: 'added' | 'deleted') => {
      // Every change is a transition, so a pending one is the opposite.
      if (!pending.delete(key)) pending.set(key, kind);
    };
    for (const key of deleted) note(key, 'deleted');
    for (const key of added) note(key, 'added');
  }

  /** Takes the changes of some sets; the rest stays. */
  take(isTaken: (id: string) => boolean): ElementsChange[] {
    const taken = [...this.#sets].filter(([id]) => isTaken(id));
    for (const [id] of taken) this.#sets.delete(id);
    return taken.flatMap(([id, pending]) => {
      const keys = (kind: 'added' | 'deleted') => [...pending].filter(([, each]) => each === kind).map(([key]) => key);
      return setChanges(id, { added: keys('added'), deleted: keys('deleted') });
    });
  }

  clear(): void {
    this.#sets.clear();
  }
}
