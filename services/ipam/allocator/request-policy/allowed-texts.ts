import { familyBits, formatAddress } from '@podwire/shared/net/address';
import { formatPrefix, type Prefix } from '@podwire/shared/net/prefix';

import type { RequestRules, RuleKind } from '../../records/request-policy.js';
import { formatMacRange } from './mac-range.js';

/** What a rule allows, one text for each of its entries, as its writer would know it. */
export function allowedTexts(rules: RequestRules, kind: RuleKind): string[] {
  switch (kind) {
    case 'pools': {
      const { names = [], prefixes = [], selector = '' } = rules.pools ?? {};
      const named = names.map((name) => `"${name}"`);
      const inRanges = prefixes.map((prefix) => `in ${formatPrefix(prefix)}`);
      return [...named, ...inRanges, ...(selector === '' ? [] : [`with ${selector}`])];
    }
    case 'addresses':
    case 'addressesWithoutIpam':
    case 'sourcePrefixes':
    case 'floatingIps':
      return (rules[kind] ?? []).map(formatRange);
    case 'macAddresses':
      return (rules.macAddresses ?? []).map(formatMacRange);
    case 'families':
      return (rules.families ?? []).map((family) => `IPv${family}`);
  }
}

/** A range, or an address where it is one alone. */
export function formatRange(prefix: Prefix): string {
  return prefix.length === familyBits(prefix.family) ? formatAddress(prefix) : formatPrefix(prefix);
}
