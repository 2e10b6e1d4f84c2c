import { X509Certificate } from 'node:crypto';

import { CertificateServiceService, RevokedCertificate } from '@podwire/proto/podwire/ipam/v1/certificate';
import { Failure } from '@podwire/shared/failure/failure';
import { messageOf } from '@podwire/shared/failure/thrown';
import { organizationOf, ROLES } from '@podwire/shared/tls/caller';

import { text } from '../command-line/forms.js';
import { argument, type Verb } from '../command-line/verb.js';
import { sentence } from '../output/report.js';
import { readOptional } from './certificate-files.js';

const CERTIFICATE = argument(
  text('FILE|SERIAL'),
  'PEM file with the certificate, or its serial number in hexadecimal digits',
  'required',
);

export const certificatesRevoke: Verb = {
  name: 'certificates revoke',
  about: 'refuse the certificate of a node, operator or reader from now on',
  details:
    'Every podwire-ipam refuses its calls and ends its streams within 10 s. Undo it with "delete revokedcertificate SERIAL";\n' +
    '"get revokedcertificates" lists them. The authority stays trusted: its other certificates are not affected.',
  positionals: [CERTIFICATE],
  examples: ['certificates revoke operator-alice.crt', 'certificates revoke 3F:0A:91:7C'],
  run: async (input, { ipam, json }) => {
    const certificate = await readCertificate(input.at(CERTIFICATE));
    const answer = await ipam.call(CertificateServiceService.revokeCertificate, { certificate });
    const { serialNumber = '', name = '' } = answer.certificate ?? {};
    return {
      sections: [sentence(`certificate ${serialNumber}${name === '' ? '' : ` of ${name}`} is revoked`)],
      data: () => json.of(CertificateServiceService.revokeCertificate, answer),
    };
  },
};

/** @throws Failure INVALID_REQUEST for neither a file with a certificate nor a serial number */
async function readCertificate(argument: string): Promise<RevokedCertificate> {
  const pem = await readOptional(argument);
  if (pem === undefined) {
    if (/^[0-9A-Fa-f:]+$/.test(argument)) return RevokedCertificate.fromPartial({ serialNumber: argument });
    throw new Failure('INVALID_REQUEST', `${argument}: is neither a file nor a serial number; name one of them`);
  }
  const { serialNumber, subject, validTo } = parse(argument, pem);
  const fields = subject.split('\n');
  const name = fields.join(', ');
  if (!ROLES.some((role) => fields.includes(`O=${organizationOf(role)}`))) {
    const reason = `is the certificate of ${name}, which is no node, reader or operator; name the file of a caller`;
    throw new Failure('INVALID_REQUEST', `${argument}: ${reason}`);
  }
  return RevokedCertificate.fromPartial({ serialNumber, name, expireTime: new Date(validTo) });
}

function parse(argument: string, pem: string | Buffer): X509Certificate {
  try {
    return new X509Certificate(pem);
  } catch (cause) {
    const reason = `is not a certificate in PEM (${messageOf(cause)}); name the file of the certificate`;
    throw new Failure('INVALID_REQUEST', `${argument}: ${reason}`, { cause });
  }
}
