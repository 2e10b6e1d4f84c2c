import { formatAddress, parseAddress, type Address, type Family } from '@podwire/shared/net/address';
import { parsePrefix, splitCidr, type Prefix } from '@podwire/shared/net/prefix';

/** How a node's address of one family is found. The words are Calico's (`IP_AUTODETECTION_METHOD`), so that settings carry over. */
export type AddressMethod =
  /** The interface with the default route, else the first that has an address. */
  | { readonly type: 'auto' }
  /** The node has none. */
  | { readonly type: 'none' }
  | { readonly type: 'address'; readonly address: Address; readonly length: number }
  /** The first interface whose name has a match of one of these, in their order. */
  | { readonly type: 'interface'; readonly patterns: readonly RegExp[] }
  /** The first interface whose name has a match of none. */
  | { readonly type: 'skip-interface'; readonly patterns: readonly RegExp[] }
  /** The first address in one of these. */
  | { readonly type: 'cidr'; readonly prefixes: readonly Prefix[] }
  /** The address that the node sends to this one from. */
  | { readonly type: 'can-reach'; readonly address: Address };

type ReadMethod =
  { readonly ok: true; readonly method: AddressMethod } | { readonly ok: false; readonly fault: string };

const FORMS =
  'auto, none, an address with length, interface=REGEX, skip-interface=REGEX, cidr=LIST or can-reach=ADDRESS';

/** Reads the text of a setting. */
export function readAddressMethod(text: string, family: Family): ReadMethod {
  if (text === 'auto' || text === 'none') return { ok: true, method: { type: text } };
  const own = splitCidr(text);
  if (own) return readOwn(own, family);
  const [, word = '', argument = ''] = /^([a-z-]+)=(.+)$/s.exec(text) ?? [];
  switch (word) {
    case 'interface':
    case 'skip-interface':
      return readPatterns(word, argument);
    case 'cidr':
      return readPrefixes(argument, family);
    case 'can-reach':
      return readTarget(argument, family);
    default:
      return { ok: false, fault: `is none of ${FORMS}` };
  }
}

function readOwn(
  { address, length }: { readonly address: Address; readonly length: number },
  family: Family,
): ReadMethod {
  if (address.family !== family) return { ok: false, fault: `is an IPv${address.family} address` };
  return { ok: true, method: { type: 'address', address, length } };
}

function readPatterns(type: 'interface' | 'skip-interface', argument: string): ReadMethod {
  const patterns: RegExp[] = [];
  for (const part of argument.split(',')) {
    const pattern = part.trim() === '' ? undefined : readPattern(part.trim());
    if (!pattern) return { ok: false, fault: `has ${JSON.stringify(part)}, which is no regular expression` };
    patterns.push(pattern);
  }
  return { ok: true, method: { type, patterns } };
}

function readPattern(text: string): RegExp | undefined {
  try {
    return new RegExp(text, 'u');
  } catch {
    return undefined;
  }
}

function readPrefixes(argument: string, family: Family): ReadMethod {
  const prefixes: Prefix[] = [];
  for (const part of argument.split(',')) {
    const parsed = parsePrefix(part.trim());
    if (!parsed.ok) return { ok: false, fault: `has ${JSON.stringify(part)}: ${parsed.fault}` };
    if (parsed.prefix.family !== family)
      return { ok: false, fault: `has ${JSON.stringify(part)}, which is not IPv${family}` };
    prefixes.push(parsed.prefix);
  }
  return { ok: true, method: { type: 'cidr', prefixes } };
}

function readTarget(argument: string, family: Family): ReadMethod {
  const address = parseAddress(argument.trim());
  if (address?.family !== family)
    return { ok: false, fault: `has ${JSON.stringify(argument)}, which is no IPv${family} address` };
  return { ok: true, method: { type: 'can-reach', address } };
}

/** The method in words, for messages. */
export function describeMethod(method: AddressMethod): string {
  switch (method.type) {
    case 'auto':
    case 'none':
      return method.type;
    case 'address':
      return `${formatAddress(method.address)}/${method.length}`;
    case 'interface':
    case 'skip-interface':
      return `${method.type}=${method.patterns.map(({ source }) => source).join(',')}`;
    case 'cidr':
      return `cidr=${method.prefixes.map((prefix) => `${formatAddress(prefix)}/${prefix.length}`).join(',')}`;
    case 'can-reach':
      return `can-reach=${formatAddress(method.address)}`;
  }
}
