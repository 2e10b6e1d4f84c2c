import { Metadata } from '@grpc/grpc-js';
import { expect, test } from 'vitest';

import { systemClock } from '../runtime/clock.js';
import { recordingLog } from '../testing/server.js';
import { admitCall, type AccessRequest } from './access.js';
import { RequestQueue } from './request-queue.js';
import { RpcEvents } from './rpc-events.js';

/** A call as gRPC reports it after the client has closed the connection: without address and certificate. */
function closedCall(metadata: Metadata) {
  return { metadata, getAuthContext: () => ({}) };
}

function admit(metadata: Metadata, clientCertificates: 'required' | 'none' = 'required') {
  const requests: AccessRequest[] = [];
  const events = new RpcEvents({ ...recordingLog(), clock: systemClock });
  const queue = new RequestQueue({ clock: systemClock, events });
  const authorize = (request: AccessRequest) => void requests.push(request);
  const admission = { authorize, clock: systemClock, queue, clientCertificates };
  const { signal } = new AbortController();
  const request = { path: '/a.B/C', encodeRequest: () => Buffer.alloc(0), signal };
  return { requests, outcome: admitCall(admission, closedCall(metadata), request) };
}

test('a call over the network is refused once its connection is closed, as nothing proves the caller', async () => {
  const metadata = new Metadata();
  metadata.set('podwire-network', 'true');

  const { requests, outcome } = admit(metadata);

  await expect(outcome).rejects.toMatchObject({ code: 'ACCESS_DENIED' });
  expect(requests).toEqual([]);
});

test('a local call needs no permission', async () => {
  const { requests, outcome } = admit(new Metadata());

  await expect(outcome).resolves.toMatchObject({ caller: { kind: 'local' } });
  expect(requests).toEqual([]);
});

test('a listener that asks for no certificates knows its callers as anonymous, and never as local', async () => {
  const metadata = new Metadata();
  metadata.set('podwire-network', 'true');

  const { requests, outcome } = admit(metadata, 'none');

  expect((await outcome).caller).toEqual({ kind: 'anonymous', role: 'none' });
  expect(requests).toMatchObject([{ caller: { kind: 'anonymous' } }]);
});
