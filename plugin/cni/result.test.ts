import { describe, expect, test } from 'vitest';

import { addResult, type Added } from './result.js';

const ADDED: Added = {
  cniVersion: '1.0.0',
  hostInterface: { name: 'podw1', mac: 'ee:ee:ee:ee:ee:ee' },
  podInterface: { name: 'eth0', mac: '02:00:00:00:00:01', sandbox: '/run/netns/pod' },
  addresses: ['10.65.0.1/32', 'fd00::1/128'],
  prevResult: undefined,
};

const INTERFACES = [
  { name: 'podw1', mac: 'ee:ee:ee:ee:ee:ee' },
  { name: 'eth0', mac: '02:00:00:00:00:01', sandbox: '/run/netns/pod' },
];

describe('the result of ADD', () => {
  test('has interfaces and addresses, and nothing that is empty', () => {
    expect(JSON.parse(JSON.stringify(addResult(ADDED)))).toEqual({
      cniVersion: '1.0.0',
      interfaces: INTERFACES,
      ips: [
        { interface: 1, address: '10.65.0.1/32' },
        { interface: 1, address: 'fd00::1/128' },
      ],
    });
  });

  test.each(['0.3.1', '0.4.0'] as const)('has the family of each address in version %s', (cniVersion) => {
    expect(addResult({ ...ADDED, cniVersion })).toEqual({
      cniVersion,
      interfaces: INTERFACES,
      ips: [
        { version: '4', interface: 1, address: '10.65.0.1/32' },
        { version: '6', interface: 1, address: 'fd00::1/128' },
      ],
    });
  });

  test('follows what the chain had before, and keeps all of that', () => {
    const prevResult = {
      cniVersion: '1.0.0',
      interfaces: [{ name: 'net0', sandbox: '/run/netns/pod', mtu: 9000 }],
      ips: [{ address: '192.168.0.2/24', gateway: '192.168.0.1', interface: 0 }],
      routes: [{ dst: '192.168.0.0/16' }],
      dns: { nameservers: ['192.168.0.1'] },
      later: true,
    };
    expect(addResult({ ...ADDED, prevResult })).toEqual({
      ...prevResult,
      interfaces: [...prevResult.interfaces, ...INTERFACES],
      ips: [...prevResult.ips, { interface: 2, address: '10.65.0.1/32' }, { interface: 2, address: 'fd00::1/128' }],
    });
  });
});
