import { X509Certificate } from 'node:crypto';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

import { CertificateServiceService, RevokedCertificate } from '@podwire/proto/podwire/ipam/v1/certificate';
import { Failure } from '@podwire/shared/failure/failure';
import { CertificateFolder } from '@podwire/shared/testing/certificates';
import { afterEach, beforeEach, expect, test } from 'vitest';

import { fake, Fakes } from '../testing/ctl.js';

const { revokeCertificate, listRevokedCertificates, restoreCertificate } = CertificateServiceService;

let fakes: Fakes;
beforeEach(() => {
  fakes = new Fakes();
});
afterEach(() => fakes.clear());

test('revokes the certificate of a file or of a serial number', async () => {
  const folder = await CertificateFolder.create(join(fakes.folder, 'certificates'));
  const { path } = (await folder.client('operator', 'alice')).identity!.certificate;
  const { serialNumber, validTo } = new X509Certificate(readFileSync(path));
  await fakes.serve(fake(revokeCertificate, (request) => request));

  const ofFile = await fakes.podwirectl('certificates', 'revoke', path);
  expect(ofFile).toMatchObject({
    exitCode: 0,
    stdout: `certificate ${serialNumber} of O=podwire:operator, CN=alice is revoked\n`,
  });
  expect(await fakes.podwirectl('certificates', 'revoke', '3f:0A')).toMatchObject({ exitCode: 0 });
  expect(fakes.calls.map(({ request }) => request)).toEqual([
    {
      certificate: {
        serialNumber,
        name: 'O=podwire:operator, CN=alice',
        expireTime: new Date(validTo),
        revokeTime: undefined,
      },
    },
    { certificate: RevokedCertificate.fromPartial({ serialNumber: '3f:0A' }) },
  ]);
});

test('refuses an argument that is neither, and a file without the certificate of a caller', async () => {
  await fakes.serve();
  const folder = await CertificateFolder.create(join(fakes.folder, 'certificates'));
  const { ca, identity } = await folder.server();
  const path = join(fakes.folder, 'key');
  writeFileSync(path, 'no certificate');

  for (const [argument, reason] of [
    ['alice.crt', 'alice.crt: is neither a file nor a serial number'],
    [path, 'is not a certificate in PEM'],
    [ca!.path, 'which is no node, reader or operator'],
    [identity!.certificate.path, 'which is no node, reader or operator'],
  ] as const) {
    const { exitCode, stderr } = await fakes.podwirectl('certificates', 'revoke', argument);
    expect([exitCode, stderr]).toEqual([expect.any(Number), expect.stringContaining(reason)]);
    expect(exitCode).not.toBe(0);
  }
});

test('lists the revoked certificates, and accepts one again', async () => {
  const certificates = [
    RevokedCertificate.fromPartial({ serialNumber: '3F0A', name: 'CN=alice', revokeTime: new Date(0) }),
    RevokedCertificate.fromPartial({ serialNumber: '77', revokeTime: new Date(0) }),
  ];
  await fakes.serve(
    fake(listRevokedCertificates, () => ({ certificates })),
    fake(restoreCertificate, ({ serialNumber }) => {
      if (serialNumber === '99') throw new Failure('CERTIFICATE_NOT_FOUND', 'certificate 99 is not revoked');
      return {};
    }),
  );

  const { stdout } = await fakes.podwirectl('get', 'revokedcertificates');
  expect(stdout).toMatch(/^SERIAL +HOLDER +EXPIRES +AGE\n3F0A +CN=alice .*\n77 /);
  expect(await fakes.podwirectl('delete', 'revokedcertificate', '3F0A')).toMatchObject({ exitCode: 2 });
  expect(await fakes.podwirectl('delete', 'revokedcertificate', '3F0A', '--yes')).toMatchObject({
    exitCode: 0,
    stdout: expect.stringContaining('certificate 3F0A is accepted again'),
  });
  expect(fakes.calls.at(-1)?.request).toEqual({ serialNumber: '3F0A' });
  expect(await fakes.podwirectl('delete', 'revokedcertificate', '99', '--yes')).toMatchObject({
    stderr: expect.stringContaining('certificate 99 is not revoked'),
  });
});
