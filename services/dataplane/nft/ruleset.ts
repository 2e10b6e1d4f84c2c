import type { Address } from '@podwire/shared/net/address';

import { isList, isObject, type Json, type JsonObject } from './table.js';
import { rangeOf } from './table-form.js';

/** The first packet of a flow, on its way through the node. */
export interface ForwardedPacket {
  /** Name of the interface by which it arrives. */
  readonly input: string;
  readonly output: string;
  readonly source: Address;
  readonly destination: Address;
}

/** A field of a packet: its equivalent notations, an interface's name, an address, or several fields. */
type Field =
  | { readonly words: readonly Json[] }
  | { readonly link: string }
  | { readonly address: Address }
  | { readonly fields: readonly Field[] };

type Verdict = 'accept' | 'drop';

/** TCP: the protocol of the packet. */
const TCP: Field = { words: [6, 'tcp'] };

/**
 * One table of another program, and the way of a packet through it. A rule with a part that is not known here counts as one that
 * does not match: a match of iptables (`-m conntrack`), a rate limit, a port.
 */
export class Ruleset {
  readonly #rules = new Map<string, JsonObject[]>();
  /** Elements of sets and maps by name. */
  readonly #elements = new Map<string, readonly Json[]>();
  readonly #policies = new Map<string, Json>();

  /** @param objects - of `nft -j -n list table` */
  constructor(objects: readonly JsonObject[]) {
    for (const { rule, chain, set, map } of objects) {
      if (isObject(rule)) this.#rules.set(textOf(rule.chain), [...this.rulesOf(textOf(rule.chain)), rule]);
      if (isObject(chain)) this.#policies.set(textOf(chain.name), chain.policy ?? null);
      const named = isObject(set) ? set : map;
      if (isObject(named)) this.#elements.set(textOf(named.name), isList(named.elem) ? named.elem : []);
    }
  }

  has(chain: string): boolean {
    return this.#policies.has(chain);
  }

  rulesOf(chain: string): readonly JsonObject[] {
    return this.#rules.get(chain) ?? [];
  }

  /** Why a base chain drops a packet: `policy drop`, or one of its rules; undefined: it passes. */
  dropOf(chain: string, packet: ForwardedPacket): string | undefined {
    for (const rule of this.rulesOf(chain)) {
      const verdict = this.#apply(rule, packet);
      if (verdict === 'drop') return `rule with handle ${textOf(rule.handle)}`;
      if (verdict === 'accept') return undefined;
      if (verdict === 'return') break;
    }
    return this.#policies.get(chain) === 'drop' ? 'policy drop' : undefined;
  }

  #run(chain: string, packet: ForwardedPacket): Verdict | undefined {
    for (const rule of this.rulesOf(chain)) {
      const verdict = this.#apply(rule, packet);
      if (verdict) return verdict === 'return' ? undefined : verdict;
    }
    return undefined;
  }

  /** Undefined: the next rule decides. */
  #apply({ expr }: JsonObject, packet: ForwardedPacket): Verdict | 'return' | undefined {
    for (const statement of isList(expr) ? expr : []) {
      if (!isObject(statement)) return undefined;
      const { match, vmap, xt } = statement;
      if ('limit' in statement || 'quota' in statement || 'ct count' in statement) return undefined;
      if (isObject(match) && !this.#matches(match, packet)) return undefined;
      if ('xt' in statement && !isKnownExtension(xt)) return undefined;
      const verdict = this.#verdict(isObject(vmap) ? this.#lookUp(vmap, packet) : statement, packet);
      if (verdict) return verdict;
    }
    return undefined;
  }

  #verdict(statement: JsonObject, packet: ForwardedPacket): Verdict | 'return' | undefined {
    const { jump, goto, xt } = statement;
    if ('accept' in statement || 'queue' in statement) return 'accept';
    if ('drop' in statement || 'reject' in statement) return 'drop';
    if ('return' in statement) return 'return';
    if (isObject(jump)) return this.#run(textOf(jump.target), packet);
    if (isObject(goto)) return this.#run(textOf(goto.target), packet) ?? 'return';
    return isObject(xt) && xt.name === 'REJECT' ? 'drop' : undefined;
  }

  #lookUp({ key, data }: JsonObject, packet: ForwardedPacket): JsonObject {
    const field = fieldOf(key, packet);
    for (const entry of field ? this.#members(data ?? null) : []) {
      const [value, verdict] = isList(entry) ? entry : [];
      if (field && value !== undefined && isObject(verdict) && this.#contains(value, field)) return verdict;
    }
    return {};
  }

  #matches({ op, left, right }: JsonObject, packet: ForwardedPacket): boolean {
    const field = fieldOf(left, packet);
    if (!field || right === undefined || (op !== '==' && op !== '!=' && op !== 'in')) return false;
    return this.#contains(right, field) === (op !== '!=');
  }

  /** Whether an operand of a rule, or an element of a set, is or contains a packet's field. */
  #contains(operand: Json, field: Field): boolean {
    if (operand === '*') return true;
    const isSet = isList(operand) || (isObject(operand) && 'set' in operand);
    if (isSet || (typeof operand === 'string' && operand.startsWith('@')))
      return this.#members(operand).some((member) => this.#contains(member, field));
    if (isObject(operand) && isObject(operand.elem)) return this.#contains(operand.elem.val ?? null, field);
    if ('fields' in field) {
      const parts = isObject(operand) && isList(operand.concat) ? operand.concat : [];
      return field.fields.every((part, at) => this.#contains(parts[at] ?? null, part));
    }
    if ('address' in field) {
      const range = rangeOf(operand);
      const { family, value } = field.address;
      return range?.family === family && range.first <= value && value <= range.last;
    }
    if ('words' in field) return field.words.includes(operand);
    if (typeof operand !== 'string') return false;
    return operand.endsWith('*') ? field.link.startsWith(operand.slice(0, -1)) : operand === field.link;
  }

  #members(operand: Json): readonly Json[] {
    if (typeof operand === 'string') return this.#elements.get(operand.slice(1)) ?? [];
    if (isList(operand)) return operand;
    const { set } = isObject(operand) ? operand : {};
    return isList(set) ? set : set === undefined ? [] : [set];
  }
}

/** A name or a number of a listing. */
function textOf(value: Json | undefined): string {
  return typeof value === 'string' || typeof value === 'number' ? String(value) : '';
}

/** Extensions of iptables that every packet matches, or that only end the rule. */
function isKnownExtension(xt: Json | undefined): boolean {
  return isObject(xt) && (xt.type === 'target' || xt.name === 'comment');
}

/** Undefined: unknown here, or the packet has no such field. */
function fieldOf(key: Json | undefined, packet: ForwardedPacket): Field | undefined {
  if (!isObject(key)) return undefined;
  const { meta, ct, payload, concat } = key;
  if (isList(concat)) {
    const fields = concat.flatMap((part) => fieldOf(part, packet) ?? []);
    return fields.length === concat.length ? { fields } : undefined;
  }
  if (isObject(meta)) return metaField(textOf(meta.key), packet);
  if (isObject(ct)) return ct.key === 'state' ? NEW : ct.key === 'status' ? { words: [0] } : undefined;
  return isObject(payload) ? payloadField(payload, packet) : undefined;
}

/** The state of a flow's first packet in connection tracking. */
const NEW: Field = { words: [8, 'new'] };

function metaField(key: string, { input, output, source }: ForwardedPacket): Field | undefined {
  const isIpv4 = source.family === 4;
  switch (key) {
    case 'iif':
    case 'iifname':
      return { link: input };
    case 'oif':
    case 'oifname':
      return { link: output };
    case 'l4proto':
      return TCP;
    case 'nfproto':
      return { words: isIpv4 ? [2, 'ipv4'] : [10, 'ipv6'] };
    case 'protocol':
      return { words: isIpv4 ? [0x08_00, 'ip'] : [0x86_dd, 'ip6'] };
    case 'mark':
      return { words: [0] };
    default:
      return undefined;
  }
}

function payloadField({ protocol, field }: JsonObject, { source, destination }: ForwardedPacket): Field | undefined {
  if (protocol !== (source.family === 4 ? 'ip' : 'ip6')) return undefined;
  if (field === 'saddr') return { address: source };
  if (field === 'daddr') return { address: destination };
  return field === 'protocol' || field === 'nexthdr' ? TCP : undefined;
}
