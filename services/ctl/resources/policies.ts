import { IpFamily } from '@podwire/proto/podwire/ipam/v1/address';
import { RequestPolicyServiceService, type RequestPolicy } from '@podwire/proto/podwire/ipam/v1/request_policy';
import { Failure } from '@podwire/shared/failure/failure';

import { allPages } from '../clients/services.js';
import { oneOf, text } from '../command-line/forms.js';
import { RESOURCE_VERSION } from '../command-line/options.js';
import type { Input, Option, Positional, Verb } from '../command-line/verb.js';
import { sentence, type Fields } from '../output/report.js';
import { age, moment } from '../output/words.js';

const POLICY_NAME: Positional<string> = {
  form: text('NAME'),
  about: 'name of the request policy',
  presence: 'required',
};

const repeatedOption = (name: string, placeholder: string, about: string): Option<string> => ({
  ...{ name, form: text(placeholder), about },
  repeated: true,
});

const NAMESPACE = repeatedOption(
  '--namespace',
  'NAME',
  'a namespace that the policy applies to (all, if there is no selector either)',
);
const NAMESPACES: Option<string> = {
  name: '--namespace-selector',
  form: text('SELECTOR'),
  about: 'further namespaces that the policy applies to, by their labels',
};
const POOL = repeatedOption('--pool', 'NAME', 'a pool that pods may request');
const POOL_CIDR = repeatedOption('--pool-cidr', 'CIDR', 'pods may request pools in this range');
const POOLS: Option<string> = {
  name: '--pool-selector',
  form: text('SELECTOR'),
  about: 'pods may request pools with these labels',
};
const ADDRESS = repeatedOption('--address', 'CIDR', 'addresses that pods may request');
const WITHOUT_IPAM = repeatedOption('--without-ipam', 'CIDR', 'addresses that pods may use without IPAM');
const SOURCE = repeatedOption('--source-prefix', 'CIDR', 'source addresses that pods may use in addition to their own');
const FLOATING = repeatedOption('--floating-ip', 'CIDR', 'floating IPs that pods may request');
const MAC = repeatedOption('--mac', 'MAC|MAC/BITS', 'MAC addresses that pods may request');
const FAMILY: Option<IpFamily> = {
  name: '--family',
  form: oneOf({ 4: IpFamily.IP_FAMILY_IPV4, 6: IpFamily.IP_FAMILY_IPV6 }),
  about: 'a family that pods may request',
  repeated: true,
};

/** Kinds of requests, in the words of the command line. */
const KINDS = ['pools', 'addresses', 'without-ipam', 'source-prefixes', 'floating-ips', 'macs', 'families'] as const;
type Kind = (typeof KINDS)[number];

const NONE: Option<Kind> = {
  name: '--none-of',
  form: oneOf<Kind>(Object.fromEntries(KINDS.map((kind) => [kind, kind]))),
  about: 'deny all requests of this kind; kinds without an option are not restricted',
  repeated: true,
};

const POLICY_OPTIONS: readonly Option<unknown>[] = [
  ...[NAMESPACE, NAMESPACES, POOL, POOL_CIDR, POOLS],
  ...[ADDRESS, WITHOUT_IPAM, SOURCE, FLOATING, MAC, FAMILY, NONE],
];

/** The policy that the options describe. */
function policyOf(input: Input, name: string, resourceVersion: string): RequestPolicy {
  const none = new Set(input.all(NONE));
  const rule = <Rule>(kind: Kind, value: Rule, isPresent: boolean): Rule | undefined =>
    isPresent || none.has(kind) ? value : undefined;
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

/** The namespaces that a policy applies to. */
function namespacesOf({ namespaces, namespaceSelector }: RequestPolicy): string {
  const named = [...namespaces, ...(namespaceSelector === '' ? [] : [namespaceSelector])];
  return named.join(', ') || 'all';
}

/** The rules of a policy. */
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

function policyFields(policy: RequestPolicy | undefined): Fields[] {
  if (!policy) return [];
  const fields: Fields['fields'] = [
    ['Name', policy.name],
    ['Namespaces', namespacesOf(policy)],
    ...rulesOf(policy),
    ['Created', moment(policy.createTime)],
    ['Version', policy.resourceVersion],
  ];
  return [{ kind: 'fields', fields }];
}

export const policiesDelete: Verb = {
  name: 'policies delete',
  about: 'delete a request policy; requests without a rule in another policy are then allowed',
  positionals: [POLICY_NAME],
  options: [RESOURCE_VERSION],
  run: async (input, { ipam, json }) => {
    const name = input.at(POLICY_NAME);
    const resourceVersion = input.get(RESOURCE_VERSION) ?? '';
    const answer = await ipam.call(RequestPolicyServiceService.deleteRequestPolicy, { name, resourceVersion });
    return {
      sections: [sentence(`request policy ${name} is deleted`)],
      data: () => json.of(RequestPolicyServiceService.deleteRequestPolicy, answer),
    };
  },
};

export const policiesList: Verb = {
  name: 'policies list',
  about: 'the request policies: what pods may request in which namespaces',
  details:
    'A request is allowed in a namespace if no policy has a rule for its kind, or if at least one such policy allows it.',
  run: async (_, { ipam, json, clock }) => {
    const pages = await allPages((page) => ipam.call(RequestPolicyServiceService.listRequestPolicies, page));
    const requestPolicies = pages.flatMap((page) => page.requestPolicies);
    const nowMs = clock.nowMs();
    return {
      sections: [
        {
          kind: 'table',
          columns: ['NAME', 'NAMESPACES', 'ALLOWS', 'AGE'],
          rows: requestPolicies.map((policy) => [
            policy.name,
            namespacesOf(policy),
            rulesOf(policy)
              .map(([kind, allowed]) => `${kind.toLowerCase()}: ${allowed}`)
              .join('; '),
            age(policy.createTime, nowMs),
          ]),
          none: 'request policies: none; every request is allowed',
        },
      ],
      data: () => json.of(RequestPolicyServiceService.listRequestPolicies, { requestPolicies, nextPageToken: '' }),
    };
  },
};

const { createRequestPolicy, updateRequestPolicy } = RequestPolicyServiceService;

export const policiesSet: Verb = {
  name: 'policies set',
  about: 'create or replace a request policy',
  details:
    'Applies from the next ADD; existing pods keep what they have. To allow requests for one team only, create two policies:\none for all namespaces that allows nothing, and one for the namespaces of the team.',
  positionals: [POLICY_NAME],
  options: [...POLICY_OPTIONS, RESOURCE_VERSION],
  examples: [
    'policies set closed --none-of pools --none-of addresses',
    'policies set tenants --namespace red --pool second --address 10.65.0.0/28',
  ],
  run: async (input, { ipam, json }) => {
    const resourceVersion = input.get(RESOURCE_VERSION) ?? '';
    const requestPolicy = policyOf(input, input.at(POLICY_NAME), resourceVersion);
    try {
      const answer = await ipam.call(updateRequestPolicy, { requestPolicy });
      return { sections: policyFields(answer.requestPolicy), data: () => json.of(updateRequestPolicy, answer) };
    } catch (error) {
      // With a version, the policy must exist.
      const isMissing = error instanceof Failure && error.code === 'REQUEST_POLICY_NOT_FOUND';
      if (!isMissing || resourceVersion !== '') throw error;
      const answer = await ipam.call(createRequestPolicy, { requestPolicy });
      return { sections: policyFields(answer.requestPolicy), data: () => json.of(createRequestPolicy, answer) };
    }
  },
};

export const policiesShow: Verb = {
  name: 'policies show',
  about: 'details of one request policy',
  positionals: [POLICY_NAME],
  run: async (input, { ipam, json }) => {
    const answer = await ipam.call(RequestPolicyServiceService.getRequestPolicy, { name: input.at(POLICY_NAME) });
    return {
      sections: policyFields(answer.requestPolicy),
      data: () => json.of(RequestPolicyServiceService.getRequestPolicy, answer),
    };
  },
};
