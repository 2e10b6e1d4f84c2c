import { IpFamily } from '@podwire/proto/podwire/ipam/v1/address';
import type { RequestPolicy } from '@podwire/proto/podwire/ipam/v1/request_policy';

import { oneOf, text } from '../command-line/forms.js';
import type { Input, Option, Positional } from '../command-line/verb.js';
import type { Fields } from '../output/report.js';
import { moment } from '../output/words.js';

export const POLICY_NAME: Positional<string> = {
  form: text('NAME'),
  about: 'name of the request policy',
  presence: 'required',
};

const texts = (name: string, placeholder: string, about: string): Option<string> => ({
  ...{ name, form: text(placeholder), about },
  repeated: true,
});

const NAMESPACE = texts('--namespace', 'NAME', 'a namespace that it is about (all, where no selector is given either)');
const NAMESPACES: Option<string> = {
  name: '--namespace-selector',
  form: text('SELECTOR'),
  about: 'further namespaces that it is about, by their labels',
};
const POOL = texts('--pool', 'NAME', 'a pool that may be asked for');
const POOL_CIDR = texts('--pool-cidr', 'CIDR', 'pools in this range may be asked for');
const POOLS: Option<string> = {
  name: '--pool-selector',
  form: text('SELECTOR'),
  about: 'pools with these labels may be asked for',
};
const ADDRESS = texts('--address', 'CIDR', 'addresses that may be asked for by themselves');
const WITHOUT_IPAM = texts('--without-ipam', 'CIDR', 'addresses that pods may bring without IPAM');
const SOURCE = texts('--source-prefix', 'CIDR', 'what pods may ask to send from besides their own addresses');
const FLOATING = texts('--floating-ip', 'CIDR', 'floating IPs that may be asked for');
const MAC = texts('--mac', 'MAC[/BITS]', 'MAC addresses that may be asked for');
const FAMILY: Option<IpFamily> = {
  name: '--family',
  form: oneOf({ 4: IpFamily.IP_FAMILY_IPV4, 6: IpFamily.IP_FAMILY_IPV6 }),
  about: 'a family that may be asked for',
  repeated: true,
};

/** Kinds of what may be asked for, by the words of the command line. */
const KINDS = ['pools', 'addresses', 'without-ipam', 'source-prefixes', 'floating-ips', 'macs', 'families'] as const;
type Kind = (typeof KINDS)[number];

const NONE: Option<Kind> = {
  name: '--none-of',
  form: oneOf<Kind>(Object.fromEntries(KINDS.map((kind) => [kind, kind]))),
  about: 'nothing of this kind may be asked for; what no option says anything about is not judged',
  repeated: true,
};

export const POLICY_OPTIONS: readonly Option<unknown>[] = [
  ...[NAMESPACE, NAMESPACES, POOL, POOL_CIDR, POOLS],
  ...[ADDRESS, WITHOUT_IPAM, SOURCE, FLOATING, MAC, FAMILY, NONE],
];

/** The whole policy, as the options say it. */
export function policyOf(input: Input, name: string, resourceVersion: string): RequestPolicy {
  const none = new Set(input.all(NONE));
  const rule = <Rule>(kind: Kind, said: Rule, isSaid: boolean): Rule | undefined =>
    isSaid || none.has(kind) ? said : undefined;
  const ranges = (kind: Kind, option: Option<string>) => {
    const cidrs = input.all(option);
    return rule(kind, { cidrs }, cidrs.length > 0);
  };
  const pools = { names: input.all(POOL), cidrs: input.all(POOL_CIDR), selector: input.get(POOLS) ?? '' };
  const arePools = pools.names.length + pools.cidrs.length + pools.selector.length > 0;
  const [macs, families] = [input.all(MAC), input.all(FAMILY)];
  return {
    name,
    namespaces: input.all(NAMESPACE),
    namespaceSelector: input.get(NAMESPACES) ?? '',
    pools: rule('pools', pools, arePools),
    addresses: ranges('addresses', ADDRESS),
    addressesWithoutIpam: ranges('without-ipam', WITHOUT_IPAM),
    sourcePrefixes: ranges('source-prefixes', SOURCE),
    floatingIps: ranges('floating-ips', FLOATING),
    macAddresses: rule('macs', { ranges: macs }, macs.length > 0),
    families: rule('families', { families }, families.length > 0),
    createTime: undefined,
    resourceVersion,
  };
}

/** Whose requests a policy is about. */
export function namespacesOf({ namespaces, namespaceSelector }: RequestPolicy): string {
  const named = [...namespaces, ...(namespaceSelector === '' ? [] : [namespaceSelector])];
  return named.join(', ') || 'all';
}

/** What a policy has a rule for, with what that allows. */
export function rulesOf(policy: RequestPolicy): (readonly [name: string, allowed: string])[] {
  const { pools, families } = policy;
  const all: (readonly [string, readonly string[] | undefined])[] = [
    ['Pools', pools && [...pools.names, ...pools.cidrs, ...(pools.selector === '' ? [] : [pools.selector])]],
    ['Addresses', policy.addresses?.cidrs],
    ['Without IPAM', policy.addressesWithoutIpam?.cidrs],
    ['Source prefixes', policy.sourcePrefixes?.cidrs],
    ['Floating IPs', policy.floatingIps?.cidrs],
    ['MACs', policy.macAddresses?.ranges],
    ['Families', families?.families.map((family) => (family === IpFamily.IP_FAMILY_IPV6 ? 'IPv6' : 'IPv4'))],
  ];
  return all.flatMap(([name, allowed]) => (allowed ? [[name, allowed.join(', ') || 'none'] as const] : []));
}

export function policyFields(policy: RequestPolicy | undefined): Fields[] {
  if (!policy) return [];
  const fields: Fields['fields'] = [
    ['Name', policy.name],
    ['Namespaces', namespacesOf(policy)],
    ...rulesOf(policy),
    ['Made', moment(policy.createTime)],
    ['Version', policy.resourceVersion],
  ];
  return [{ kind: 'fields', fields }];
}
