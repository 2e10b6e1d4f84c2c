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

const POLICY_OPTIONS: readonly Option<unknown>[] = [
  ...[NAMESPACE, NAMESPACES, POOL, POOL_CIDR, POOLS],
  ...[ADDRESS, WITHOUT_IPAM, SOURCE, FLOATING, MAC, FAMILY, NONE],
];

/** The whole policy, as the options say it. */
function policyOf(input: Input, name: string, resourceVersion: string): RequestPolicy {
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
function namespacesOf({ namespaces, namespaceSelector }: RequestPolicy): string {
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

function policyFields(policy: RequestPolicy | undefined): Fields[] {
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

export const policiesDelete: Verb = {
  name: 'policies delete',
  about: 'delete a request policy; what no other policy has a rule for is allowed from then on',
  positionals: [POLICY_NAME],
  options: [RESOURCE_VERSION],
  run: async (input, { ipam, json }) => {
    const name = input.at(POLICY_NAME);
    const resourceVersion = input.get(RESOURCE_VERSION) ?? '';
    const answer = await ipam.call(RequestPolicyServiceService.deleteRequestPolicy, { name, resourceVersion });
    return {
      sections: [sentence(`request policy ${name} is gone`)],
      data: () => json.of(RequestPolicyServiceService.deleteRequestPolicy, answer),
    };
  },
};

export const policiesList: Verb = {
  name: 'policies list',
  about: 'what the authors of pods may ask for, and in which namespaces',
  details: 'What no policy about a namespace has a rule for is free there; of several with a rule one has to allow it.',
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
          none: 'There is no request policy: every request is allowed.',
        },
      ],
      data: () => json.of(RequestPolicyServiceService.listRequestPolicies, { requestPolicies, nextPageToken: '' }),
    };
  },
};

const { createRequestPolicy, updateRequestPolicy } = RequestPolicyServiceService;

export const policiesSet: Verb = {
  name: 'policies set',
  about: 'create a request policy, or replace everything in it',
  details:
    'It holds from the next ADD on; what pods have stays theirs. "Nobody, but this team" is two policies: one about all\nnamespaces that allows nothing, and one about the team’s.',
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
      // Who names a version means one that is there.
      const isMissing = error instanceof Failure && error.code === 'REQUEST_POLICY_NOT_FOUND';
      if (!isMissing || resourceVersion !== '') throw error;
      const answer = await ipam.call(createRequestPolicy, { requestPolicy });
      return { sections: policyFields(answer.requestPolicy), data: () => json.of(createRequestPolicy, answer) };
    }
  },
};

export const policiesShow: Verb = {
  name: 'policies show',
  about: 'everything about one request policy',
  positionals: [POLICY_NAME],
  run: async (input, { ipam, json }) => {
    const answer = await ipam.call(RequestPolicyServiceService.getRequestPolicy, { name: input.at(POLICY_NAME) });
    return {
      sections: policyFields(answer.requestPolicy),
      data: () => json.of(RequestPolicyServiceService.getRequestPolicy, answer),
    };
  },
};
