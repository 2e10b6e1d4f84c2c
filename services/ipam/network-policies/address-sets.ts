import { hash } from 'node:crypto';

import { memberHash, type PortMember, type SetMember } from '@podwire/shared/network-policy/policy';

/** A member that several sets share, with its derived values. */
export interface Member {
  readonly key: string;
  readonly value: SetMember | PortMember;
  readonly hash: bigint;
}

export function memberOf(value: SetMember | PortMember): Member {
  const { address, sequenceNumber } = value;
  const ends = 'port' in value ? ` ${value.protocol} ${value.port}` : '';
  return { key: `${address.family} ${address.value} ${sequenceNumber}${ends}`, value, hash: memberHash(value) };
}

/** Names a set or a profile by its content: 128 bits, as users choose the content. */
export function contentHash(text: string): string {
  return hash('sha256', text, 'hex').slice(0, 32);
}

/** A set, or a change of it. The same object for all nodes that need it. */
export interface SetUpdate {
  readonly id: string;
  /** Whether the added members are the whole set, or its first part. */
  readonly isWhole: boolean;
  readonly added: readonly Member[];
  readonly removed: readonly Member[];
}

/** Members of one update; larger sets are sent in parts. */
const PART_COUNT = 5_000;

/** Changes that are kept at least, for nodes that read slowly. A node behind them begins again. */
const KEPT_CHANGES_COUNT = 2_000;

/** The addresses, or addresses with ports, of the pods that a selector selects. */
export class AddressSet {
  readonly id: string;
  readonly #members = new Map<string, Member>();
  /** How often a member is there beyond the first: pods outside of the pools may report the same address. */
  readonly #repeated = new Map<string, number>();
  #digest = 0n;
  /** Kept changes; undefined before a node has the set, as the first list of a cluster changes all sets. */
  #changes: Member[] | undefined;
  /** Version before the first kept change. */
  #firstVersion = 0;
  /** Kept while nodes receive it. */
  #whole: WeakRef<readonly SetUpdate[]> | undefined;
  #latest: { readonly from: number; readonly update: SetUpdate } | undefined;

  constructor(id: string) {
    this.id = id;
  }

  /** The present version, for {@link since}. It counts the changes. */
  track(): number {
    this.#changes ??= [];
    return this.#firstVersion + this.#changes.length;
  }

  /** Sum of the members' hashes modulo 2^64. */
  get digest(): bigint {
    return this.#digest;
  }

  get members(): Iterable<Member> {
    return this.#members.values();
  }

  /** @returns whether the set has changed */
  add(member: Member): boolean {
    const { key, hash } = member;
    if (this.#members.has(key)) {
      this.#repeated.set(key, (this.#repeated.get(key) ?? 0) + 1);
      return false;
    }
    this.#members.set(key, member);
    this.#changed(member, hash);
    return true;
  }

  /** @returns whether the set has changed */
  remove(member: Member): boolean {
    const { key, hash } = member;
    const repeated = this.#repeated.get(key);
    if (repeated !== undefined) {
      if (repeated > 1) this.#repeated.set(key, repeated - 1);
      else this.#repeated.delete(key);
      return false;
    }
    if (!this.#members.delete(key)) return false;
    this.#changed(member, -hash);
    return true;
  }

  /** The set in parts. */
  whole(): readonly SetUpdate[] {
    const known = this.#whole?.deref();
    if (known) return known;
    const members = [...this.#members.values()];
    const parts: SetUpdate[] = [];
    for (let first = 0; first === 0 || first < members.length; first += PART_COUNT)
      parts.push({ id: this.id, isWhole: first === 0, added: members.slice(first, first + PART_COUNT), removed: [] });
    this.#whole = new WeakRef(parts);
    return parts;
  }

  /** The changes since a version; undefined if they are not kept any more. */
  since(version: number): SetUpdate | undefined {
    if (!this.#changes || version < this.#firstVersion) return undefined;
    if (this.#latest?.from === version) return this.#latest.update;
    const changed = new Map<string, Member>();
    // Each change of a member undoes the one before.
    for (const member of this.#changes.slice(version - this.#firstVersion))
      if (!changed.delete(member.key)) changed.set(member.key, member);
    const members = [...changed.values()];
    const update = {
      id: this.id,
      isWhole: false,
      added: members.filter(({ key }) => this.#members.has(key)),
      removed: members.filter(({ key }) => !this.#members.has(key)),
    };
    this.#latest = { from: version, update };
    return update;
  }

  #changed(member: Member, hash: bigint): void {
    this.#digest = BigInt.asUintN(64, this.#digest + hash);
    this.#whole = undefined;
    this.#latest = undefined;
    if (!this.#changes) return;
    this.#changes.push(member);
    if (this.#changes.length < 2 * KEPT_CHANGES_COUNT) return;
    this.#changes = this.#changes.slice(-KEPT_CHANGES_COUNT);
    this.#firstVersion += KEPT_CHANGES_COUNT;
  }
}
