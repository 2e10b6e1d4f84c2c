import { Metadata } from '@grpc/grpc-js';
import { expect, test } from 'vitest';

import { systemClock } from '../runtime/clock.js';
import { recordingLog } from '../testing/server.js';
import { admitCall, type AccessRequest, type TokenVerifier } from './access.js';
import { RequestQueue } from './request-queue.js';
import { RpcEvents } from './rpc-events.js';

/** A call as gRPC reports it after the client has closed the connection: without address and certificate. */
function closedCall(metadata: Metadata) {
  return { metadata, getAuthContext: () => ({}) };
}

function admit(metadata: Metadata, tokens?: TokenVerifier) {
  const requests: AccessRequest[] = [];
  const events = new RpcEvents({ ...recordingLog(), clock: systemClock });
  const queue = new RequestQueue({ clock: systemClock, events });
  const authorize = (request: AccessRequest) => void requests.push(request);
  const admission = { authorize, clock: systemClock, queue, tokens };
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

test('a call over the network without a certificate is known by its token, and never as local', async () => {
  const metadata = new Metadata();
  metadata.set('podwire-network', '192.0.2.1:5000');
  metadata.set('authorization', 'Bearer abc');
  const caller = { kind: 'network', role: 'node', name: 'worker-1' } as const;
  const verify = (...shown: [string, string, AbortSignal]) => {
    expect(shown.slice(0, 2)).toEqual(['abc', '192.0.2.1:5000']);
    return { caller, check: () => undefined };
  };

  const { requests, outcome } = admit(metadata, { verify });

  await expect(outcome).resolves.toMatchObject({ caller });
  expect(requests).toMatchObject([{ caller }]);
});
