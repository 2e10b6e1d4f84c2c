import { memberHash, type PortMember, type SetMember } from '@podwire/shared/network-policy/policy';
import { formatAddress, parseAddress, type Family } from '@podwire/shared/net/address';

import { concatJson, type Json } from '../nft/table.js';

const DIGEST_BITS = 64;

/**
 * An element of a set in nftables, as text: an address, or an address, a protocol and a port with spaces between them. Members
 * with different sequence numbers are one element.
 */
export type ElementKey = string;

/** The elements that a change of a set adds to nftables, and the elements that it deletes; no element is in both. */
export interface ElementsDelta {
  readonly added: readonly ElementKey[];
  readonly deleted: readonly ElementKey[];
}

/** The members of a set of addresses, or of addresses with ports. */
export class MemberSet {
  /** Sequence numbers of an element's members: nearly always one. */
  readonly #elements = new Map<ElementKey, bigint | readonly bigint[]>();
  #digest = 0n;

  /** Sum of the hashes of the members, modulo 2^64. */
  get digest(): bigint {
    return this.#digest;
  }

  get keys(): IterableIterator<ElementKey> {
    return this.#elements.keys();
  }

  has(key: ElementKey): boolean {
    return this.#elements.has(key);
  }

  /** @returns whether it is the first member of its element */
  add(member: SetMember | PortMember): boolean {
    const key = keyOf(member);
    const numbers = this.#numbers(key);
    if (numbers.includes(member.sequenceNumber)) return false;
    this.#count(memberHash(member));
    this.#elements.set(key, numbers.length === 0 ? member.sequenceNumber : [...numbers, member.sequenceNumber]);
    return numbers.length === 0;
  }

  /** A member with another sequence number stays. @returns whether it was the last member of its element */
  remove(member: SetMember | PortMember): boolean {
    const key = keyOf(member);
    const numbers = this.#numbers(key);
    if (!numbers.includes(member.sequenceNumber)) return false;
    this.#count(-memberHash(member));
    const [first, ...rest] = numbers.filter((number) => number !== member.sequenceNumber);
    if (first === undefined) this.#elements.delete(key);
    else this.#elements.set(key, rest.length === 0 ? first : [first, ...rest]);
    return first === undefined;
  }

  /** All members, each with its element. */
  *members(): IterableIterator<SetMember | PortMember> {
    for (const key of this.#elements.keys())
      for (const sequenceNumber of this.#numbers(key)) {
        const [text = '', protocol, port] = key.split(' ');
        const address = parseAddress(text);
        if (!address) throw new Error(`${text} must be an address`);
        const member = { address, sequenceNumber };
        yield protocol === undefined ? member : { ...member, protocol: Number(protocol), port: Number(port) };
      }
  }

  #numbers(key: ElementKey): readonly bigint[] {
    const numbers = this.#elements.get(key) ?? [];
    return typeof numbers === 'bigint' ? [numbers] : numbers;
  }

  #count(hash: bigint): void {
    this.#digest = BigInt.asUintN(DIGEST_BITS, this.#digest + hash);
  }
}

/** The changes of elements from one content of a set to another. */
export function difference(from: MemberSet | undefined, to: MemberSet | undefined): ElementsDelta {
  return {
    added: [...(to?.keys ?? [])].filter((key) => !from?.has(key)),
    deleted: [...(from?.keys ?? [])].filter((key) => !to?.has(key)),
  };
}

export function keyOf(member: SetMember | PortMember): ElementKey {
  const address = formatAddress(member.address);
  return 'port' in member ? `${address} ${member.protocol} ${member.port}` : address;
}

export function familyOfKey(key: ElementKey): Family {
  return key.includes(':') ? 6 : 4;
}

export function elementJson(key: ElementKey): Json {
  const [address = '', protocol, port] = key.split(' ');
  return protocol === undefined ? address : concatJson(address, Number(protocol), Number(port));
}
