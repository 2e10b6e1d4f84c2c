import { Metadata } from '@grpc/grpc-js';
import { expect, test } from 'vitest';

import { systemClock } from '../runtime/clock.js';
import { checkAccess, type AccessRequest } from './access.js';

/** A call as gRPC reports it after the client has closed the connection: without address and certificate. */
function closedCall(metadata: Metadata) {
  return { metadata, getAuthContext: () => ({}) };
}

function check(metadata: Metadata) {
  const requests: AccessRequest[] = [];
  const access = { authorize: (request: AccessRequest) => void requests.push(request), clock: systemClock };
  const request = { path: '/a.B/C', encodeRequest: () => Buffer.alloc(0) };
  return { requests, outcome: checkAccess(access, closedCall(metadata), request) };
}

test('a call over the network is refused once its connection is closed, as nothing proves the caller', async () => {
  const metadata = new Metadata();
  metadata.set('podwire-network', 'true');

  const { requests, outcome } = check(metadata);

  await expect(outcome).rejects.toMatchObject({ code: 'ACCESS_DENIED' });
  expect(requests).toEqual([]);
});

test('a local call needs no permission', async () => {
  const { requests, outcome } = check(new Metadata());

  await expect(outcome).resolves.toBeUndefined();
  expect(requests).toEqual([]);
});
