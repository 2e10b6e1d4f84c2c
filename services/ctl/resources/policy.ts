import { IpFamily } from '@podwire/proto/podwire/ipam/v1/address';
import { RequestPolicyServiceService, type RequestPolicy } from '@podwire/proto/podwire/ipam/v1/request_policy';
import type { z } from 'zod';

import { allPages } from '../clients/services.js';
import { sentence, type Fields } from '../output/report.js';
import { age, moment } from '../output/words.js';
import { resource, type ManifestObject, type Wanted } from './resource.js';
import type { REQUEST_POLICY_SPEC } from './specs.js';

const FAMILIES = { IPv4: IpFamily.IP_FAMILY_IPV4, IPv6: IpFamily.IP_FAMILY_IPV6 } as const;

function policyOf({ name, resourceVersion = '', spec }: Wanted<z.infer<typeof REQUEST_POLICY_SPEC>>): RequestPolicy {
  const ranges = (cidrs: string[] | undefined) => cidrs && { cidrs };
  return {
    name,
    namespaces: spec.namespaces,
    namespaceSelector: spec.namespaceSelector,
    pools: spec.pools,
    addresses: ranges(spec.addresses),
    addressesWithoutIpam: ranges(spec.addressesWithoutIPAM),
    sourcePrefixes: ranges(spec.sourcePrefixes),
    macAddresses: spec.macAddresses && { ranges: spec.macAddresses },
    families: spec.families && { families: spec.families.map((family) => FAMILIES[family]) },
    createTime: undefined,
    resourceVersion,
  };
}

function specOf(policy: RequestPolicy): ManifestObject {
  const { namespaces, namespaceSelector, pools, macAddresses, families } = policy;
  return {
    ...(namespaces.length === 0 ? {} : { namespaces }),
    ...(namespaceSelector === '' ? {} : { namespaceSelector }),
    ...(pools && { pools: { names: pools.names, cidrs: pools.cidrs, selector: pools.selector } }),
    ...(policy.addresses && { addresses: policy.addresses.cidrs }),
    ...(policy.addressesWithoutIpam && { addressesWithoutIPAM: policy.addressesWithoutIpam.cidrs }),
    ...(policy.sourcePrefixes && { sourcePrefixes: policy.sourcePrefixes.cidrs }),
    ...(macAddresses && { macAddresses: macAddresses.ranges }),
    ...(families && { families: families.families.map(familyName) }),
  };
}

const familyName = (family: IpFamily): string => (family === IpFamily.IP_FAMILY_IPV6 ? 'IPv6' : 'IPv4');

/** The namespaces that a policy applies to. */
function namespacesOf({ namespaces, namespaceSelector }: RequestPolicy): string {
  const named = [...namespaces, ...(namespaceSelector === '' ? [] : [namespaceSelector])];
  return named.join(', ') || 'all';
}

/** The rules of a policy. */
function rulesOf(policy: RequestPolicy): (readonly [name: string, allowed: string])[] {
  const { pools, families } = policy;
  const all: (readonly [string, readonly string[] | undefined])[] = [
    ['Pools', pools && [...pools.names, ...pools.cidrs, ...(pools.selector === '' ? [] : [pools.selector])]],
    ['Addresses', policy.addresses?.cidrs],
    ['Without IPAM', policy.addressesWithoutIpam?.cidrs],
    ['Source prefixes', policy.sourcePrefixes?.cidrs],
    ['MACs', policy.macAddresses?.ranges],
    ['Families', families?.families.map(familyName)],
  ];
  return all.flatMap(([name, allowed]) => (allowed ? [[name, allowed.join(', ') || 'none'] as const] : []));
}

function policyFields(policy: RequestPolicy): Fields {
  return {
    kind: 'fields',
    fields: [
      ['Name', policy.name],
      ['Namespaces', namespacesOf(policy)],
      ...rulesOf(policy),
      ['Created', moment(policy.createTime)],
      ['Version', policy.resourceVersion],
    ],
  };
}

const { createRequestPolicy, updateRequestPolicy, getRequestPolicy, listRequestPolicies, deleteRequestPolicy } =
  RequestPolicyServiceService;

export const REQUEST_POLICY = resource<RequestPolicy, z.infer<typeof REQUEST_POLICY_SPEC>>({
  columns: [
    { head: 'NAME', cell: ({ name }) => name },
    { head: 'NAMESPACES', cell: namespacesOf },
    {
      head: 'ALLOWS',
      cell: (policy) =>
        rulesOf(policy)
          .map(([kind, allowed]) => `${kind.toLowerCase()}: ${allowed}`)
          .join('; '),
    },
    { head: 'AGE', cell: ({ createTime }, nowMs) => age(createTime, nowMs) },
  ],
  none: 'request policies: none; every request is allowed',
  nameOf: ({ name }) => name,
  metadata: ({ createTime, resourceVersion }) => ({ creationTimestamp: moment(createTime), resourceVersion }),
  spec: specOf,
  details: (policy) => [policyFields(policy)],
  data: (requestPolicy, { json }) => json.of(getRequestPolicy, { requestPolicy }),
  list: async (_, { ipam }) => {
    const pages = await allPages((page) => ipam.call(listRequestPolicies, page));
    return pages.flatMap(({ requestPolicies }) => requestPolicies);
  },
  get: async (name, { ipam }) => (await ipam.call(getRequestPolicy, { name })).requestPolicy,
  notFound: 'REQUEST_POLICY_NOT_FOUND',
  schema: async () => (await import('./specs.js')).REQUEST_POLICY_SPEC,
  create: async (wanted, { ipam }) =>
    (await ipam.call(createRequestPolicy, { requestPolicy: policyOf(wanted) })).requestPolicy,
  update: async (wanted, { ipam }) =>
    (await ipam.call(updateRequestPolicy, { requestPolicy: policyOf(wanted) })).requestPolicy,
  deletion: {
    warning: () => 'This request policy would be deleted; requests without a rule in another policy are then allowed:',
    run: async (name, resourceVersion, _, { ipam, json }) => {
      const answer = await ipam.call(deleteRequestPolicy, { name, resourceVersion });
      return {
        sections: [sentence(`request policy ${name} is deleted`)],
        data: () => json.of(deleteRequestPolicy, answer),
      };
    },
  },
});
