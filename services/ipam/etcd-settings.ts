import type { Violation } from '@podwire/shared/failure/failure';
import type { Setting, SettingValues } from '@podwire/shared/runtime/config-reader';
import { listOf, text, wholeNumber } from '@podwire/shared/runtime/setting';
import { z } from 'zod';

const NO_EFFECT = 'No effect with another store than etcd.';

const endpoint = text.regex(
  /^https?:\/\/(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):\d{1,5}$/,
  'is not http://host:port or https://host:port',
);

const optionalPath = z.string().regex(/^(\/|$)/, 'is not an absolute path');

/** The settings of podwire-ipam that concern etcd. */
export const ETCD_SETTINGS = {
  etcdEndpoints: {
    variable: 'PODWIRE_IPAM_ETCD_ENDPOINTS',
    schema: listOf(endpoint).refine(
      (urls) => new Set(urls.map((url) => url.startsWith('https:'))).size === 1,
      'has both http and https: they share their certificates',
    ),
    default: 'http://127.0.0.1:2379',
    about: `Members of the etcd cluster, with commas between them: http://host:port, or https://host:port for TLS, all alike. The first that answers is used, and another when it fails. ${NO_EFFECT}`,
  },
  etcdCaFile: {
    variable: 'PODWIRE_IPAM_ETCD_CA_FILE',
    schema: optionalPath,
    default: '',
    about: `Absolute path of a PEM file with the authorities that etcd's certificate is checked with; empty for those of Node.js. Read again for each new connection to the cluster, as all such files; while they are being replaced and cannot be used, those read before are. Refused with http. ${NO_EFFECT}`,
  },
  etcdCertFile: {
    variable: 'PODWIRE_IPAM_ETCD_CERT_FILE',
    schema: optionalPath,
    default: '',
    about: `Absolute path of a PEM file with the certificate that podwire-ipam shows to etcd; empty for none. Refused with http, and without its key. ${NO_EFFECT}`,
  },
  etcdKeyFile: {
    variable: 'PODWIRE_IPAM_ETCD_KEY_FILE',
    schema: optionalPath,
    default: '',
    about: `Absolute path of a PEM file with the key of that certificate; empty for none. Refused without the certificate. ${NO_EFFECT}`,
  },
  etcdUsername: {
    variable: 'PODWIRE_IPAM_ETCD_USERNAME',
    schema: z.string(),
    default: '',
    about: `User of etcd; empty for none. Refused without a password's file. ${NO_EFFECT}`,
  },
  etcdPasswordFile: {
    variable: 'PODWIRE_IPAM_ETCD_PASSWORD_FILE',
    schema: optionalPath,
    default: '',
    about: `Absolute path of a file with that user's password; a newline at its end does not count. Read again when etcd refuses the user. Refused without a user. ${NO_EFFECT}`,
  },
  etcdRequestTimeoutMs: {
    variable: 'PODWIRE_IPAM_ETCD_REQUEST_TIMEOUT_MS',
    schema: wholeNumber(10, 10_000),
    default: '5000',
    about: `How long etcd may take to answer one request before the next of its members is asked, in milliseconds, 10 to 10000. ${NO_EFFECT}`,
  },
  etcdDialTimeoutMs: {
    variable: 'PODWIRE_IPAM_ETCD_DIAL_TIMEOUT_MS',
    schema: wholeNumber(10, 60_000),
    default: '2000',
    about: `How long to look for a member of the cluster that answers before a request fails, in milliseconds, 10 to 60000. ${NO_EFFECT}`,
  },
  etcdMaxTxnOpsCount: {
    variable: 'PODWIRE_IPAM_ETCD_MAX_TXN_OPS',
    schema: wholeNumber(128, 100_000),
    default: '128',
    about: `How many operations etcd allows in one transaction, 128 to 100000: its --max-txn-ops. ${NO_EFFECT}`,
  },
  etcdMaxRequestBytes: {
    variable: 'PODWIRE_IPAM_ETCD_MAX_REQUEST_BYTES',
    schema: wholeNumber(65_536, 104_857_600),
    default: '1572864',
    about: `How large a request to etcd may be, in bytes, 65536 to 104857600: its --max-request-bytes. ${NO_EFFECT}`,
  },
} as const satisfies Record<string, Setting<unknown>>;

export type EtcdSettingValues = SettingValues<typeof ETCD_SETTINGS>;

/** What the settings say together, where each alone is right: every fault. */
export function etcdFaults(values: EtcdSettingValues): Violation[] {
  const { etcdEndpoints, etcdCaFile, etcdCertFile, etcdKeyFile, etcdUsername, etcdPasswordFile } = values;
  const faults: [wrong: boolean, name: keyof EtcdSettingValues, reason: string][] = [
    [etcdCertFile === '' && etcdKeyFile !== '', 'etcdCertFile', 'is empty, but there is a key'],
    [etcdCertFile !== '' && etcdKeyFile === '', 'etcdKeyFile', 'is empty, but there is a certificate'],
    [etcdUsername === '' && etcdPasswordFile !== '', 'etcdUsername', "is empty, but there is a password's file"],
    [etcdUsername !== '' && etcdPasswordFile === '', 'etcdPasswordFile', 'is empty, but there is a user'],
  ];
  if (etcdEndpoints.every((url) => url.startsWith('http:'))) {
    const reason = 'has no effect, as the endpoints have http';
    faults.push([etcdCaFile !== '', 'etcdCaFile', reason], [etcdCertFile !== '', 'etcdCertFile', reason]);
  }
  return faults
    .filter(([wrong]) => wrong)
    .map(([, name, reason]) => {
      const { variable, about } = ETCD_SETTINGS[name];
      return { field: variable, reason: `${reason}. ${about}` };
    });
}
