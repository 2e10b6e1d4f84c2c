import { CertificateServiceService, type RevokedCertificate } from '@podwire/proto/podwire/ipam/v1/certificate';

import { sentence } from '../output/report.js';
import { age, moment } from '../output/words.js';
import { resource } from './resource.js';

const { listRevokedCertificates, restoreCertificate } = CertificateServiceService;

export const REVOKED_CERTIFICATE = resource<RevokedCertificate>({
  columns: [
    { head: 'SERIAL', cell: ({ serialNumber }) => serialNumber },
    { head: 'HOLDER', cell: ({ name }) => name },
    { head: 'EXPIRES', cell: ({ expireTime }) => moment(expireTime) },
    { head: 'AGE', cell: ({ revokeTime }, nowMs) => age(revokeTime, nowMs) },
  ],
  none: 'revoked certificates: none',
  nameOf: ({ serialNumber }) => serialNumber,
  metadata: ({ revokeTime }) => ({ creationTimestamp: moment(revokeTime) }),
  spec: ({ name, expireTime }) => ({ holder: name, expires: moment(expireTime) }),
  details: ({ serialNumber, name, expireTime, revokeTime }) => [
    {
      kind: 'fields',
      fields: [
        ['Serial number', serialNumber],
        ['Holder', name],
        ['Expires', moment(expireTime)],
        ['Revoked', moment(revokeTime)],
      ],
    },
  ],
  data: (certificate, { json }) => json.of(listRevokedCertificates, { certificates: [certificate] }),
  list: async (_, { ipam }) => (await ipam.call(listRevokedCertificates, {})).certificates,
  notFound: 'CERTIFICATE_NOT_FOUND',
  instead: 'use "podwirectl certificates revoke"',
  deletion: {
    warning: () => 'This certificate would be accepted again until it expires:',
    run: async (serialNumber, _, __, { ipam, json }) => {
      const answer = await ipam.call(restoreCertificate, { serialNumber });
      return {
        sections: [sentence(`certificate ${serialNumber} is accepted again`)],
        data: () => json.of(restoreCertificate, answer),
      };
    },
  },
});
