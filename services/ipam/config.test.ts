import { Failure } from '@podwire/shared/failure/failure';
import { formatPrefix } from '@podwire/shared/net/prefix';
import { describe, expect, test } from 'vitest';

import { readConfig, SETTINGS } from './config.js';

function refusal(env: Readonly<Record<string, string>>): Failure {
  try {
    readConfig(env);
  } catch (error) {
    if (error instanceof Failure) return error;
    throw error;
  }
  throw new Error('it was not refused');
}

test('an empty environment gives the documented defaults', () => {
  expect(readConfig({ PATH: '/bin', PODWIRE_NODE_CNI_SOCKET: '/x' })).toEqual({
    listen: ['unix:/run/podwire/ipam.sock'],
    tlsCertFile: '',
    tlsKeyFile: '',
    tlsClientCaFile: '',
    plaintextLoopback: false,
    authorityDirectory: '',
    nodeTokens: false,
    store: 'embedded',
    storeDirectory: '/var/lib/podwire/ipam',
    etcdEndpoints: ['http://127.0.0.1:2379'],
    etcdCaFile: '',
    etcdCertFile: '',
    etcdKeyFile: '',
    etcdUsername: '',
    etcdPasswordFile: '',
    etcdRequestTimeoutMs: 5000,
    etcdDialTimeoutMs: 2000,
    etcdMaxTxnOpsCount: 128,
    etcdMaxRequestBytes: 1_572_864,
    podName: '',
    kubernetesHandles: 'deferred',
    podAnnotations: 'never',
    datastorePrefix: '/calico',
    unknownNodes: 'register',
    nodeController: false,
    nodeGraceSeconds: 900,
    networkPolicies: true,
    historyHours: 168,
    callTimeoutMs: 10_000,
    drainTimeoutMs: 5000,
    maintenanceIntervalSeconds: 300,
    metricsTokenFile: '',
    logLevel: 'info',
    defaultPool: undefined,
    defaultPoolsFile: '',
  });
});

test('every setting has a variable of the process, and a description', () => {
  for (const { variable, about } of Object.values(SETTINGS)) {
    expect(variable).toMatch(/^PODWIRE_IPAM_[A-Z_]+$/);
    expect(about.length).toBeGreaterThan(20);
  }
});

test('every setting is read', () => {
  const config = readConfig({
    PODWIRE_IPAM_LISTEN: 'unix:/tmp/a.sock, 127.0.0.1:0',
    PODWIRE_IPAM_PLAINTEXT_LOOPBACK: 'true',
    PODWIRE_IPAM_STORE: 'etcd',
    PODWIRE_IPAM_STORE_DIRECTORY: '/tmp/store',
    PODWIRE_IPAM_ETCD_ENDPOINTS: 'https://a.example:2379, https://[::1]:2380',
    PODWIRE_IPAM_ETCD_CA_FILE: '/tmp/ca',
    PODWIRE_IPAM_ETCD_CERT_FILE: '/tmp/cert',
    PODWIRE_IPAM_ETCD_KEY_FILE: '/tmp/key',
    PODWIRE_IPAM_ETCD_USERNAME: 'podwire',
    PODWIRE_IPAM_ETCD_PASSWORD_FILE: '/tmp/password',
    PODWIRE_IPAM_ETCD_REQUEST_TIMEOUT_MS: '100',
    PODWIRE_IPAM_ETCD_DIAL_TIMEOUT_MS: '60000',
    PODWIRE_IPAM_ETCD_MAX_TXN_OPS: '1000',
    PODWIRE_IPAM_ETCD_MAX_REQUEST_BYTES: '65536',
    PODWIRE_IPAM_POD_NAME: 'ipam-1',
    PODWIRE_IPAM_KUBERNETES_HANDLES: 'none',
    PODWIRE_IPAM_POD_ANNOTATIONS: 'always',
    PODWIRE_IPAM_DATASTORE_PREFIX: '/other/calico',
    PODWIRE_IPAM_UNKNOWN_NODES: 'register',
    PODWIRE_IPAM_DEFAULT_POOL_CIDR: 'fd00::/64',
    PODWIRE_IPAM_DEFAULT_POOL_BLOCK_SIZE: '120',
    PODWIRE_IPAM_DEFAULT_POOL_NAME: 'pods',
    PODWIRE_IPAM_DEFAULT_POOLS_FILE: '',
    PODWIRE_IPAM_NODE_CONTROLLER: 'true',
    PODWIRE_IPAM_NODE_GRACE_SECONDS: '60',
    PODWIRE_IPAM_NETWORK_POLICIES: 'false',
    PODWIRE_IPAM_HISTORY_HOURS: '0',
    PODWIRE_IPAM_CALL_TIMEOUT_MS: '1',
    PODWIRE_IPAM_DRAIN_TIMEOUT_MS: '0',
    PODWIRE_IPAM_MAINTENANCE_INTERVAL_SECONDS: '0',
    PODWIRE_IPAM_LOG_LEVEL: 'debug',
  });
  const { defaultPool, ...rest } = config;
  expect(rest).toEqual({
    listen: ['unix:/tmp/a.sock', '127.0.0.1:0'],
    tlsCertFile: '',
    tlsKeyFile: '',
    tlsClientCaFile: '',
    plaintextLoopback: true,
    authorityDirectory: '',
    nodeTokens: false,
    store: 'etcd',
    storeDirectory: '/tmp/store',
    etcdEndpoints: ['https://a.example:2379', 'https://[::1]:2380'],
    etcdCaFile: '/tmp/ca',
    etcdCertFile: '/tmp/cert',
    etcdKeyFile: '/tmp/key',
    etcdUsername: 'podwire',
    etcdPasswordFile: '/tmp/password',
    etcdRequestTimeoutMs: 100,
    etcdDialTimeoutMs: 60_000,
    etcdMaxTxnOpsCount: 1000,
    etcdMaxRequestBytes: 65_536,
    podName: 'ipam-1',
    kubernetesHandles: 'none',
    podAnnotations: 'always',
    datastorePrefix: '/other/calico',
    unknownNodes: 'register',
    defaultPoolsFile: '',
    nodeController: true,
    nodeGraceSeconds: 60,
    networkPolicies: false,
    historyHours: 0,
    callTimeoutMs: 1,
    drainTimeoutMs: 0,
    maintenanceIntervalSeconds: 0,
    metricsTokenFile: '',
    logLevel: 'debug',
  });
  expect(defaultPool).toMatchObject({ name: 'pods', blockSizeBits: 120, disabled: false });
  expect(formatPrefix(defaultPool!.prefix)).toBe('fd00::/64');
});

test.each([
  ['embedded', 'register'],
  ['etcd', 'refuse'],
])('the default for unregistered nodes with the %s store: %s', (store, expected) => {
  expect(readConfig({ PODWIRE_IPAM_STORE: store }).unknownNodes).toBe(expected);
});

test.each([
  ['embedded', 168],
  ['etcd', 168],
  ['kubernetes', 24],
])('the default for past allocations with the %s store: %i hours', (store, expected) => {
  const env = { PODWIRE_IPAM_STORE: store };
  expect(readConfig(env).historyHours).toBe(expected);
  expect(readConfig({ ...env, PODWIRE_IPAM_HISTORY_HOURS: '168' }).historyHours).toBe(168);
});

describe('the network listener', () => {
  const tls = {
    PODWIRE_IPAM_TLS_CERT_FILE: '/tls/tls.crt',
    PODWIRE_IPAM_TLS_KEY_FILE: '/tls/tls.key',
    PODWIRE_IPAM_TLS_CLIENT_CA_FILE: '/tls/ca.crt',
  };
  const plaintext = { PODWIRE_IPAM_PLAINTEXT_LOOPBACK: 'true' };

  test.each([
    ['a unix socket', 'unix:/run/ipam.sock', {}],
    ['any address with TLS', '0.0.0.0:7070', tls],
    ['a loopback address with TLS', '[::1]:7070', tls],
    ['a loopback address in plain text, when allowed', 'unix:/run/ipam.sock,127.0.0.1:7070,localhost:7071', plaintext],
  ])('may be %s', (_, listen, rest) => {
    expect(readConfig({ PODWIRE_IPAM_LISTEN: listen, ...rest }).listen).toEqual(listen.split(','));
  });

  test.each([
    ['an address in plain text', '192.0.2.1:7070', {}, Object.keys(tls)],
    ['a loopback address in plain text that is not allowed', '127.0.0.1:7070', {}, Object.keys(tls)],
    ['an address beyond loopback in plain text', '127.0.0.1:7070,192.0.2.1:7070', plaintext, Object.keys(tls)],
    [
      'TLS without the authorities of the callers',
      '192.0.2.1:7070',
      { ...tls, PODWIRE_IPAM_TLS_CLIENT_CA_FILE: '' },
      ['PODWIRE_IPAM_TLS_CLIENT_CA_FILE'],
    ],
    ['TLS and plain text', '127.0.0.1:7070', { ...tls, ...plaintext }, ['PODWIRE_IPAM_PLAINTEXT_LOOPBACK']],
  ])('is not %s', (_, listen, rest, fields) => {
    const { violations } = refusal({ PODWIRE_IPAM_LISTEN: listen, ...rest });
    expect(violations.map(({ field }) => field)).toEqual(fields);
  });
});

describe('invalid values are refused', () => {
  test('in every variable at once', () => {
    const wrong = {
      PODWIRE_IPAM_LISTEN: 'nowhere',
      PODWIRE_IPAM_STORE: 'paper',
      PODWIRE_IPAM_STORE_DIRECTORY: 'relative',
      PODWIRE_IPAM_ETCD_ENDPOINTS: 'http://a:1,https://b:2',
      PODWIRE_IPAM_ETCD_CA_FILE: 'ca',
      PODWIRE_IPAM_ETCD_CERT_FILE: 'cert',
      PODWIRE_IPAM_ETCD_KEY_FILE: 'key',
      PODWIRE_IPAM_ETCD_PASSWORD_FILE: 'password',
      PODWIRE_IPAM_ETCD_REQUEST_TIMEOUT_MS: '9',
      PODWIRE_IPAM_ETCD_DIAL_TIMEOUT_MS: 'soon',
      PODWIRE_IPAM_ETCD_MAX_TXN_OPS: '127',
      PODWIRE_IPAM_ETCD_MAX_REQUEST_BYTES: '1.5MiB',
      PODWIRE_IPAM_DATASTORE_PREFIX: '/calico/',
      PODWIRE_IPAM_UNKNOWN_NODES: 'sometimes',
      PODWIRE_IPAM_DEFAULT_POOL_CIDR: 'y',
      PODWIRE_IPAM_DEFAULT_POOL_BLOCK_SIZE: '1.5',
      PODWIRE_IPAM_DEFAULT_POOL_NAME: 'Not_A_Name',
      PODWIRE_IPAM_HISTORY_HOURS: '87601',
      PODWIRE_IPAM_CALL_TIMEOUT_MS: '0',
      PODWIRE_IPAM_DRAIN_TIMEOUT_MS: 'soon',
      PODWIRE_IPAM_MAINTENANCE_INTERVAL_SECONDS: '1.5',
      PODWIRE_IPAM_LOG_LEVEL: 'loud',
      PODWIRE_IPAM_LISTN: 'x',
    };
    const failure = refusal(wrong);
    expect(failure.code).toBe('INVALID_SETTINGS');
    expect(failure.violations.map(({ field }) => field).sort()).toEqual(Object.keys(wrong).sort());
  });

  test.each<[Readonly<Record<string, string>>, RegExp]>([
    [{ PODWIRE_IPAM_DEFAULT_POOL_CIDR: '10.0.0.1/16' }, /DEFAULT_POOL_CIDR.*host bits/],
    [
      { PODWIRE_IPAM_DEFAULT_POOL_CIDR: '10.0.0.0/16', PODWIRE_IPAM_DEFAULT_POOLS_FILE: '/pools.json' },
      /DEFAULT_POOLS_FILE.*together/,
    ],
    [{ PODWIRE_IPAM_DEFAULT_POOL_CIDR: '10.0.0.0/27' }, /DEFAULT_POOL_CIDR.*smaller than one block/],
    [{ PODWIRE_IPAM_DEFAULT_POOL_CIDR: '169.254.0.0/16' }, /DEFAULT_POOL_CIDR.*link-local/],
    [
      { PODWIRE_IPAM_DEFAULT_POOL_CIDR: '10.0.0.0/16', PODWIRE_IPAM_DEFAULT_POOL_BLOCK_SIZE: '122' },
      /DEFAULT_POOL_BLOCK_SIZE.*from 20 to 32/,
    ],
  ])('in an impossible default pool: %o', (env, expected) => {
    expect(refusal(env).message).toMatch(expected);
  });

  test.each<[Readonly<Record<string, string>>, readonly string[]]>([
    [{ ENDPOINTS: '127.0.0.1:2379' }, ['ENDPOINTS']],
    [{ ENDPOINTS: 'http://a:1,' }, ['ENDPOINTS']],
    [{ ENDPOINTS: 'https://a:1', KEY_FILE: '/k', USERNAME: 'u' }, ['CERT_FILE', 'PASSWORD_FILE']],
    [{ ENDPOINTS: 'https://a:1', CERT_FILE: '/c', PASSWORD_FILE: '/p' }, ['KEY_FILE', 'USERNAME']],
    [{ CA_FILE: '/a', CERT_FILE: '/c', KEY_FILE: '/k' }, ['CA_FILE', 'CERT_FILE']],
  ])('in contradictory settings of etcd: %o', (settings, wrong) => {
    const named = (name: string): string => `PODWIRE_IPAM_ETCD_${name}`;
    const env = Object.fromEntries(Object.entries(settings).map(([name, value]) => [named(name), value]));
    const violations = refusal({ ...env, PODWIRE_IPAM_STORE: 'etcd' }).violations;
    expect(violations.map(({ field }) => field).sort()).toEqual(wrong.map(named).sort());
  });

  test('of every kind, all at once', () => {
    const env = { PODWIRE_IPAM_ETCD_USERNAME: 'u', PODWIRE_IPAM_DEFAULT_POOL_CIDR: '10.0.0.0/27' };
    expect(refusal(env).violations).toHaveLength(2);
  });
});

test('the help names the store that a setting applies to', () => {
  for (const { variable, about } of Object.values(SETTINGS)) {
    if (variable.startsWith('PODWIRE_IPAM_ETCD_')) expect(about).toContain('Used only with the etcd store.');
  }
  expect(SETTINGS.storeDirectory.about).toContain('Used only with the embedded store.');
});
