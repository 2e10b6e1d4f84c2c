import { AddressReleaseResult } from '@podwire/proto/podwire/ipam/v1/address';
import { Failure } from '@podwire/shared/failure/failure';
import { expect, test } from 'vitest';

import type { LeaseApi } from './lease-api.js';
import { leaseReturn, returnAddresses } from './lease-calls.js';
import { IpamSession } from './session.js';

const NEVER = new AbortController().signal;

const unused = () => Promise.reject(new Error('unused'));

/** A session with podwire-ipam, which cannot read the blocks of some addresses, with the returns of each request. */
function returning(unreadable: readonly string[] = [], malformed: readonly string[] = []) {
  const requests: string[][] = [];
  const { ADDRESS_RELEASE_RESULT_UNREADABLE: UNREADABLE, ADDRESS_RELEASE_RESULT_RELEASED: RELEASED } =
    AddressReleaseResult;
  const api: LeaseApi = {
    description: 'podwire-ipam',
    isConnected: () => true,
    openSession: ({ expectedGeneration }) =>
      Promise.resolve({ opened: true, generation: expectedGeneration + 1n, revision: 1n }),
    returnAddresses: ({ returns }) => {
      const names = returns.map(({ allocation }) => allocation?.address ?? '');
      if (names.some((name) => malformed.includes(name)))
        return Promise.reject(new Failure('INVALID_REQUEST', 'ReturnAddresses refused'));
      requests.push(names);
      const results = names.map((name) => (unreadable.includes(name) ? UNREADABLE : RELEASED));
      return Promise.resolve({ results, leaseSequenceNumbers: names.map(() => 0n), sessionRevision: 2n });
    },
    ...{
      leaseAddresses: unused,
      bindAddresses: unused,
      reportEndpoints: unused,
      reportInventory: unused,
      endpoint: unused,
    },
  };
  const ids = { nodeName: 'node-1', machineId: 'machine', bootId: 'boot' };
  const handlers = {
    onChange: () => undefined,
    onOpened: () => undefined,
    onRestored: () => undefined,
    onDisplaced: () => undefined,
  };
  const session = new IpamSession({ api, ...ids, nodeAddress: () => '', last: undefined, ...handlers });
  return { session, requests };
}

async function returned(session: IpamSession, returns: ReturnType<typeof returnsOf>): Promise<boolean[]> {
  return (await returnAddresses(session, returns, NEVER)).map(({ isReturned }) => isReturned);
}

const returnsOf = (...addresses: readonly string[]) =>
  addresses.map((address) => leaseReturn({ address, sequenceNumber: 1n }));

test('a return whose block cannot be read is not done', async () => {
  const { session } = returning(['10.65.0.2']);
  expect(await returned(session, returnsOf('10.65.0.1', '10.65.0.2'))).toEqual([true, false]);
});

test('a return that podwire-ipam refuses as malformed does not hold up the rest', async () => {
  const { session, requests } = returning([], ['10.65.0.2']);
  const returns = returnsOf('10.65.0.1', '10.65.0.2', '10.65.0.3', '10.65.0.4');
  expect(await returned(session, returns)).toEqual([true, false, true, true]);
  expect(requests).toEqual([['10.65.0.1'], ['10.65.0.3', '10.65.0.4']]);
});
