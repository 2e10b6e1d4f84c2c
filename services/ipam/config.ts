import { violationsFailure, type Violation } from '@podwire/shared/failure/failure';
import { parsePrefix } from '@podwire/shared/net/prefix';
import { readSettings, type Setting, type SettingValues } from '@podwire/shared/runtime/config-reader';
import { LOG_LEVELS } from '@podwire/shared/runtime/log';
import { absolutePath, listOf, oneOf, rpcAddress, text, wholeNumber } from '@podwire/shared/runtime/setting';
import { z } from 'zod';

import { checkPool, type PoolFault, type PoolSpec } from './pools/rules.js';
import { subdomainFault } from './records/names.js';

/** Prefix of the environment variables that are settings of podwire-ipam. */
const PREFIX = 'PODWIRE_IPAM_';

const POOL_ABOUT =
  'Has an effect only at the first start on an empty datastore: a deleted default pool does not come back.';

const endpoint = text.regex(
  /^https?:\/\/(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):\d{1,5}$/,
  'is not http://host:port or https://host:port',
);

const NO_EFFECT = 'No effect with another store than etcd.';

const optionalPath = z.string().regex(/^(\/|$)/, 'is not an absolute path');

/** The settings of podwire-ipam that concern etcd. */
const ETCD_SETTINGS = {
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

/** Every setting of podwire-ipam. */
export const SETTINGS = {
  listen: {
    variable: 'PODWIRE_IPAM_LISTEN',
    schema: listOf(rpcAddress),
    default: 'unix:/run/podwire/ipam.sock',
    about:
      'Where to serve gRPC: unix:/absolute/path (its owner’s alone) or host:port, several with commas between them. ' +
      'Whoever reaches it can give and take every address; at host:port nobody is asked who he is, and nothing is encrypted.',
  },
  store: {
    variable: 'PODWIRE_IPAM_STORE',
    schema: oneOf(['embedded', 'etcd']),
    default: 'embedded',
    about:
      'Kind of datastore: embedded, files of this process alone; etcd, a cluster that any number of replicas share.',
  },
  storeDirectory: {
    variable: 'PODWIRE_IPAM_STORE_DIRECTORY',
    schema: absolutePath,
    default: '/var/lib/podwire/ipam',
    about:
      'Absolute path of the embedded datastore’s directory; made with mode 0700 when it is missing. No effect with another store than embedded.',
  },
  ...ETCD_SETTINGS,
  datastorePrefix: {
    variable: 'PODWIRE_IPAM_DATASTORE_PREFIX',
    schema: text.regex(/^(\/[A-Za-z0-9_.-]+)+$/, 'is not one or more parts that each begin with "/"'),
    default: '/calico',
    about: 'What every key of the datastore begins with, without a slash at its end; Calico’s tools expect /calico.',
  },
  unknownNodes: {
    variable: 'PODWIRE_IPAM_UNKNOWN_NODES',
    schema: oneOf(['by-store', 'register', 'refuse']),
    default: 'by-store',
    about:
      'What becomes of a request for a node that is not registered: register makes its record with the first address, refuse refuses the request; by-store is register for the embedded datastore and refuse for etcd.',
  },
  defaultPoolCidr: {
    variable: 'PODWIRE_IPAM_DEFAULT_POOL_CIDR',
    schema: z.string().superRefine((cidr, context) => {
      const parsed = parsePrefix(cidr);
      if (cidr !== '' && !parsed.ok) context.addIssue({ code: 'custom', message: parsed.fault });
    }),
    default: '',
    about: `Range of the pool made at the first start, such as 10.65.0.0/16; empty for none. ${POOL_ABOUT}`,
  },
  defaultPoolBlockSize: {
    variable: 'PODWIRE_IPAM_DEFAULT_POOL_BLOCK_SIZE',
    schema: wholeNumber(0, 128),
    default: '0',
    about: `Prefix length in bits of that pool’s blocks: 20 to 32 for IPv4, 116 to 128 for IPv6; 0 for 26 or 122. ${POOL_ABOUT}`,
  },
  defaultPoolName: {
    variable: 'PODWIRE_IPAM_DEFAULT_POOL_NAME',
    schema: z.string().superRefine((name, context) => {
      const message = subdomainFault(name);
      if (message !== undefined) context.addIssue({ code: 'custom', message });
    }),
    default: 'default-ipv4-ippool',
    about: `Name of that pool, an RFC 1123 subdomain. ${POOL_ABOUT}`,
  },
  maintenanceIntervalSeconds: {
    variable: 'PODWIRE_IPAM_MAINTENANCE_INTERVAL_SECONDS',
    schema: wholeNumber(0, 86_400),
    default: '300',
    about:
      'Mean time between two searches for what an older Calico left behind (stray handles and affinities, empty blocks without an owner, addresses that have cooled down), which is removed; 1 to 86400, 0 for never. Any number of replicas may do it.',
  },
  historyHours: {
    variable: 'PODWIRE_IPAM_HISTORY_HOURS',
    schema: wholeNumber(0, 87_600),
    default: '168',
    about:
      'For how many hours it is kept who held which address, 0 to 87600; 0 keeps none, and removes what was kept before. Replicas on one datastore should agree.',
  },
  callTimeoutMs: {
    variable: 'PODWIRE_IPAM_CALL_TIMEOUT_MS',
    schema: wholeNumber(1, 600_000),
    default: '10000',
    about: 'Time for a call whose caller set no deadline, in milliseconds, 1 to 600000.',
  },
  drainTimeoutMs: {
    variable: 'PODWIRE_IPAM_DRAIN_TIMEOUT_MS',
    schema: wholeNumber(0, 60_000),
    default: '5000',
    about: 'How long calls under way may go on after SIGTERM before they are cut off, in milliseconds, 0 to 60000.',
  },
  logLevel: {
    variable: 'PODWIRE_IPAM_LOG_LEVEL',
    schema: oneOf(LOG_LEVELS),
    default: 'info',
    about: `Least severe lines that are logged: ${LOG_LEVELS.join(', ')}.`,
  },
} as const;

export type Config = Omit<
  SettingValues<typeof SETTINGS>,
  'defaultPoolCidr' | 'defaultPoolBlockSize' | 'defaultPoolName' | 'unknownNodes'
> & {
  /** Pool to make at the first start; undefined for none. */
  readonly defaultPool: PoolSpec | undefined;
  /** What becomes of requests for nodes that are not registered. */
  readonly unknownNodes: 'register' | 'refuse';
};

/**
 * Reads podwire-ipam's settings from its environment.
 * @throws Failure INVALID_SETTINGS that lists every unknown variable and every nonsense value
 */
export function readConfig(env: Readonly<Record<string, string | undefined>>): Config {
  const values = readSettings({ settings: SETTINGS, prefix: PREFIX, env });
  const {
    defaultPoolCidr: cidr,
    defaultPoolBlockSize: blockSizeBits,
    defaultPoolName: name,
    unknownNodes,
    ...rest
  } = values;
  const faults = etcdFaults(values);
  const checked = cidr === '' ? undefined : checkPool({ name, cidr, blockSizeBits, disabled: false });
  if (checked?.ok === false) faults.push(...checked.faults.map(violationOf));
  if (faults.length > 0) throw violationsFailure('INVALID_SETTINGS', 'Settings refused', faults);
  const byStore = rest.store === 'embedded' ? 'register' : 'refuse';
  return {
    ...rest,
    unknownNodes: unknownNodes === 'by-store' ? byStore : unknownNodes,
    defaultPool: checked?.ok === true ? checked.spec : undefined,
  };
}

/** The rest of a default pool is not set, and so not at fault. */
const POOL_SETTINGS: Partial<Record<PoolFault['field'], { readonly variable: string; readonly about: string }>> = {
  name: SETTINGS.defaultPoolName,
  cidr: SETTINGS.defaultPoolCidr,
  blockSizeBits: SETTINGS.defaultPoolBlockSize,
};

function violationOf({ field, reason }: PoolFault): Violation {
  const setting = POOL_SETTINGS[field];
  return setting ? { field: setting.variable, reason: `${reason}. ${setting.about}` } : { field, reason };
}

type EtcdSettingValues = SettingValues<typeof ETCD_SETTINGS>;

/** What the settings say together, where each alone is right: every fault. */
function etcdFaults(values: EtcdSettingValues): Violation[] {
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
