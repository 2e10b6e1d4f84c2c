import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterAll, beforeAll, describe, expect, it } from 'vitest';

import { CertificateAuthority } from '../../engine/testing/etcd-server.js';
import { connectionText, tlsReason } from './tls-reason.js';

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

  it('is that etcd wants a certificate, where none is shown', () => {
    expect(tlsReason('tlsv13 alert certificate required', undefined)).toMatch(/^etcd wants a certificate .*_KEY_FILE$/);
  });

  it.each(['sslv3 alert bad certificate', 'read ECONNRESET'])('is an own certificate that has expired: %s', (text) => {
    const expired = /PODWIRE_IPAM_ETCD_CERT_FILE has expired at 2020-01-02T00:00:00\.000Z/;
    expect(tlsReason(text, { certificate, nowMs: NOW_MS })).toMatch(expired);
  });

  it('is not an own certificate that has expired where nobody has looked at it', () => {
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
  ])('is told without its bookkeeping: %j', (text, told) => {
    expect(connectionText(text)).toBe(told);
  });
});
