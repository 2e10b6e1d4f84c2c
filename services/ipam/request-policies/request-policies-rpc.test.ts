import {
  AddressServiceService,
  AllocateRequest,
  ExplainAllocationRequest,
  IpFamily,
  PodRequests,
  PoolChoice,
  RequestKind,
} from '@podwire/proto/podwire/ipam/v1/address';
import { AddressUse } from '@podwire/proto/podwire/ipam/v1/pool';
import {
  AuthorizeRequestsRequest,
  RequestPolicy,
  RequestPolicyServiceService,
} from '@podwire/proto/podwire/ipam/v1/request_policy';
import { beforeEach, describe, expect, test } from 'vitest';

import { attachment, clientLimits, failureOf, servedForEachTest } from '../testing/service.js';

const { createRequestPolicy, getRequestPolicy, listRequestPolicies, updateRequestPolicy, deleteRequestPolicy } =
  RequestPolicyServiceService;

const served = servedForEachTest();

const pod = (namespace: string) => ({ namespace, name: 'web-0', uid: '' });

async function create(policy: Parameters<typeof RequestPolicy.fromPartial>[0]): Promise<RequestPolicy> {
  const message = { requestPolicy: RequestPolicy.fromPartial(policy) };
  const { requestPolicy } = await served.caller.peer.call(createRequestPolicy, message, clientLimits());
  return requestPolicy!;
}

const update = (requestPolicy: RequestPolicy) =>
  served.caller.peer.call(updateRequestPolicy, { requestPolicy }, clientLimits());
const get = (name: string) => served.caller.peer.call(getRequestPolicy, { name }, clientLimits());
const list = (pageSize = 0, pageToken = '') =>
  served.caller.peer.call(listRequestPolicies, { pageSize, pageToken }, clientLimits());
const remove = (name: string, resourceVersion = '') =>
  served.caller.peer.call(deleteRequestPolicy, { name, resourceVersion }, clientLimits());

const FULL = {
  name: 'tenants',
  namespaces: ['red', 'blue'],
  namespaceSelector: "tier in {'lab', 'test'}",
  pools: { names: ['default'], cidrs: ['10.64.0.0/12', '10.65.0.1/32'], selector: 'has(open)' },
  addresses: { cidrs: ['10.65.0.0/28', '10.65.0.99', 'fd00::/64'] },
  addressesWithoutIpam: { cidrs: [] },
  sourcePrefixes: { cidrs: ['10.8.0.0/16'] },
  macAddresses: { ranges: ['02:42:00:00:00:00/16', '02:00:00:00:00:07'] },
  families: { families: [IpFamily.IP_FAMILY_IPV4] },
};

describe('a request policy', () => {
  test('is created, shown, changed and deleted', async () => {
    const made = await create(FULL);
    expect(made).toEqual({ ...FULL, createTime: expect.any(Date), resourceVersion: expect.stringMatching(/./) });
    expect(await get('tenants')).toEqual({ requestPolicy: made });
    expect((await failureOf(create(FULL))).code).toBe('REQUEST_POLICY_EXISTS');
    const { requestPolicy: changed } = await update({ ...made, addresses: undefined, namespaceSelector: '' });
    expect(changed).toEqual({
      ...made,
      addresses: undefined,
      namespaceSelector: '',
      resourceVersion: expect.not.stringMatching(made.resourceVersion),
    });
    expect((await failureOf(update(made))).code).toBe('STALE_VERSION');
    expect((await failureOf(remove('tenants', made.resourceVersion))).code).toBe('STALE_VERSION');
    await remove('tenants', changed!.resourceVersion);
    for (const call of [get('tenants'), remove('tenants'), update({ ...made, resourceVersion: '' })])
      expect((await failureOf(call)).code).toBe('REQUEST_POLICY_NOT_FOUND');
  });

  test('is listed page by page', async () => {
    for (const name of ['c', 'a', 'b']) await create({ name, pools: {} });
    const first = await list(2);
    expect(first.requestPolicies.map(({ name }) => name)).toEqual(['a', 'b']);
    const last = await list(2, first.nextPageToken);
    expect([last.requestPolicies.map(({ name }) => name), last.nextPageToken]).toEqual([['c'], '']);
    expect((await failureOf(list(-1, 'nonsense'))).violations).toHaveLength(2);
  });

  test('survives a restart with every rule, and is obeyed', async () => {
    const made = await create({ ...FULL, namespaceSelector: '' });
    await served.restart();
    expect(await get('tenants')).toEqual({ requestPolicy: made });
    expect(await served.caller.allocateAddress('c1', { pod: pod('red'), addresses: ['10.65.0.7'] })).toBe(
      '10.65.0.7/32',
    );
    const denied = await failureOf(served.caller.allocate('c2', { pod: pod('red'), addresses: ['10.65.0.77'] }));
    expect(denied.code).toBe('REQUEST_DENIED');
  });

  test('that is malformed is refused, with all its faults', async () => {
    const faults = async (policy: Parameters<typeof RequestPolicy.fromPartial>[0]) => {
      const { code, violations } = await failureOf(create(policy));
      expect(code).toBe('INVALID_REQUEST');
      return violations.map(({ field, reason }) => `${field} ${reason.split(':')[0]}`);
    };
    expect(await faults({ name: 'p' })).toEqual([
      'request_policy has no rule; add at least one, an empty one to allow nothing',
    ]);
    expect(
      await faults({
        name: 'P',
        namespaces: ['a', 'a', 'a.b'],
        namespaceSelector: 'a = ',
        pools: { names: ['X'], cidrs: ['10.0.0.1/24', '10.0.0.0/8', '10.0.0.0/8'], selector: 'global()' },
        addresses: { cidrs: ['10.0.0'] },
        macAddresses: { ranges: ['02:00:00:00:00:01/8'] },
        families: { families: [IpFamily.IP_FAMILY_IPV6, IpFamily.IP_FAMILY_IPV6] },
      }),
    ).toEqual([
      'request_policy.name is no RFC 1123 subdomain',
      'request_policy.namespace_selector is not a valid selector',
      'request_policy.pools.selector uses global(), which is only for policies; use all(), or leave the selector empty',
      'request_policy.pools.names[0] is no RFC 1123 subdomain',
      'request_policy.pools.cidrs[0] has host bits set',
      'request_policy.pools.cidrs[2] repeats 10.0.0.0/8',
      'request_policy.addresses.cidrs[0] is not a CIDR, such as 10.65.0.0/28 or 10.65.0.99',
      'request_policy.mac_addresses.ranges[0] is not a MAC address, nor a range such as 02',
      'request_policy.families.families[1] is IPv6 a second time',
      'request_policy.namespaces[1] repeats a',
      'request_policy.namespaces[2] is no RFC 1123 label',
    ]);
    expect((await list()).requestPolicies).toEqual([]);
  });
});

describe('Allocate', () => {
  beforeEach(async () => {
    await served.caller.createPool({ name: 'second', cidr: '10.66.0.0/24' });
    await create({ name: 'closed', pools: {}, addresses: {}, macAddresses: {}, sourcePrefixes: {} });
    await create({ name: 'red', namespaces: ['red'], pools: { names: ['second'] } });
  });

  test('allows a namespace its items, and another none of them', async () => {
    expect(await served.caller.allocateAddress('c1', { pod: pod('red'), pools: ['second'] })).toMatch(/^10\.66\.0\./);
    const failure = await failureOf(served.caller.allocate('c2', { pod: pod('blue'), pools: ['10.66.0.0/24'] }));
    expect(failure).toMatchObject({
      code: 'REQUEST_DENIED',
      message: expect.stringContaining('request policy "closed" allows it no pools'),
      details: { namespace: 'blue', policies: 'closed', requests: 'second' },
    });
    expect((await served.caller.allBlocks()).map(({ allocations }) => allocations.length)).toEqual([1]);
    // A node could leave out the pod.
    const nameless = await failureOf(served.caller.allocate('c4', { pools: ['second'] }));
    expect(nameless.code).toBe('REQUEST_DENIED');
    // Not restricted: requests without an item, or from the configuration.
    expect(await served.caller.allocateAddress('c3', { pod: pod('blue') })).toMatch(/^10\.6[56]\./);
    const poolChoices = [PoolChoice.fromPartial({ pool: 'second', isConfigured: true })];
    const configured = { pod: pod('blue'), pools: ['second'], poolChoices };
    expect(await served.caller.allocateAddress('c5', configured)).toMatch(/^10\.66\./);
  });

  test('refuses unsupported items before any change, also for a holder of an address', async () => {
    await served.caller.allocate('c1', { pod: pod('red') });
    const before = await served.caller.allBlocks();
    const requests = PodRequests.fromPartial({ macAddress: '02:00:00:00:00:07', sourcePrefixes: ['10.8.0.0/24'] });
    for (const id of ['c1', 'c2']) {
      const failure = await failureOf(served.caller.allocate(id, { pod: pod('red'), requests }));
      expect(failure).toMatchObject({
        code: 'REQUEST_DENIED',
        details: { requests: '10.8.0.0/24, 02:00:00:00:00:07' },
      });
    }
    expect(await served.caller.allBlocks()).toEqual(before);
  });

  test('is explained, allowed or not', async () => {
    const explain = (namespace: string) => {
      const request = AllocateRequest.fromPartial({
        attachment: attachment('c1'),
        nodeName: 'node-1',
        pod: pod(namespace),
        pools: ['second'],
        requests: { families: [IpFamily.IP_FAMILY_IPV4] },
      });
      const message = ExplainAllocationRequest.fromPartial({ request });
      return served.caller.peer.call(AddressServiceService.explainAllocation, message, clientLimits());
    };
    const family = {
      kind: RequestKind.REQUEST_KIND_FAMILY,
      value: 'IPv4',
      isAllowed: true,
      policyNames: [],
      allowedBy: '',
      reason: '',
    };
    const second = { kind: RequestKind.REQUEST_KIND_POOL, value: 'second' };
    expect(await explain('red')).toMatchObject({
      refusalCode: '',
      requests: [{ ...second, isAllowed: true, policyNames: ['closed', 'red'], allowedBy: 'red', reason: '' }, family],
    });
    const { refusal, refusalCode, requests } = await explain('blue');
    expect([refusalCode, requests]).toEqual([
      'REQUEST_DENIED',
      [{ ...second, isAllowed: false, policyNames: ['closed'], allowedBy: '', reason: refusal }, family],
    ]);
  });

  test('names a pool of another family than the requested one', async () => {
    await served.caller.createPool({ name: 'six', cidr: 'fd66::/64' });
    await create({ name: 'open', pools: { selector: 'all()' } });
    const { violations } = await failureOf(
      served.caller.allocate('c1', {
        families: [IpFamily.IP_FAMILY_IPV4, IpFamily.IP_FAMILY_IPV6],
        pools: ['second', 'six'],
        poolChoices: [
          { pool: 'second', family: IpFamily.IP_FAMILY_IPV4, isConfigured: false },
          { pool: 'six', family: IpFamily.IP_FAMILY_IPV4, isConfigured: false },
        ],
      }),
    );
    expect(violations).toEqual([
      {
        field: 'pools[1]',
        reason: 'is pool "six" fd66::/64, but requested as an IPv4 pool; request it as an IPv6 pool',
      },
    ]);
  });

  test('checks the other fields', async () => {
    const { violations } = await failureOf(
      served.caller.allocate('c1', {
        pod: pod('red'),
        pools: ['second'],
        poolChoices: [PoolChoice.fromPartial({ pool: 'third' })],
        namespaceLabels: { 'kubernetes.io/metadata.name': 'blue' },
        requests: PodRequests.fromPartial({
          macAddress: '01:00:00:00:00:07',
          sourcePrefixes: ['10.8.0.1/24'],
          addressesWithoutIpam: ['10.9.0.1/24'],
        }),
      }),
    );
    expect(violations.map(({ field }) => field)).toEqual([
      'pool_choices[0].pool',
      'requests.mac_address',
      'requests.addresses_without_ipam[0]',
      'requests.source_prefixes[0]',
      'namespace_labels["kubernetes.io/metadata.name"]',
    ]);
  });
});

test('AuthorizeRequests evaluates requests outside of Allocate, and changes nothing', async () => {
  await create({ name: 'p', namespaces: ['red'], addressesWithoutIpam: { cidrs: ['10.9.0.0/24'] } });
  const authorize = (namespace: string, address: string) => {
    const requests = PodRequests.fromPartial({ addressesWithoutIpam: [address] });
    const message = { ...AuthorizeRequestsRequest.fromPartial({}), pod: pod(namespace), requests };
    return served.caller.peer.call(RequestPolicyServiceService.authorizeRequests, message, clientLimits());
  };
  expect(await authorize('red', '10.9.0.7')).toEqual({});
  expect(await authorize('blue', '10.8.0.7')).toEqual({});
  expect(await failureOf(authorize('red', '10.8.0.7'))).toMatchObject({
    code: 'REQUEST_DENIED',
    message: expect.stringContaining('10.9.0.0/24'),
  });
  expect((await failureOf(authorize('', '10.8.0.7'))).code).toBe('INVALID_REQUEST');
  expect(await served.caller.allBlocks()).toEqual([]);
});

test('a pool serves a namespace by its name, even if its labels are unknown', async () => {
  await served.caller.updatePool(
    {
      name: 'default',
      namespaceSelector: "kubernetes.io/metadata.name == 'red'",
      allowedUses: [AddressUse.ADDRESS_USE_WORKLOAD],
    },
    'namespace_selector',
    'allowed_uses',
  );
  expect(await served.caller.allocateAddress('c1', { pod: pod('red') })).toMatch(/^10\.65\./);
  expect((await failureOf(served.caller.allocate('c2', { pod: pod('blue') }))).code).toBe('NO_POOL_SERVES');
});
