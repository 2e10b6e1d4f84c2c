import { formatAddress, type Address, type Family } from '@podwire/shared/net/address';
import { formatPrefix, prefixContains, type Prefix } from '@podwire/shared/net/prefix';

import { findPool } from '../../pools/selection.js';
import type { PodRequests, PoolChoice, PoolRule, RequestRules, RuleKind } from '../../records/request-policy.js';
import type { View } from '../../records/view.js';
import { matches } from '../../selectors/selector.js';
import type { Pool } from '../records.js';
import { macInRange } from './mac-range.js';
import type { Namespace } from './namespace.js';

/** All that is asked for a pod, and may be forbidden. */
export interface Petition {
  readonly namespace: Namespace;
  /** Names or CIDRs. */
  readonly pools: readonly string[];
  readonly poolChoices: readonly PoolChoice[];
  /** Wanted by themselves. */
  readonly addresses: readonly Address[];
  readonly requests: PodRequests;
}

/** One thing that is asked for. */
export interface Plea {
  readonly kind: RuleKind;
  /** As text (`second`, `10.65.0.7`). */
  readonly value: string;
  /** The same with what it is (`pool "second" 10.66.0.0/24`). */
  readonly subject: string;
  /** The rules that judge it: the first kind of which there is one. */
  readonly tests: readonly RuleTest[];
}

/** Whether rules of one kind allow what is asked for. Rules without this kind allow nothing. */
export interface RuleTest {
  readonly kind: RuleKind;
  readonly allows: (rules: RequestRules) => boolean;
  /** What makes it a matter of this kind, where that is not plain (`is of pool "second"`). */
  readonly because?: string;
}

/** What is asked for, one by one. Pools that do not exist are not among them: nobody gets them. */
export function pleasOf(view: View, { pools, poolChoices, addresses, requests }: Petition): Plea[] {
  const { families, addressesWithoutIpam, mac, sourcePrefixes, floatingIps } = requests;
  return [
    ...askedPools(view, pools, poolChoices).map(poolPlea),
    ...addresses.map((address) => addressPlea(view, 'addresses', address)),
    ...addressesWithoutIpam.map((address) => addressPlea(view, 'addressesWithoutIpam', address)),
    ...sourcePrefixes.map((prefix) => rangePlea('sourcePrefixes', formatPrefix(prefix), prefix)),
    ...floatingIps.map((address) => rangePlea('floatingIps', formatAddress(address), address)),
    ...(mac === undefined ? [] : [macPlea(mac)]),
    ...families.map(familyPlea),
  ];
}

/** The pools that the pod's author chose, each once. */
function askedPools(view: View, pools: readonly string[], choices: readonly PoolChoice[]): Pool[] {
  const chosen = pools.filter((text) => {
    const known = choices.filter(({ pool }) => pool === text);
    return known.length === 0 || known.some(({ isConfigured }) => !isConfigured);
  });
  return [...new Set(chosen.flatMap((text) => findPool(view, text) ?? []))];
}

function poolPlea(pool: Pool): Plea {
  return { kind: 'pools', value: pool.name, subject: `pool ${poolText(pool)}`, tests: [poolTest([pool])] };
}

function poolTest(pools: readonly Pool[], because?: string): RuleTest {
  return {
    kind: 'pools',
    allows: ({ pools: rule }) =>
      rule !== undefined && pools.length > 0 && pools.every((pool) => allowsPool(rule, pool)),
    ...(because === undefined ? {} : { because }),
  };
}

function allowsPool({ names, prefixes, selector }: PoolRule, { name, prefix, labels }: Pool): boolean {
  return (
    names.includes(name) ||
    prefixes.some((range) => prefixContains(range, prefix)) ||
    (selector !== '' && matches(selector, labels).matches)
  );
}

/** An address may not be a way to a pool, or around a rule for addresses, that is closed. */
function addressPlea(view: View, kind: 'addresses' | 'addressesWithoutIpam', address: Address): Plea {
  const value = formatAddress(address);
  const pools = view.pools().filter(({ prefix }) => prefixContains(prefix, address));
  const because = pools.length === 0 ? 'is of no pool' : `is of pool ${pools.map(poolText).join(' and ')}`;
  const own = kind === 'addresses' ? [] : [rangeTest('addressesWithoutIpam', address)];
  return {
    kind,
    value,
    subject: kind === 'addresses' ? `address ${value}` : `address ${value} without IPAM`,
    tests: [...own, rangeTest('addresses', address), poolTest(pools, because)],
  };
}

type RangeKind = 'addresses' | 'addressesWithoutIpam' | 'sourcePrefixes' | 'floatingIps';

function rangePlea(kind: 'sourcePrefixes' | 'floatingIps', value: string, wanted: Address | Prefix): Plea {
  const noun = kind === 'sourcePrefixes' ? 'source prefix' : 'floating IP';
  return { kind, value, subject: `${noun} ${value}`, tests: [rangeTest(kind, wanted)] };
}

function rangeTest(kind: RangeKind, wanted: Address | Prefix): RuleTest {
  return { kind, allows: (rules) => rules[kind]?.some((range) => prefixContains(range, wanted)) ?? false };
}

function macPlea(mac: string): Plea {
  const allows = ({ macAddresses }: RequestRules) => macAddresses?.some((range) => macInRange(mac, range)) ?? false;
  return { kind: 'macAddresses', value: mac, subject: `MAC address ${mac}`, tests: [{ kind: 'macAddresses', allows }] };
}

function familyPlea(family: Family): Plea {
  const allows = ({ families }: RequestRules) => families?.includes(family) ?? false;
  const value = `IPv${family}`;
  return { kind: 'families', value, subject: `family ${value}`, tests: [{ kind: 'families', allows }] };
}

function poolText({ name, prefix }: Pool): string {
  return `"${name}" ${formatPrefix(prefix)}`;
}
