import { describe, expect, test } from 'vitest';

import { dataplaneSettings, dataplaneUsage, interfacePatterns, portRange, readConfig } from './config.js';

describe('the settings', () => {
  test('have the defaults that they document', () => {
    expect(readConfig({}, 'Node-1')).toEqual({
      listen: ['unix:/run/podwire/dataplane.sock'],
      ipamTls: undefined,
      ipamTlsCaFile: '',
      ipamTlsCertFile: '',
      ipamTlsKeyFile: '',
      callTimeoutMs: 10_000,
      drainTimeoutMs: 5000,
      natExclude: 'pools',
      natInterfaces: [],
      natPorts: undefined,
      mtuBytes: 0,
      mtuInterfaces: ['en*', 'wl*', 'ww*', 'sl*', 'ib*', 'eth*', 'wlan*', 'wwan*'],
      logLevel: 'info',
      nodeName: 'node-1',
      ipamAddress: 'unix:/run/podwire/ipam.sock',
      nodeIpv4: { type: 'auto' },
      nodeIpv6: { type: 'auto' },
      stateDirectory: '/run/podwire/attachments',
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
      PODWIRE_DATAPLANE_LISTEN: 'unix:/tmp/a.sock, 127.0.0.1:5000',
      PODWIRE_DATAPLANE_CALL_TIMEOUT_MS: '1',
      PODWIRE_DATAPLANE_DRAIN_TIMEOUT_MS: '0',
      PODWIRE_DATAPLANE_NAT_EXCLUDE: 'pools-and-nodes',
      PODWIRE_DATAPLANE_NAT_INTERFACES: 'eth0,wl*',
      PODWIRE_DATAPLANE_NAT_PORTS: '1024-2047',
      PODWIRE_DATAPLANE_MTU_BYTES: '9000',
      PODWIRE_DATAPLANE_MTU_INTERFACES: 'bond*',
      PODWIRE_DATAPLANE_LOG_LEVEL: 'debug',
      PODWIRE_DATAPLANE_NODE_NAME: 'rack-1.node-7',
      PODWIRE_DATAPLANE_IPAM_ADDRESS: 'ipam.podwire:5001',
      PODWIRE_DATAPLANE_IPAM_TLS_CA_FILE: '/tls/ca.crt',
      PODWIRE_DATAPLANE_IPAM_TLS_CERT_FILE: '/tls/tls.crt',
      PODWIRE_DATAPLANE_IPAM_TLS_KEY_FILE: '/tls/tls.key',
      PODWIRE_DATAPLANE_NODE_IPV4: '192.0.2.7/24',
      PODWIRE_DATAPLANE_NODE_IPV6: 'none',
      PODWIRE_DATAPLANE_STATE_DIRECTORY: '/run/a/b',
      PODWIRE_DATAPLANE_PROC_DIRECTORY: '/host/proc',
      PODWIRE_ROUTING: 'bird',
      PODWIRE_BIRD_PEERS_FILE: '/a/peers.yaml',
      PODWIRE_BIRD_AS_NUMBER: '4294967295',
      PODWIRE_BIRD_CONFIG_FILE: '/a/bird.conf',
      PODWIRE_BIRD_CONTROL_SOCKET: '/a/bird.ctl',
      PODWIRE_BIRD_RUN: 'child',
      PODWIRE_BIRD_PROGRAM: '/a/bird',
      PODWIRE_BIRD_POLL_MS: '100',
    };
    expect(readConfig(env, 'node-1')).toEqual({
      listen: ['unix:/tmp/a.sock', '127.0.0.1:5000'],
      callTimeoutMs: 1,
      drainTimeoutMs: 0,
      natExclude: 'pools-and-nodes',
      natInterfaces: ['eth0', 'wl*'],
      natPorts: { first: 1024, last: 2047 },
      mtuBytes: 9000,
      mtuInterfaces: ['bond*'],
      logLevel: 'debug',
      nodeName: 'rack-1.node-7',
      ipamAddress: 'ipam.podwire:5001',
      ipamTls: {
        ca: { setting: 'PODWIRE_DATAPLANE_IPAM_TLS_CA_FILE', path: '/tls/ca.crt' },
        identity: {
          certificate: { setting: 'PODWIRE_DATAPLANE_IPAM_TLS_CERT_FILE', path: '/tls/tls.crt' },
          key: { setting: 'PODWIRE_DATAPLANE_IPAM_TLS_KEY_FILE', path: '/tls/tls.key' },
        },
      },
      ipamTlsCaFile: '/tls/ca.crt',
      ipamTlsCertFile: '/tls/tls.crt',
      ipamTlsKeyFile: '/tls/tls.key',
      nodeIpv4: { type: 'address', address: { family: 4, value: 0xc0000207n }, length: 24 },
      nodeIpv6: { type: 'none' },
      stateDirectory: '/run/a/b',
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

  test.each(['Node', '-a', 'a.', 'a..b', 'a_b', 'a'.repeat(254)])('reject %j as the name of a node', (name) => {
    const env = { PODWIRE_DATAPLANE_NODE_NAME: name };
    expect(() => readConfig(env, 'node-1')).toThrow(/PODWIRE_DATAPLANE_NODE_NAME/);
  });

  test.each([
    ['a host beyond this machine', '192.0.2.1:7070', {}],
    ['some files only', '127.0.0.1:7070', { PODWIRE_DATAPLANE_IPAM_TLS_CA_FILE: '/tls/ca.crt' }],
  ])('refuse %s without every TLS file', (_, address, rest) => {
    const env = { PODWIRE_DATAPLANE_IPAM_ADDRESS: address, ...rest };
    expect(() => readConfig(env, 'node-1')).toThrow(/PODWIRE_DATAPLANE_IPAM_TLS_KEY_FILE is empty, and .* needs TLS/);
  });

  test.each(['0.0.0.0:7070', '192.0.2.1:7070', 'node-1:7070'])(
    'refuse to serve at %s, without authentication',
    (address) => {
      expect(() => readConfig({ PODWIRE_DATAPLANE_LISTEN: address }, 'node-1')).toThrow(
        /is neither a unix socket nor a loopback/,
      );
    },
  );

  test('that are invalid or unknown are reported all at once', () => {
    const wrong = Object.fromEntries(
      Object.values(dataplaneSettings('node-1')).map(({ variable }) => [variable, '-1']),
    );
    expect(() => readConfig({ ...wrong, PODWIRE_DATAPLANE_COLOUR: 'blue' }, 'node-1')).toThrow(
      expect.objectContaining({
        code: 'INVALID_SETTINGS',
        violations: expect.arrayContaining(
          [...Object.keys(wrong), 'PODWIRE_DATAPLANE_COLOUR'].map((field) => expect.objectContaining({ field })),
        ),
      }),
    );
  });
});

test('the usage shows every setting, its default and its effect', () => {
  const text = dataplaneUsage('node-1').replace(/\s+/g, ' ');
  for (const { variable, about } of Object.values(dataplaneSettings('node-1'))) {
    expect(text).toContain(variable);
    expect(text).toContain(about);
  }
});

describe('interfaces', () => {
  test.each([
    ['', []],
    ['eth0', ['eth0']],
    ['en*, eth1 ,*', ['en*', 'eth1', '*']],
    ['eth123456789012*', ['eth123456789012*']],
  ])('%j are accepted', (text, patterns) => {
    expect(interfacePatterns.parse(text)).toEqual(patterns);
  });

  test.each(['-1', '-i', 'e*0', '**', 'a b', 'a,,b', 'eth0/1', 'all', 'a234567890123456', 'eth0,'])(
    '%j are refused',
    (text) => {
      expect(interfacePatterns.safeParse(text).success).toBe(false);
    },
  );
});

describe('ports', () => {
  test.each([
    ['', undefined],
    ['1-65535', { first: 1, last: 65_535 }],
    ['7-7', { first: 7, last: 7 }],
  ])('%j are accepted', (text, range) => {
    expect(portRange.parse(text)).toEqual(range);
  });

  test.each(['0-7', '8-7', '1-65536', '1', '1-', '-1', '1-2-3', 'a-b', ' 1-2'])('%j are refused', (text) => {
    expect(portRange.safeParse(text).success).toBe(false);
  });
});
