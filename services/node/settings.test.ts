import { describe, expect, test } from 'vitest';

import { nodeSettings, nodeUsage, readNodeSettings } from './settings.js';

describe('the settings', () => {
  test('have the defaults that they document', () => {
    expect(readNodeSettings({}, 'Node-1.Example')).toEqual({
      nodeName: 'node-1.example',
      ipamAddress: 'unix:/run/podwire/ipam.sock',
      ipamTls: undefined,
      ipamTlsCaFile: '',
      ipamTlsCertFile: '',
      ipamTlsKeyFile: '',
      drainTimeoutMs: 2000,
      logLevel: 'info',
      cniSocket: '/run/podwire/cni.sock',
      addTimeoutMs: 15_000,
      delTimeoutMs: 15_000,
      delServiceTimeoutMs: 2000,
      stateDirectory: '/var/lib/podwire/plugin',
      journalMaxEntriesCount: 10_000,
      cleanUpTimeoutMs: 5000,
      strictStatus: false,
      leasesLow: 4,
      leasesHigh: 12,
      listen: ['unix:/run/podwire/dataplane.sock'],
      callTimeoutMs: 10_000,
      natExclude: 'pools',
      natInterfaces: [],
      natPorts: undefined,
      mtuBytes: 0,
      mtuInterfaces: ['en*', 'wl*', 'ww*', 'sl*', 'ib*', 'eth*', 'wlan*', 'wwan*'],
      nodeIpv4: { type: 'auto' },
      nodeIpv6: { type: 'auto' },
      recordsDirectory: '/run/podwire/attachments',
      procDirectory: '/proc',
      routing: 'native',
      birdPeersFile: '',
      birdAsNumber: 64_512,
      birdConfigFile: '/etc/bird/podwire.conf',
      birdControlSocket: '/run/bird/bird.ctl',
      birdRun: 'external',
      birdProgram: 'bird',
      birdPollMs: 5000,
    });
  });

  test('are taken from the environment', () => {
    const env = {
      PODWIRE_NODE_NAME: 'rack-1.node-7',
      PODWIRE_NODE_IPAM_ADDRESS: 'ipam.podwire:5001',
      PODWIRE_NODE_IPAM_TLS_CA_FILE: '/tls/ca.crt',
      PODWIRE_NODE_IPAM_TLS_CERT_FILE: '/tls/tls.crt',
      PODWIRE_NODE_IPAM_TLS_KEY_FILE: '/tls/tls.key',
      PODWIRE_NODE_DRAIN_TIMEOUT_MS: '0',
      PODWIRE_NODE_LOG_LEVEL: 'debug',
      PODWIRE_NODE_CNI_SOCKET: '/tmp/cni.sock',
      PODWIRE_NODE_ADD_TIMEOUT_MS: '90000',
      PODWIRE_NODE_DEL_TIMEOUT_MS: '1',
      PODWIRE_NODE_DEL_SERVICE_TIMEOUT_MS: '2',
      PODWIRE_NODE_STATE_DIRECTORY: '/var/a',
      PODWIRE_NODE_JOURNAL_MAX_ENTRIES_COUNT: '1',
      PODWIRE_NODE_CLEAN_UP_TIMEOUT_MS: '3',
      PODWIRE_NODE_STRICT_STATUS: 'true',
      PODWIRE_NODE_LISTEN: 'unix:/tmp/a.sock, 127.0.0.1:5000',
      PODWIRE_NODE_CALL_TIMEOUT_MS: '1',
      PODWIRE_NODE_NAT_EXCLUDE: 'pools-and-nodes',
      PODWIRE_NODE_NAT_INTERFACES: 'eth0,wl*',
      PODWIRE_NODE_NAT_PORTS: '1024-2047',
      PODWIRE_NODE_MTU_BYTES: '9000',
      PODWIRE_NODE_MTU_INTERFACES: 'bond*',
      PODWIRE_NODE_IPV4: '192.0.2.7/24',
      PODWIRE_NODE_IPV6: 'none',
      PODWIRE_NODE_RECORDS_DIRECTORY: '/run/a/b',
      PODWIRE_NODE_LEASES_LOW: '0',
      PODWIRE_NODE_LEASES_HIGH: '128',
      PODWIRE_NODE_PROC_DIRECTORY: '/host/proc',
      PODWIRE_ROUTING: 'bird',
      PODWIRE_BIRD_PEERS_FILE: '/a/peers.yaml',
      PODWIRE_BIRD_AS_NUMBER: '4294967295',
      PODWIRE_BIRD_CONFIG_FILE: '/a/bird.conf',
      PODWIRE_BIRD_CONTROL_SOCKET: '/a/bird.ctl',
      PODWIRE_BIRD_RUN: 'child',
      PODWIRE_BIRD_PROGRAM: '/a/bird',
      PODWIRE_BIRD_POLL_MS: '100',
    };
    expect(readNodeSettings(env, 'node-1')).toEqual({
      nodeName: 'rack-1.node-7',
      ipamAddress: 'ipam.podwire:5001',
      ipamTls: {
        ca: { setting: 'PODWIRE_NODE_IPAM_TLS_CA_FILE', path: '/tls/ca.crt' },
        identity: {
          certificate: { setting: 'PODWIRE_NODE_IPAM_TLS_CERT_FILE', path: '/tls/tls.crt' },
          key: { setting: 'PODWIRE_NODE_IPAM_TLS_KEY_FILE', path: '/tls/tls.key' },
        },
      },
      ipamTlsCaFile: '/tls/ca.crt',
      ipamTlsCertFile: '/tls/tls.crt',
      ipamTlsKeyFile: '/tls/tls.key',
      drainTimeoutMs: 0,
      logLevel: 'debug',
      cniSocket: '/tmp/cni.sock',
      addTimeoutMs: 90_000,
      delTimeoutMs: 1,
      delServiceTimeoutMs: 2,
      stateDirectory: '/var/a',
      journalMaxEntriesCount: 1,
      cleanUpTimeoutMs: 3,
      strictStatus: true,
      listen: ['unix:/tmp/a.sock', '127.0.0.1:5000'],
      callTimeoutMs: 1,
      natExclude: 'pools-and-nodes',
      natInterfaces: ['eth0', 'wl*'],
      natPorts: { first: 1024, last: 2047 },
      mtuBytes: 9000,
      mtuInterfaces: ['bond*'],
      nodeIpv4: { type: 'address', address: { family: 4, value: 0xc0000207n }, length: 24 },
      nodeIpv6: { type: 'none' },
      recordsDirectory: '/run/a/b',
      leasesLow: 0,
      leasesHigh: 128,
      procDirectory: '/host/proc',
      routing: 'bird',
      birdPeersFile: '/a/peers.yaml',
      birdAsNumber: 4_294_967_295,
      birdConfigFile: '/a/bird.conf',
      birdControlSocket: '/a/bird.ctl',
      birdRun: 'child',
      birdProgram: '/a/bird',
      birdPollMs: 100,
    });
  });

  test('refuses to refill leases at the high mark or above it', () => {
    const read = (low: string, high: string) =>
      readNodeSettings({ PODWIRE_NODE_LEASES_LOW: low, PODWIRE_NODE_LEASES_HIGH: high }, 'node-1');
    expect(() => read('12', '12')).toThrow(/PODWIRE_NODE_LEASES_LOW.*must be less/);
    expect([read('11', '12').leasesLow, read('4', '0').leasesHigh]).toEqual([11, 0]);
  });

  test.each(['Node', '-a', 'a.', 'a..b', 'a_b', 'a'.repeat(254)])('reject %j as the name of a node', (name) => {
    expect(() => readNodeSettings({ PODWIRE_NODE_NAME: name }, 'node-1')).toThrow(/PODWIRE_NODE_NAME/);
  });

  test('require a node name where the host’s name is not valid in Kubernetes', () => {
    expect(() => readNodeSettings({}, '(none)')).toThrow(/PODWIRE_NODE_NAME/);
    expect(readNodeSettings({ PODWIRE_NODE_NAME: 'a' }, '(none)').nodeName).toBe('a');
  });

  test.each([
    ['a host beyond this machine', '192.0.2.1:7070', {}],
    ['some files only', '127.0.0.1:7070', { PODWIRE_NODE_IPAM_TLS_CA_FILE: '/tls/ca.crt' }],
  ])('refuse %s without every TLS file', (_, address, rest) => {
    const env = { PODWIRE_NODE_IPAM_ADDRESS: address, ...rest };
    expect(() => readNodeSettings(env, 'node-1')).toThrow(/PODWIRE_NODE_IPAM_TLS_KEY_FILE is empty, and .* needs TLS/);
  });

  test.each(['0.0.0.0:7070', '192.0.2.1:7070', 'node-1:7070'])(
    'refuse to serve at %s, without authentication',
    (address) => {
      expect(() => readNodeSettings({ PODWIRE_NODE_LISTEN: address }, 'node-1')).toThrow(
        /is neither a unix socket nor a loopback/,
      );
    },
  );

  test('that are invalid or unknown are reported all at once', () => {
    const wrong = Object.fromEntries(Object.values(nodeSettings('node-1')).map(({ variable }) => [variable, '-1']));
    const fields = [...Object.keys(wrong), 'PODWIRE_NODE_COLOUR'];
    expect(() => readNodeSettings({ ...wrong, PODWIRE_NODE_COLOUR: 'blue' }, 'node-1')).toThrow(
      expect.objectContaining({
        code: 'INVALID_SETTINGS',
        violations: expect.arrayContaining(fields.map((field) => expect.objectContaining({ field }))),
      }),
    );
  });

  test.each([
    ['PODWIRE_PLUGIN_SOCKET', 'set PODWIRE_NODE_CNI_SOCKET instead'],
    ['PODWIRE_PLUGIN_NODE_NAME', 'set PODWIRE_NODE_NAME instead'],
    ['PODWIRE_PLUGIN_STATE_DIRECTORY', 'set PODWIRE_NODE_STATE_DIRECTORY instead'],
    ['PODWIRE_PLUGIN_ADD_TIMEOUT_MS', 'set PODWIRE_NODE_ADD_TIMEOUT_MS instead'],
    ['PODWIRE_PLUGIN_DATAPLANE_ADDRESS', 'has no effect any more: remove it'],
    ['PODWIRE_DATAPLANE_NODE_NAME', 'set PODWIRE_NODE_NAME instead'],
    ['PODWIRE_DATAPLANE_NODE_IPV4', 'set PODWIRE_NODE_IPV4 instead'],
    ['PODWIRE_DATAPLANE_NODE_IPV6', 'set PODWIRE_NODE_IPV6 instead'],
    ['PODWIRE_DATAPLANE_STATE_DIRECTORY', 'set PODWIRE_NODE_RECORDS_DIRECTORY instead'],
    ['PODWIRE_DATAPLANE_IPAM_ADDRESS', 'set PODWIRE_NODE_IPAM_ADDRESS instead'],
    ['PODWIRE_DATAPLANE_COLOUR', 'has no effect any more: remove it'],
  ])('of a former release are refused, with the one to set: %s', (variable, text) => {
    expect(() => readNodeSettings({ [variable]: 'x' }, 'node-1')).toThrow(
      expect.objectContaining({ message: expect.stringContaining(`${variable} is a setting of a former release`) }),
    );
    expect(() => readNodeSettings({ [variable]: 'x' }, 'node-1')).toThrow(text);
  });

  test('are not confused with what the kubelet sets for a Service', () => {
    expect(() => readNodeSettings({ PODWIRE_DATAPLANE_SERVICE_HOST: '10.0.0.1' }, 'node-1')).not.toThrow();
  });
});

test('the usage shows every setting, its default and its effect', () => {
  const text = nodeUsage('node-1').replace(/\s+/g, ' ');
  for (const { variable, default: usual, about } of Object.values(nodeSettings('node-1')))
    expect(text).toContain(`${variable}${usual === '' ? '' : ` (${usual})`} ${about}`);
});
