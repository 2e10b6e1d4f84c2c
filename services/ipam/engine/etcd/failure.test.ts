import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { Failure } from '@podwire/shared/failure/failure';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';

import { CertificateAuthority } from '../testing/etcd-server.js';
import { connectionText, failureOfEtcd, NotExecuted, RevisionGone, tlsReason } from './failure.js';

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
    ['3 INVALID_ARGUMENT: etcdserver: user name is empty', 'STORE_DENIED', /requires a user/],
    ['9 FAILED_PRECONDITION: etcdserver: authentication is not enabled', 'STORE_DENIED', /has authentication disabled/],
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

const NOW_MS = Date.parse('2026-11-23T12:00:00Z');
let directory: string;
let certificate: Buffer;
beforeAll(() => {
  directory = mkdtempSync(join(tmpdir(), 'podwire-tls-reason-'));
  certificate = readFileSync(new CertificateAuthority(directory).issueExpired('own').cert);
});
afterAll(() => rmSync(directory, { recursive: true, force: true }));

/** Before it has expired. */
const holding = () => ({ certificate, nowMs: Date.parse('2020-01-01T12:00:00Z') });

describe('why there is no connection', () => {
  it.each([
    ['Error: certificate has expired', /that etcd shows.*has expired: renew it there/],
    ['Error: certificate is not yet valid', /not valid yet: compare the clocks/],
    [
      'Hostname/IP does not match certificate’s altnames: IP: 10.0.0.1 is not in the list',
      /_ETCD_ENDPOINTS has to name/,
    ],
    ['Error: self-signed certificate in certificate chain', /none of the authorities in PODWIRE_IPAM_ETCD_CA_FILE/],
    ['Error: unable to get local issuer certificate', /none of the authorities in PODWIRE_IPAM_ETCD_CA_FILE/],
    ['sslv3 alert bad certificate', /refuses the certificate of PODWIRE_IPAM_ETCD_CERT_FILE \(bad certificate\)/],
    ['tlsv1 alert unknown ca', /--trusted-ca-file/],
    ['SSL routines:wrong version number', /check the scheme/],
  ])('is said of: %s', (text, reason) => {
    expect(tlsReason(text, holding())).toMatch(reason);
  });

  it('asks for a client certificate where none is configured', () => {
    expect(tlsReason('tlsv13 alert certificate required', undefined)).toMatch(
      /^etcd requires a client certificate .*_KEY_FILE$/,
    );
  });

  it.each(['sslv3 alert bad certificate', 'read ECONNRESET'])('is an own certificate that has expired: %s', (text) => {
    const expired = /PODWIRE_IPAM_ETCD_CERT_FILE has expired at 2020-01-02T00:00:00\.000Z/;
    expect(tlsReason(text, { certificate, nowMs: NOW_MS })).toMatch(expired);
  });

  it('does not report an expired client certificate if etcd has not examined it', () => {
    expect(tlsReason('connect ECONNREFUSED 127.0.0.1:2379', { certificate, nowMs: NOW_MS })).toBeUndefined();
    expect(tlsReason('certificate has expired', { certificate, nowMs: NOW_MS })).toMatch(/that etcd shows/);
  });

  it('is not TLS where nothing says so', () => {
    expect(tlsReason('connect ECONNREFUSED 127.0.0.1:2379', holding())).toBeUndefined();
  });
});

describe('what gRPC says of a connection', () => {
  it.each([
    [
      'No connection established. Last error: 805C66F48C7F0000:error:0A000412:SSL routines:ssl3_read_bytes:sslv3 alert bad certificate:../deps/openssl/openssl/ssl/record/rec_layer_s3.c:1601:SSL alert number 42\n (2026-11-23T14:31:44.193Z). Resolution note: ',
      'No connection established. Last error: sslv3 alert bad certificate',
    ],
    [
      'No connection established. Last error: Error: connect ECONNREFUSED 127.0.0.1:1. Resolution note: ',
      'No connection established. Last error: Error: connect ECONNREFUSED 127.0.0.1:1',
    ],
    ['14 UNAVAILABLE: etcdserver: no leader', '14 UNAVAILABLE: etcdserver: no leader'],
  ])('is reported without gRPC’s bookkeeping: %j', (text, told) => {
    expect(connectionText(text)).toBe(told);
  });
});
