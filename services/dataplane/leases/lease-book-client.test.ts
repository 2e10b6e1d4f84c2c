import { AddressReleaseResult } from '@podwire/proto/podwire/ipam/v1/address';
import {
  ReturnAddressesRequest,
  ReturnAddressesResponse,
  type ReturnAddressesRequest as ReturnRequest,
} from '@podwire/proto/podwire/ipam/v1/lease';
import { Failure } from '@podwire/shared/failure/failure';
import { FakeClock } from '@podwire/shared/testing/clock';
import type { Peer } from '@podwire/shared/rpc/client';
import { expect, test } from 'vitest';

import type { AttachmentRecord } from '../records/record.js';
import { podNetwork } from '../testing/pods.js';
import { ipamLeaseBook } from './lease-book-client.js';

const NEVER = new AbortController().signal;

function dead(name: string, address: string, sequenceNumber: bigint): AttachmentRecord {
  const addresses = [{ address, sequenceNumber }];
  return {
    network: podNetwork(name),
    allocation: { addresses, nodeName: 'node-1', pod: undefined, isBound: true },
    identity: { device: 4n, inode: 4_026_532_178n, cookie: 7n },
    bootId: 'boot',
    state: 'dead',
    createdAtMs: 0,
    updatedAtMs: 0,
  };
}

/** podwire-ipam, which cannot read the blocks of some addresses; with the returns of each request. */
function returning(unreadable: readonly string[] = [], malformed: readonly string[] = []) {
  const requests: string[][] = [];
  const { ADDRESS_RELEASE_RESULT_UNREADABLE: UNREADABLE, ADDRESS_RELEASE_RESULT_RELEASED: RELEASED } =
    AddressReleaseResult;
  const answer = ({ returns }: ReturnRequest): Uint8Array => {
    const names = returns.map(({ allocation }) => allocation?.address ?? '');
    requests.push(returns.map(({ allocation }) => `${allocation?.address} ${allocation?.sequenceNumber}`));
    const results = names.map((name) => (unreadable.includes(name) ? UNREADABLE : RELEASED));
    return ReturnAddressesResponse.encode({ results }).finish();
  };
  const peer: Pick<Peer, 'call' | 'description'> = {
    description: 'podwire-ipam',
    call: (method, request) => {
      const received = ReturnAddressesRequest.decode(method.requestSerialize(request));
      if (received.returns.some(({ allocation }) => malformed.includes(allocation?.address ?? '')))
        return Promise.reject(new Failure('INVALID_REQUEST', 'ReturnAddresses refused'));
      return Promise.resolve(method.responseDeserialize(Buffer.from(answer(received))));
    },
  };
  return { book: ipamLeaseBook({ peer, clock: new FakeClock(), nodeName: 'node-1', bootId: 'boot' }), requests };
}

test('an address that is returned twice, as the first answer was lost, is in a request once', async () => {
  const { book, requests } = returning(['10.65.0.2']);
  const first = dead('a', '10.65.0.1', 1n);
  const second = dead('c', '10.65.0.1', 2n);
  const results = await book.return([first, dead('b', '10.65.0.2', 7n), second, dead('d', '10.65.0.3', 8n)], NEVER);
  expect(requests).toEqual([
    ['10.65.0.1 1', '10.65.0.2 7'],
    ['10.65.0.1 2', '10.65.0.3 8'],
  ]);
  expect(results).toEqual([true, false, true, true]);
});

test('a request has at most 256 returns', async () => {
  const { book, requests } = returning();
  const leases = Array.from({ length: 257 }, (_, index) => {
    return { address: `10.65.${index >> 8}.${index & 255}`, sequenceNumber: 1n, poolName: 'pool' };
  });
  await book.returnLeases(leases, NEVER);
  expect(requests.map(({ length }) => length)).toEqual([256, 1]);
});

test('a return that podwire-ipam refuses as malformed does not hold up the rest', async () => {
  const { book } = returning([], ['10.65.0.2']);
  const records = ['10.65.0.1', '10.65.0.2', '10.65.0.3', '10.65.0.4'].map((address) => dead(address, address, 1n));
  expect(await book.return(records, NEVER)).toEqual([true, false, true, true]);
});
