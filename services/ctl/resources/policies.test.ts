import { AddressServiceService, GetAddressResponse, IpFamily } from '@podwire/proto/podwire/ipam/v1/address';
import { RequestPolicy, RequestPolicyServiceService } from '@podwire/proto/podwire/ipam/v1/request_policy';
import { Reservation, ReservationServiceService } from '@podwire/proto/podwire/ipam/v1/reservation';
import { Failure } from '@podwire/shared/failure/failure';
import { afterEach, beforeEach, expect, test } from 'vitest';

import { fake, Fakes } from '../testing/ctl.js';

let fakes: Fakes;
beforeEach(() => {
  fakes = new Fakes();
});
afterEach(() => fakes.clear());

const requestsTo = (method: string) =>
  fakes.calls.filter((call) => call.method === method).map(({ request }) => request);
const { createRequestPolicy, updateRequestPolicy, getRequestPolicy, listRequestPolicies, deleteRequestPolicy } =
  RequestPolicyServiceService;

const TENANTS = RequestPolicy.fromPartial({
  name: 'tenants',
  namespaces: ['red'],
  namespaceSelector: "tier == 'lab'",
  pools: { names: ['a', 'b'], cidrs: ['10.64.0.0/12'], selector: 'has(open)' },
  addresses: { cidrs: ['10.65.0.0/28'] },
  addressesWithoutIpam: {},
  sourcePrefixes: { cidrs: ['10.8.0.0/16'] },
  floatingIps: { cidrs: ['192.0.2.7'] },
  macAddresses: { ranges: ['02:42:00:00:00:00/16'] },
  families: { families: [IpFamily.IP_FAMILY_IPV4, IpFamily.IP_FAMILY_IPV6] },
});

const OPTIONS = [
  ...['--namespace', 'red', '--namespace-selector', "tier == 'lab'"],
  ...['--pool', 'a', '--pool', 'b', '--pool-cidr', '10.64.0.0/12', '--pool-selector', 'has(open)'],
  ...['--address', '10.65.0.0/28', '--none-of', 'without-ipam', '--source-prefix', '10.8.0.0/16'],
  ...['--floating-ip', '192.0.2.7', '--mac', '02:42:00:00:00:00/16', '--family', '4', '--family', '6'],
];

test('set creates a request policy from its options, and replaces an existing one', async () => {
  let isStored = false;
  await fakes.serve(
    fake(updateRequestPolicy, ({ requestPolicy }) => {
      if (!isStored) throw new Failure('REQUEST_POLICY_NOT_FOUND', 'there is none');
      return { requestPolicy };
    }),
    fake(createRequestPolicy, ({ requestPolicy }) => ({ requestPolicy })),
  );
  const made = await fakes.podwirectl('policies', 'set', 'tenants', ...OPTIONS);
  expect(requestsTo('CreateRequestPolicy')).toEqual([{ requestPolicy: TENANTS }]);
  expect(made.stdout.split('\n').map((line) => line.replace(/ {2,}/g, ' | '))).toEqual([
    'Name | tenants',
    "Namespaces | red, tier == 'lab'",
    'Pools | a, b, 10.64.0.0/12, has(open)',
    'Addresses | 10.65.0.0/28',
    'Without IPAM | none',
    'Source prefixes | 10.8.0.0/16',
    'Floating IPs | 192.0.2.7',
    'MACs | 02:42:00:00:00:00/16',
    'Families | IPv4, IPv6',
    '',
  ]);
  const stale = await fakes.podwirectl('policies', 'set', 'tenants', '--none-of', 'pools', '--resource-version', 'x');
  expect([stale.exitCode, requestsTo('CreateRequestPolicy')]).toEqual([3, [{ requestPolicy: TENANTS }]]);
  isStored = true;
  await fakes.podwirectl('policies', 'set', 'tenants', '--none-of', 'pools');
  expect(requestsTo('UpdateRequestPolicy').at(-1)).toEqual({
    requestPolicy: RequestPolicy.fromPartial({ name: 'tenants', pools: {} }),
  });
  expect((await fakes.podwirectl('policies', 'set', 'tenants', '--none-of', 'nodes')).exitCode).toBe(2);
});

test('request policies are listed, shown and deleted', async () => {
  await fakes.serve(
    fake(listRequestPolicies, ({ pageToken }) => ({
      requestPolicies: [pageToken === '' ? TENANTS : RequestPolicy.fromPartial({ name: 'closed', pools: {} })],
      nextPageToken: pageToken === '' ? 'x' : '',
    })),
    fake(getRequestPolicy, () => ({ requestPolicy: TENANTS })),
    fake(deleteRequestPolicy, () => ({})),
  );
  const { stdout } = await fakes.podwirectl('policies');
  expect(stdout).toMatch(/^tenants +red, tier == 'lab' +pools: a, b, 10\.64\.0\.0\/12, has\(open\); addresses: /m);
  expect(stdout).toMatch(/^closed +all +pools: none/m);
  expect((await fakes.podwirectl('policies', 'show', 'tenants')).stdout).toContain('Floating IPs');
  const deleted = await fakes.podwirectl('policies', 'delete', 'tenants', '--resource-version', '7');
  expect(deleted).toMatchObject({ exitCode: 0, stdout: 'request policy tenants is deleted\n' });
  expect(requestsTo('DeleteRequestPolicy')).toEqual([{ name: 'tenants', resourceVersion: '7' }]);
});

test('a reservation is shown', async () => {
  const reservation = Reservation.fromPartial({ name: 'routers', cidrs: ['10.65.0.0/28'] });
  await fakes.serve(fake(ReservationServiceService.getReservation, () => ({ reservation })));
  expect((await fakes.podwirectl('reservations', 'show', 'routers')).stdout).toMatch(/^routers +10\.65\.0\.0\/28/m);
  expect(requestsTo('GetReservation')).toEqual([{ name: 'routers' }]);
});

test('attributes are changed on condition of the values that were read', async () => {
  const source = { pod: 'launcher-1', ticket: '7' };
  const target = { pod: 'launcher-2' };
  const held = { attributes: source, alternateAttributes: target, sequenceNumber: 12n, handleId: 'net.vm' };
  let holder: typeof held | undefined = held;
  await fakes.serve(
    fake(AddressServiceService.getAddress, () => GetAddressResponse.fromPartial({ holder })),
    fake(AddressServiceService.setAttributes, ({ attributes, alternate }) => ({
      holder: {
        ...held,
        attributes: attributes?.values ?? source,
        alternateAttributes: alternate?.values ?? target,
      },
    })),
  );
  const read = { sequenceNumber: 12n, expected: { values: source }, expectedAlternate: { values: target } };
  await fakes.podwirectl('attributes', 'set', '10.65.0.7', '--set', 'note=x', '--remove', 'ticket');
  expect(requestsTo('SetAttributes')).toEqual([
    expect.objectContaining({
      ...read,
      attributes: { values: { pod: 'launcher-1', note: 'x' } },
      alternate: undefined,
    }),
  ]);
  await fakes.podwirectl('attributes', 'set', '10.65.0.7', '--alternate', 'node=n2', '--remove-alternate', 'pod');
  expect(requestsTo('SetAttributes').at(-1)).toMatchObject({
    attributes: undefined,
    alternate: { values: { node: 'n2' } },
  });
  const swapped = await fakes.podwirectl('attributes', 'swap', '10.65.0.7');
  expect(requestsTo('SetAttributes').at(-1)).toMatchObject({
    ...read,
    attributes: { values: target },
    alternate: { values: source },
  });
  expect(swapped.stdout).toMatch(/^Second owner +pod=launcher-1, ticket=7$/m);
  expect((await fakes.podwirectl('attributes', 'set', '10.65.0.7')).exitCode).toBe(2);
  holder = undefined;
  expect(await fakes.podwirectl('attributes', 'swap', '10.65.0.7')).toMatchObject({ exitCode: 3 });
});
