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
      ipamTokenFile: '',
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
      podCidrs: [],
      leasesLow: 4,
      leasesHigh: 12,
      listen: ['unix:/run/podwire/dataplane.sock'],
      callTimeoutMs: 10_000,
      natExclude: 'pools',
      natInterfaces: [],
      natPorts: undefined,
      firewallAccept: true,
      networkPolicies: false,
      policyWaitMs: 5000,
      blockedPorts: [9091, 9094, 9650],
      metricsTokenFile: '',
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

  test('take a token in place of a certificate, but not beside one', () => {
    const env = {
      PODWIRE_NODE_IPAM_ADDRESS: '192.0.2.1:7070',
      PODWIRE_NODE_IPAM_TLS_CA_FILE: '/ca.crt',
      PODWIRE_NODE_IPAM_TOKEN_FILE: '/token',
    };
    expect(readNodeSettings(env, 'node-1').ipamTls).toEqual({
      ca: { setting: 'PODWIRE_NODE_IPAM_TLS_CA_FILE', path: '/ca.crt' },
      identity: undefined,
    });
    const both = { ...env, PODWIRE_NODE_IPAM_TLS_CERT_FILE: '/tls.crt' };
    expect(() => readNodeSettings(both, 'node-1')).toThrow(/IPAM_TOKEN_FILE is set together with a certificate/);
    const withoutCa = { ...env, PODWIRE_NODE_IPAM_TLS_CA_FILE: '' };
    expect(() => readNodeSettings(withoutCa, 'node-1')).toThrow(/IPAM_TLS_CA_FILE is empty, and .* needs TLS/);
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

  test('are not confused with what the kubelet sets for a Service', () => {
    expect(() => readNodeSettings({ PODWIRE_NODE_SERVICE_HOST: '10.0.0.1' }, 'node-1')).not.toThrow();
  });
});

test('the usage shows every setting, its default and its effect', () => {
  const text = nodeUsage('node-1').replace(/\s+/g, ' ');
  for (const { variable, default: usual, about } of Object.values(nodeSettings('node-1')))
    expect(text).toContain(`${variable}${usual === '' ? '' : ` (${usual})`} ${about}`);
});
