import type { Violation } from '@podwire/shared/failure/failure';
import { describe, expect, test } from 'vitest';

import { matchesNode, readPeersFile } from './peers-file.js';

const reader = (files: Record<string, string>) => (path: string) => {
  const text = files[path];
  return text === undefined ? Promise.reject(new Error(`ENOENT: ${path}`)) : Promise.resolve(text);
};
const read = (text: string, files: Record<string, string> = {}) =>
  readPeersFile('/peers', reader({ '/peers': text, ...files }));

describe('a peers file', () => {
  test('in YAML, with everything', async () => {
    const text = `
mesh: true
routeReflectors:
  - { nodes: [rr-*], clusterId: 192.0.2.254 }
peers:
  - name: tor-1
    nodes: [rack1-*, special]
    address: 2001:DB8:0::1
    asNumber: 65001
    port: 1179
    sourceAddress: 2001:db8::7
    passwordFile: /secret
    passive: true
    bfd: { intervalMs: 50, multiplier: 4, multihop: true }
  - { name: tor-2, address: 192.0.2.1, asNumber: 4294967295, bfd: {} }
  - { name: tor-3, address: 192.0.2.3, asNumber: 1 }
`;
    expect(await read(text, { '/secret': 'hush hush\n' })).toEqual({
      mesh: true,
      routeReflectors: [{ nodes: ['rr-*'], clusterId: '192.0.2.254' }],
      peers: [
        {
          name: 'tor-1',
          nodes: ['rack1-*', 'special'],
          address: '2001:db8::1',
          asNumber: 65_001,
          port: 1179,
          sourceAddress: '2001:db8::7',
          password: 'hush hush',
          passive: true,
          bfd: { intervalMs: 50, multiplier: 4, multihop: true },
        },
        {
          name: 'tor-2',
          nodes: ['*'],
          address: '192.0.2.1',
          asNumber: 4_294_967_295,
          port: 179,
          sourceAddress: undefined,
          password: undefined,
          passive: false,
          bfd: { intervalMs: 300, multiplier: 3, multihop: false },
        },
        expect.objectContaining({ name: 'tor-3', bfd: undefined }),
      ],
    });
  });

  test.each([
    ['', { mesh: true, routeReflectors: [], peers: [] }],
    ['{"peers": []}', { mesh: true, routeReflectors: [], peers: [] }],
    [
      '{"routeReflectors": [{"nodes": ["a"], "clusterId": "10.0.0.1"}]}',
      { mesh: false, routeReflectors: [{ nodes: ['a'], clusterId: '10.0.0.1' }], peers: [] },
    ],
  ])('%j: defaults', async (text, expected) => {
    expect(await read(text)).toEqual(expected);
  });

  test('is refused with all its faults at once', async () => {
    const text = `
colour: blue
mesh: maybe
routeReflectors: [{ nodes: [], clusterId: "fd00::1" }]
peers:
  - { name: "a b", nodes: ["x y"], address: 300.0.0.1, asNumber: 0, port: 70000, passwordFile: secret, passive: 1, md5: x, bfd: { intervalMs: 9, multiplier: 1.5, multihop: 1 } }
`;
    const fields = [
      'colour',
      'mesh',
      'peers.0.address',
      'peers.0.asNumber',
      'peers.0.bfd.intervalMs',
      'peers.0.bfd.multihop',
      'peers.0.bfd.multiplier',
      'peers.0.md5',
      'peers.0.name',
      'peers.0.nodes.0',
      'peers.0.passive',
      'peers.0.passwordFile',
      'peers.0.port',
      'routeReflectors.0.clusterId',
      'routeReflectors.0.nodes',
    ];
    await expect(read(text)).rejects.toMatchObject({
      code: 'INVALID_SETTINGS',
      violations: expect.toSatisfy((found: readonly Violation[]) => {
        expect(found.map(({ field }) => field).sort()).toEqual(fields);
        return true;
      }),
    });
  });

  test('is refused with the faults of its password files', async () => {
    const peer = (name: string, rest: string) => `  - { name: ${name}, address: 192.0.2.1, asNumber: 1, ${rest} }\n`;
    const text = `peers:\n${[
      peer('a', 'passwordFile: /gone'),
      peer('b', 'passwordFile: /quoted'),
      peer('b', 'passwordFile: /long'),
      peer('c', 'passwordFile: /two'),
      peer('d', 'passwordFile: /empty'),
      peer('e', 'sourceAddress: "fd00::1"'),
    ].join('')}`;
    const files = { '/quoted': 'a"b', '/long': 'x'.repeat(81), '/two': 'a\nb\n', '/empty': '\n' };
    await expect(read(text, files)).rejects.toMatchObject({
      code: 'INVALID_SETTINGS',
      violations: [
        { field: 'peers.0.passwordFile', reason: expect.stringContaining('/gone cannot be read') },
        { field: 'peers.1.passwordFile' },
        { field: 'peers.2.name', reason: 'must be unique: b' },
        { field: 'peers.2.passwordFile' },
        { field: 'peers.3.passwordFile' },
        { field: 'peers.4.passwordFile' },
        { field: 'peers.5.sourceAddress' },
      ],
    });
  });

  test.each([
    ['that is no YAML', 'peers: [', /must be YAML or JSON/],
    ['that is a list', '- a', /is invalid/],
  ])('%s', async (_, text, message) => {
    await expect(read(text)).rejects.toThrow(message);
  });

  test('that is not there', async () => {
    await expect(readPeersFile('/gone', reader({}))).rejects.toMatchObject({ code: 'INVALID_SETTINGS' });
  });
});

test.each([
  [['*'], 'anything', true],
  [['rr-*'], 'rr-1', true],
  [['rr-*'], 'xrr-1', false],
  [['a.b'], 'axb', false],
  [['a', 'b'], 'b', true],
  [['*-x-*'], 'a-x-b', true],
  [[], 'a', false],
])('%j matches %s: %s', (patterns, name, expected) => {
  expect(matchesNode(patterns, name)).toBe(expected);
});
