import {
  AddressServiceService,
  AddressState,
  AssignAddressesRequest,
  AssignAddressesResponse,
  GetAddressResponse,
} from '@podwire/proto/podwire/ipam/v1/address';
import { AddressUse } from '@podwire/proto/podwire/ipam/v1/pool';
import { Failure } from '@podwire/shared/failure/failure';
import { afterEach, beforeEach, expect, test } from 'vitest';

import { fake, Fakes } from '../testing/ctl.js';

let fakes: Fakes;
/** The states of the addresses, with the handles that hold them. */
let found: Record<string, GetAddressResponse>;
beforeEach(async () => {
  fakes = new Fakes();
  found = {};
  await fakes.serve(
    fake(AddressServiceService.getAddress, ({ address }) => found[address] ?? stateOf('FREE')),
    fake(AddressServiceService.assignAddresses, ({ addresses }) =>
      AssignAddressesResponse.fromPartial({
        addresses: addresses.map((address, index) => ({
          address: `${address}/${address.includes(':') ? 128 : 32}`,
          poolName: 'main',
          sequenceNumber: BigInt(12 + index),
          alreadyHeld: index > 0,
        })),
      }),
    ),
  );
});
afterEach(() => fakes.clear());

const stateOf = (state: 'FREE' | 'RESERVED' | 'COOLING' | 'UNMANAGED' | 'ALLOCATED', handleId?: string) =>
  GetAddressResponse.fromPartial({
    state: AddressState[`ADDRESS_STATE_${state}`],
    poolName: state === 'UNMANAGED' ? '' : 'main',
    ...(handleId !== undefined && { holder: { handleId } }),
  });

const requests = () => fakes.calls.filter(({ method }) => method === 'AssignAddresses').map(({ request }) => request);
const assign = (...words: string[]) => fakes.podwirectl('ipam', 'assign', ...words);
const ON_NODE = ['10.65.0.7', '--handle', 'printer', '--node', 'node-1'];

test('addresses are assigned to a handle, once the preview is confirmed', async () => {
  found['10.65.0.7'] = stateOf('RESERVED');
  found['10.65.0.8'] = stateOf('ALLOCATED', 'printer');
  const line = ['10.65.0.8', ...ON_NODE, '--attribute', 'note=printer', '--attribute', 'room=a b'];
  const preview = await assign(...line);
  expect(preview).toMatchObject({
    exitCode: 2,
    stdout: expect.stringMatching(
      /^These addresses would be assigned to handle printer on node node-1:$[^]*^10\.65\.0\.8 +allocated +main +printer$\n^10\.65\.0\.7 +reserved +main +-$/m,
    ),
    stderr: expect.stringContaining(
      "ipam assign 10.65.0.8 10.65.0.7 --handle printer --node node-1 --attribute note=printer --attribute 'room=a b' --yes",
    ),
  });
  expect(requests()).toEqual([]);
  expect(await assign(...line, '--yes')).toMatchObject({
    exitCode: 0,
    stdout: expect.stringMatching(
      /^10\.65\.0\.8 +assigned +main +12 +printer\n10\.65\.0\.7 +already assigned +main +13 +printer$/m,
    ),
  });
  expect(requests()).toEqual([
    AssignAddressesRequest.fromPartial({
      handleId: 'printer',
      nodeName: 'node-1',
      use: AddressUse.ADDRESS_USE_WORKLOAD,
      addresses: ['10.65.0.8', '10.65.0.7'],
      attributes: { note: 'printer', room: 'a b' },
    }),
  ]);
});

test('addresses of load balancers belong to no node', async () => {
  const line = ['FD65::8', '--handle=lb-1', '--use=load-balancer'];
  expect((await assign(...line)).stdout).toContain('assigned to handle lb-1 for load balancers');
  const { stdout } = await assign(...line, '--yes', '-o', 'json');
  expect(JSON.parse(stdout)).toMatchObject({ addresses: [{ address: 'fd65::8/128', sequenceNumber: '12' }] });
  expect(requests()).toEqual([
    AssignAddressesRequest.fromPartial({
      handleId: 'lb-1',
      use: AddressUse.ADDRESS_USE_LOAD_BALANCER,
      addresses: ['fd65::8'],
    }),
  ]);
});

test.each([stateOf('ALLOCATED', 'net.c0ffee'), stateOf('COOLING'), stateOf('UNMANAGED')])(
  'an address in another state suggests no command: $state',
  async (state) => {
    found['10.65.0.7'] = state;
    expect(await assign(...ON_NODE, '10.65.0.9')).toMatchObject({
      exitCode: 1,
      stdout: expect.stringMatching(/^no address is assigned: [^]*^10\.65\.0\.9 +free /m),
      stderr: '',
    });
  },
);

test.each([
  ['no address', ['--handle', 'printer', '--node', 'node-1'], "missing required argument 'ADDRESS'"],
  ['a range', ['10.65.0.0/24', ...ON_NODE], 'is a range'],
  ['no handle', ['10.65.0.7', '--node', 'node-1'], 'requires --handle'],
  ['no node', ['10.65.0.7', '--handle', 'printer'], 'requires --node or --use=load-balancer'],
  ['a node of a load balancer', [...ON_NODE, '--use', 'load-balancer'], 'and not both'],
  ['another use', [...ON_NODE, '--use', 'tunnel'], 'is not one of workload, load-balancer'],
])('a command line with %s is refused', async (_, words, reason) => {
  expect(await assign(...words)).toMatchObject({ exitCode: 2, stderr: expect.stringContaining(reason) });
  expect(fakes.calls).toEqual([]);
});

test('a refusal of the service is printed', async () => {
  await fakes.clear();
  fakes = new Fakes();
  await fakes.serve(
    fake(AddressServiceService.assignAddresses, () => {
      throw new Failure('ADDRESS_IN_USE', 'address 10.65.0.7 is held by handle net.c0ffee');
    }),
  );
  expect(await assign(...ON_NODE, '--yes')).toMatchObject({
    exitCode: 1,
    stderr: 'podwirectl: ipam assign failed: address 10.65.0.7 is held by handle net.c0ffee (ADDRESS_IN_USE)\n',
  });
});
