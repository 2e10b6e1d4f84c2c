import { violationsFailure, type Violation } from '@podwire/shared/failure/failure';
import { parsePrefix } from '@podwire/shared/net/prefix';
import { readSettings, type Setting, type SettingValues } from '@podwire/shared/settings/config-reader';
import { LOG_LEVELS } from '@podwire/shared/runtime/log';
import {
  absolutePath,
  flag,
  listOf,
  metricsTokenSetting,
  oneOf,
  rpcAddress,
  text,
  wholeNumber,
} from '@podwire/shared/settings/setting';
import { SERVER_TLS_SETTINGS, serverTlsFaults } from '@podwire/shared/tls/tls-settings';
import { z } from 'zod';

import { checkPool, type PoolFault, type PoolSpec } from './pools/rules.js';
import { subdomainFault } from './records/names.js';

/** Prefix of the environment variables that are settings of podwire-ipam. */
const PREFIX = 'PODWIRE_IPAM_';

/** The API server's datastore is small. */
const SEGMENTS_HOURS = 24;

const POOL_ABOUT = 'Used only at the first start on an empty datastore; a deleted default pool is not created again.';

const endpoint = text.regex(
  /^https?:\/\/(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):\d{1,5}$/,
  'is not http://host:port or https://host:port',
);

const NO_EFFECT = 'Used only with the etcd store.';

const optionalPath = z.string().regex(/^(\/|$)/, 'is not an absolute path');

/** The settings of podwire-ipam that concern etcd. */
const ETCD_SETTINGS = {
  etcdEndpoints: {
    variable: 'PODWIRE_IPAM_ETCD_ENDPOINTS',
    schema: listOf(endpoint).refine(
      (urls) => new Set(urls.map((url) => url.startsWith('https:'))).size === 1,
      'mixes http and https; use one scheme for all endpoints',
    ),
    default: 'http://127.0.0.1:2379',
    about: `Members of the etcd cluster, separated by commas: http://host:port, or https://host:port for TLS, all with one scheme. The first that answers is used, and another when it fails. ${NO_EFFECT}`,
  },
  etcdCaFile: {
    variable: 'PODWIRE_IPAM_ETCD_CA_FILE',
    schema: optionalPath,
    default: '',
    about: `Absolute path of a PEM file with the authorities that sign etcd's certificate; empty for the authorities of Node.js. All credential files are read again for each new connection; while a replacement is unusable, the previous credentials stay in use. Refused with http. ${NO_EFFECT}`,
  },
  etcdCertFile: {
    variable: 'PODWIRE_IPAM_ETCD_CERT_FILE',
    schema: optionalPath,
    default: '',
    about: `Absolute path of a PEM file with the client certificate for etcd; empty for none. Refused with http, and without its key. ${NO_EFFECT}`,
  },
  etcdKeyFile: {
    variable: 'PODWIRE_IPAM_ETCD_KEY_FILE',
    schema: optionalPath,
    default: '',
    about: `Absolute path of a PEM file with the key of the client certificate; empty for none. Refused without the certificate. ${NO_EFFECT}`,
  },
  etcdUsername: {
    variable: 'PODWIRE_IPAM_ETCD_USERNAME',
    schema: z.string(),
    default: '',
    about: `User name for etcd; empty for none. Refused without a password file. ${NO_EFFECT}`,
  },
  etcdPasswordFile: {
    variable: 'PODWIRE_IPAM_ETCD_PASSWORD_FILE',
    schema: optionalPath,
    default: '',
    about: `Absolute path of a file with that user's password; a trailing newline is ignored. Read again when etcd refuses the user. Refused without a user. ${NO_EFFECT}`,
  },
  etcdRequestTimeoutMs: {
    variable: 'PODWIRE_IPAM_ETCD_REQUEST_TIMEOUT_MS',
    schema: wholeNumber(10, 10_000),
    default: '5000',
    about: `Timeout of one request before another member of etcd is tried, in milliseconds, 10 to 10000. ${NO_EFFECT}`,
  },
  etcdDialTimeoutMs: {
    variable: 'PODWIRE_IPAM_ETCD_DIAL_TIMEOUT_MS',
    schema: wholeNumber(10, 60_000),
    default: '2000',
    about: `Timeout for finding a member of the cluster that answers, in milliseconds, 10 to 60000. ${NO_EFFECT}`,
  },
  etcdMaxTxnOpsCount: {
    variable: 'PODWIRE_IPAM_ETCD_MAX_TXN_OPS',
    schema: wholeNumber(128, 100_000),
    default: '128',
    about: `Maximum operations in one transaction, 128 to 100000: etcd's --max-txn-ops. ${NO_EFFECT}`,
  },
  etcdMaxRequestBytes: {
    variable: 'PODWIRE_IPAM_ETCD_MAX_REQUEST_BYTES',
    schema: wholeNumber(65_536, 104_857_600),
    default: '1572864',
    about: `Maximum size of a request to etcd, in bytes, 65536 to 104857600: etcd's --max-request-bytes. ${NO_EFFECT}`,
  },
} as const satisfies Record<string, Setting<unknown>>;

/** How podwire-ipam and the nodes of a Kubernetes cluster prove themselves to each other. */
const NODE_IDENTITY_SETTINGS = {
  authorityDirectory: {
    variable: 'PODWIRE_IPAM_AUTHORITY_DIRECTORY',
    schema: optionalPath,
    default: '',
    about:
      'Absolute path of a directory with ca.crt and ca.key (ECDSA, curve P-256) of an authority, which is created in an empty one; empty for none. podwire-ipam then issues its own certificate, and accepts certificates of this authority. Read again while the process runs. Refused together with PODWIRE_IPAM_TLS_CERT_FILE.',
  },
  nodeTokens: {
    variable: 'PODWIRE_IPAM_NODE_TOKENS',
    schema: flag,
    default: 'false',
    about:
      'Whether the nodes of the Kubernetes cluster that podwire-ipam runs in may show service account tokens in place of certificates. Needs TLS, and the role in deploy/kubernetes.',
  },
} as const satisfies Record<string, Setting<unknown>>;

/** Every setting of podwire-ipam. */
export const SETTINGS = {
  listen: {
    variable: 'PODWIRE_IPAM_LISTEN',
    schema: listOf(rpcAddress),
    default: 'unix:/run/podwire/ipam.sock',
    about:
      'Where to serve gRPC: unix:/absolute/path, accessible to its owner only, or host:port with TLS and client certificates; several with commas between them.',
  },
  ...SERVER_TLS_SETTINGS,
  ...NODE_IDENTITY_SETTINGS,
  store: {
    variable: 'PODWIRE_IPAM_STORE',
    schema: oneOf(['embedded', 'etcd', 'kubernetes']),
    default: 'embedded',
    about:
      'Kind of datastore: embedded, files of this process; etcd, a cluster shared by any number of replicas; kubernetes, Calico’s custom resources in the API server of the cluster that podwire-ipam runs in, of any number of replicas one at a time.',
  },
  storeDirectory: {
    variable: 'PODWIRE_IPAM_STORE_DIRECTORY',
    schema: absolutePath,
    default: '/var/lib/podwire/ipam',
    about:
      'Absolute path of the embedded datastore’s directory; created with mode 0700. Used only with the embedded store.',
  },
  ...ETCD_SETTINGS,
  podName: {
    variable: 'PODWIRE_IPAM_POD_NAME',
    schema: z.string(),
    default: '',
    about:
      'Name of podwire-ipam’s pod, which gets the label podwire.dev/leader while it serves; empty for none. Used only with the kubernetes store.',
  },
  kubernetesHandles: {
    variable: 'PODWIRE_IPAM_KUBERNETES_HANDLES',
    schema: oneOf(['deferred', 'none']),
    default: 'deferred',
    about:
      'Whether to write an IPAMHandle for each allocation, as calicoctl ipam check expects: deferred, once a pod’s address is 60 s old, at most 5 per second; none, never, and existing ones stay. Used only with the kubernetes store.',
  },
  podAnnotations: {
    variable: 'PODWIRE_IPAM_POD_ANNOTATIONS',
    schema: oneOf(['never', 'always']),
    default: 'never',
    about:
      'Whether to write the addresses of pods into the annotations of Calico’s plugin (cni.projectcalico.org/podIP, podIPs, containerID): always, for Calico’s policy engine, which then knows them before the kubelet reports them, one request per pod and one per release; or never. Used only with the kubernetes store.',
  },
  datastorePrefix: {
    variable: 'PODWIRE_IPAM_DATASTORE_PREFIX',
    schema: text.regex(/^(\/[A-Za-z0-9_.-]+)+$/, 'must be one or more parts that each begin with "/"'),
    default: '/calico',
    about: 'Prefix of every key of the datastore, without a trailing slash; Calico’s tools expect /calico.',
  },
  unknownNodes: {
    variable: 'PODWIRE_IPAM_UNKNOWN_NODES',
    schema: oneOf(['by-store', 'register', 'refuse']),
    default: 'by-store',
    about:
      'How requests for unregistered nodes are handled: register creates the node with its first address; refuse fails the request; by-store is register for the embedded datastore and refuse for the remaining ones.',
  },
  defaultPoolCidr: {
    variable: 'PODWIRE_IPAM_DEFAULT_POOL_CIDR',
    schema: z.string().superRefine((cidr, context) => {
      const parsed = parsePrefix(cidr);
      if (cidr !== '' && !parsed.ok) context.addIssue({ code: 'custom', message: parsed.fault });
    }),
    default: '',
    about: `Range of the pool created at the first start, such as 10.65.0.0/16; empty for none. ${POOL_ABOUT}`,
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
  defaultPoolsFile: {
    variable: 'PODWIRE_IPAM_DEFAULT_POOLS_FILE',
    schema: optionalPath,
    default: '',
    about: `Absolute path of a JSON file with a list of such pools instead, each with name, cidr, blockSize, encapsulation (none, vxlan, vxlan-cross-subnet, ipip, ipip-cross-subnet), natOutgoing, disableBgpExport, nodeSelector; empty for none. Refused together with PODWIRE_IPAM_DEFAULT_POOL_CIDR. ${POOL_ABOUT}`,
  },
  maintenanceIntervalSeconds: {
    variable: 'PODWIRE_IPAM_MAINTENANCE_INTERVAL_SECONDS',
    schema: wholeNumber(0, 86_400),
    default: '300',
    about:
      'Mean interval between garbage collections, in seconds, 1 to 86400; 0 disables them. They remove what older Calico versions leave behind: orphaned handles and affinities, empty blocks without an owner, and addresses whose cool-down is over. Any number of replicas may run them.',
  },
  nodeController: {
    variable: 'PODWIRE_IPAM_NODE_CONTROLLER',
    schema: flag,
    default: 'false',
    about:
      'Whether to follow the Nodes and Pods of the Kubernetes cluster that podwire-ipam runs in: true releases what deleted ones held, and shows in each Node that its network works; needs the role in deploy/kubernetes. Any number of replicas may do it.',
  },
  nodeGraceSeconds: {
    variable: 'PODWIRE_IPAM_NODE_GRACE_SECONDS',
    schema: wholeNumber(1, 604_800),
    default: '900',
    about:
      'How long a Node or Pod must be missing in Kubernetes before its addresses are released, in seconds, 1 to 604800. Used only with PODWIRE_IPAM_NODE_CONTROLLER.',
  },
  networkPolicies: {
    variable: 'PODWIRE_IPAM_NETWORK_POLICIES',
    schema: flag,
    default: 'true',
    about:
      'Whether to compile the network policies of the Kubernetes cluster that podwire-ipam runs in, for its nodes; needs the role in deploy/kubernetes. Used only with PODWIRE_IPAM_NODE_TOKENS or PODWIRE_IPAM_NODE_CONTROLLER.',
  },
  historyHours: {
    variable: 'PODWIRE_IPAM_HISTORY_HOURS',
    schema: wholeNumber(0, 87_600),
    default: '168',
    about: `How long past allocations are kept, in hours, 0 to 87600; 0 keeps none and removes existing ones. With the kubernetes store ${SEGMENTS_HOURS} if it is not set, and no more than 32 MiB. Use the same value on all replicas.`,
  },
  callTimeoutMs: {
    variable: 'PODWIRE_IPAM_CALL_TIMEOUT_MS',
    schema: wholeNumber(1, 600_000),
    default: '10000',
    about: 'Timeout of calls without a deadline, in milliseconds, 1 to 600000.',
  },
  drainTimeoutMs: {
    variable: 'PODWIRE_IPAM_DRAIN_TIMEOUT_MS',
    schema: wholeNumber(0, 60_000),
    default: '5000',
    about:
      'How long calls in flight may continue after SIGTERM before they are cancelled, in milliseconds, 0 to 60000.',
  },
  metricsTokenFile: metricsTokenSetting('PODWIRE_IPAM_'),
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
  /** How requests for unregistered nodes are handled. */
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
  const faults = [...listenerFaults(values), ...etcdFaults(values)];
  if (rest.store === 'kubernetes' && rest.datastorePrefix.includes('_'))
    faults.push({ field: SETTINGS.datastorePrefix.variable, reason: 'has "_", and the kubernetes store takes none' });
  const checked = cidr === '' ? undefined : checkPool({ name, cidr, blockSizeBits, disabled: false });
  if (checked?.ok === false) faults.push(...checked.faults.map(violationOf));
  if (cidr !== '' && rest.defaultPoolsFile !== '') {
    const { variable, about } = SETTINGS.defaultPoolsFile;
    faults.push({ field: variable, reason: `is set together with ${SETTINGS.defaultPoolCidr.variable}. ${about}` });
  }
  if (faults.length > 0) throw violationsFailure('INVALID_SETTINGS', 'Settings refused', faults);
  const byStore = rest.store === 'embedded' ? 'register' : 'refuse';
  const usesDefault = rest.store === 'kubernetes' && env[SETTINGS.historyHours.variable] === undefined;
  return {
    ...rest,
    historyHours: usesDefault ? SEGMENTS_HOURS : rest.historyHours,
    unknownNodes: unknownNodes === 'by-store' ? byStore : unknownNodes,
    defaultPool: checked?.ok === true ? checked.spec : undefined,
  };
}

/** Other fields of the default pool have no setting, so they have no fault. */
const POOL_SETTINGS: Partial<Record<PoolFault['field'], { readonly variable: string; readonly about: string }>> = {
  name: SETTINGS.defaultPoolName,
  cidr: SETTINGS.defaultPoolCidr,
  blockSizeBits: SETTINGS.defaultPoolBlockSize,
};

function violationOf({ field, reason }: PoolFault): Violation {
  const setting = POOL_SETTINGS[field];
  return setting ? { field: setting.variable, reason: `${reason}. ${setting.about}` } : { field, reason };
}

/** Every fault of the settings of the network listeners together. */
function listenerFaults(values: SettingValues<typeof SETTINGS>): Violation[] {
  const { listen, authorityDirectory, nodeTokens, tlsCertFile, tlsKeyFile, tlsClientCaFile } = values;
  const fault = (name: keyof typeof NODE_IDENTITY_SETTINGS, reason: string): Violation[] => {
    const { variable, about } = NODE_IDENTITY_SETTINGS[name];
    return [{ field: variable, reason: `${reason}. ${about}` }];
  };
  if (authorityDirectory === '') {
    const hasNoTls = nodeTokens && tlsCertFile === '';
    return [...(hasNoTls ? fault('nodeTokens', 'is set without TLS') : []), ...serverTlsFaults(listen, values)];
  }
  if ([tlsCertFile, tlsKeyFile, tlsClientCaFile].some((file) => file !== ''))
    return fault('authorityDirectory', 'contradicts PODWIRE_IPAM_TLS_…_FILE: certificates come from files or from it');
  return values.plaintextLoopback
    ? fault('authorityDirectory', 'contradicts PODWIRE_IPAM_PLAINTEXT_LOOPBACK: a listener has TLS or plain text')
    : [];
}

type EtcdSettingValues = SettingValues<typeof ETCD_SETTINGS>;

/** Every fault of combined settings that are valid one by one. */
function etcdFaults(values: EtcdSettingValues): Violation[] {
  const { etcdEndpoints, etcdCaFile, etcdCertFile, etcdKeyFile, etcdUsername, etcdPasswordFile } = values;
  const faults: [wrong: boolean, name: keyof EtcdSettingValues, reason: string][] = [
    [etcdCertFile === '' && etcdKeyFile !== '', 'etcdCertFile', 'is empty although a key is set'],
    [etcdCertFile !== '' && etcdKeyFile === '', 'etcdKeyFile', 'is empty although a certificate is set'],
    [etcdUsername === '' && etcdPasswordFile !== '', 'etcdUsername', 'is empty although a password file is set'],
    [etcdUsername !== '' && etcdPasswordFile === '', 'etcdPasswordFile', 'is empty although a user is set'],
  ];
  if (etcdEndpoints.every((url) => url.startsWith('http:'))) {
    const reason = 'has no effect with http endpoints';
    faults.push([etcdCaFile !== '', 'etcdCaFile', reason], [etcdCertFile !== '', 'etcdCertFile', reason]);
  }
  return faults
    .filter(([wrong]) => wrong)
    .map(([, name, reason]) => {
      const { variable, about } = ETCD_SETTINGS[name];
      return { field: variable, reason: `${reason}. ${about}` };
    });
}
