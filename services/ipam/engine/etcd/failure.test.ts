import { Failure } from '@podwire/shared/failure/failure';
import { describe, expect, it } from 'vitest';

import { failureOfEtcd, NotExecuted, RevisionGone } from './failure.js';

const ENDPOINT = 'https://etcd-1.example:2379';
const translate = (text: string) => failureOfEtcd(new Error(text), ENDPOINT, undefined);

describe('what etcd says', () => {
  it.each([
    ['8 RESOURCE_EXHAUSTED: etcdserver: mvcc: database space exceeded', 'STORE_FULL', /etcdctl defrag/],
    ['3 INVALID_ARGUMENT: etcdserver: too many operations in txn request', 'STORE_LIMIT', /MAX_TXN_OPS/],
    ['3 INVALID_ARGUMENT: etcdserver: request is too large', 'STORE_LIMIT', /MAX_REQUEST_BYTES/],
    ['8 RESOURCE_EXHAUSTED: grpc: received message larger than max (9 vs. 2)', 'STORE_LIMIT', /MAX_REQUEST_BYTES/],
    ['7 PERMISSION_DENIED: etcdserver: permission denied', 'STORE_DENIED', /grant it a role/],
    ['3 INVALID_ARGUMENT: etcdserver: authentication failed, invalid user ID or password', 'STORE_DENIED', /_USERNAME/],
    ['3 INVALID_ARGUMENT: etcdserver: user name is empty', 'STORE_DENIED', /wants a user/],
    ['9 FAILED_PRECONDITION: etcdserver: authentication is not enabled', 'STORE_DENIED', /has no users/],
  ])('for certain: %s', (text, code, nextStep) => {
    const failure = translate(text);
    expect(failure).toBeInstanceOf(NotExecuted);
    expect(failure).toMatchObject({ code, retryable: false, details: { endpoint: ENDPOINT } });
    expect(failure.message).toMatch(nextStep);
    expect(failure.message).toContain(ENDPOINT);
    expect(failure.message).toContain(text);
  });

  it.each([
    '14 UNAVAILABLE: No connection established. Last error: connect ECONNREFUSED 127.0.0.1:2379',
    '14 UNAVAILABLE: etcdserver: no leader',
    '14 UNAVAILABLE: etcdserver: leader changed',
    '14 UNAVAILABLE: etcdserver: request timed out',
    '14 UNAVAILABLE: etcdserver: request timed out, possibly due to previous leader failure',
    '14 UNAVAILABLE: etcdserver: server stopped',
    '8 RESOURCE_EXHAUSTED: etcdserver: too many requests',
    '1 CANCELLED: Call cancelled',
    '2 UNKNOWN: whatever comes next',
  ])('with an open outcome: %s', (text) => {
    const failure = translate(text);
    expect(failure).not.toBeInstanceOf(NotExecuted);
    expect(failure).toMatchObject({ code: 'STORE_UNAVAILABLE', retryable: true });
    expect(failure.message).toContain(text);
  });

  it.each([
    '14 UNAVAILABLE: No connection established. Last error: Error: self-signed certificate in certificate chain',
    '14 UNAVAILABLE: No connection established. Last error: write EPROTO 40:error:0A00010B:SSL routines:wrong version number',
  ])('about TLS, with the settings that it has: %s', (text) => {
    expect(translate(text).message).toContain('PODWIRE_IPAM_ETCD_CA_FILE');
  });

  it('about compaction is no failure, but asks for another beginning', () => {
    const text = '11 OUT_OF_RANGE: etcdserver: mvcc: required revision has been compacted';
    expect(translate(text)).toBeInstanceOf(RevisionGone);
  });

  it('is said once', () => {
    const failure = new Failure('CANCELLED', 'the caller gave up');
    expect(failureOfEtcd(failure, ENDPOINT, undefined)).toBe(failure);
  });
});
