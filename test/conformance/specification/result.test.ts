import { describe, expect, test } from 'vitest';

import { canonicalCidr } from './addresses.js';
import { errorDocumentFaults } from './error-document.js';
import { readResult, resultFaults } from './result.js';
import { versionAnswerFaults } from './version-answer.js';

const v1 = {
  cniVersion: '1.1.0',
  interfaces: [{ name: 'eth0', mac: '02:00:00:00:00:01', sandbox: '/run/netns/a', mtu: 1450 }],
  ips: [{ address: '10.0.0.2/24', gateway: '10.0.0.1', interface: 0 }, { address: 'FD00:0::2/64' }],
  routes: [{ dst: '0.0.0.0/0', gw: '10.0.0.1', mtu: 1400, scope: 0, table: 0 }],
  dns: { nameservers: ['10.0.0.53'] },
};
const v04 = { cniVersion: '0.4.0', ips: [{ version: '4', address: '10.0.0.2/24' }] };
const v02 = { cniVersion: '0.2.0', ip4: { ip: '10.0.0.2/24', routes: [{ dst: '0.0.0.0/0' }] } };

describe('the form of results', () => {
  test('a valid result has no fault', () => {
    expect(resultFaults('1.1.0', v1)).toEqual([]);
    expect(resultFaults('0.4.0', v04)).toEqual([]);
    expect(resultFaults('0.2.0', v02)).toEqual([]);
    expect(resultFaults('0.1.0', { ip6: { ip: 'fd00::2/64' } })).toEqual([]);
  });

  test.each<[string, Parameters<typeof resultFaults>, RegExp]>([
    ['not an object', ['1.1.0', [v1]], /not one JSON object/],
    ['another version', ['1.0.0', v1], /cniVersion is "1.1.0"/],
    ['no version', ['0.2.0', { ...v02, cniVersion: undefined }], /cniVersion is undefined/],
    [
      'an index too far',
      ['1.1.0', { ...v1, ips: [{ address: '10.0.0.2/24', interface: 1 }] }],
      /there are 1 interfaces/,
    ],
    ['an index below zero', ['1.1.0', { ...v1, ips: [{ address: '10.0.0.2/24', interface: -1 }] }], /interface is -1/],
    ['no prefix', ['1.1.0', { ...v1, ips: [{ address: '10.0.0.2' }] }], /no address in CIDR/],
    ['a prefix too long', ['1.1.0', { ...v1, ips: [{ address: '10.0.0.2/33' }] }], /no address in CIDR/],
    ['a gateway with prefix', ['1.1.0', { ...v1, ips: [{ address: '10.0.0.2/8', gateway: '10.0.0.1/8' }] }], /gateway/],
    ['ips[].version today', ['1.0.0', { ...v04, cniVersion: '1.0.0' }], /version went with 1.0.0/],
    ['ips[].version missing then', ['0.4.0', { ...v04, ips: [{ address: '10.0.0.2/24' }] }], /and not "4"/],
    ['the wrong family', ['0.4.0', { ...v04, ips: [{ version: '6', address: '10.0.0.2/24' }] }], /and not "4"/],
    ['no name', ['1.1.0', { ...v1, interfaces: [{}], ips: [] }], /name is missing/],
    ['no MAC', ['1.1.0', { ...v1, interfaces: [{ name: 'a', mac: 'x' }], ips: [] }], /no hardware address/],
    ['a scope out of range', ['1.1.0', { ...v1, routes: [{ dst: '0.0.0.0/0', scope: 256 }] }], /scope is out of range/],
    ['a route without destination', ['1.1.0', { ...v1, routes: [{ gw: '10.0.0.1' }] }], /routes\[0\]\.dst/],
    ['routes that are not a list', ['1.1.0', { ...v1, routes: {} }], /routes is no list/],
    ['dns that is not an object', ['1.1.0', { ...v1, dns: [] }], /dns is no object/],
    ['nameservers that are not strings', ['1.1.0', { ...v1, dns: { nameservers: [1] } }], /dns.nameservers/],
    ['lists in 0.2.0', ['0.2.0', { ...v02, ips: [] }], /ips came with 0.3.0/],
    ['nothing in 0.2.0', ['0.2.0', { cniVersion: '0.2.0' }], /neither ip4 nor ip6/],
    ['the other family in 0.2.0', ['0.2.0', { cniVersion: '0.2.0', ip4: { ip: 'fd00::2/64' } }], /other family/],
    ['ip4 in 1.0.0', ['1.0.0', { ...v02, cniVersion: '1.0.0' }], /ip4 went with 0.3.0/],
  ])('%s is the only fault', (_, [version, value], fault) => {
    expect(resultFaults(version, value)).toEqual([expect.stringMatching(fault)]);
  });

  test('results of all versions are read alike', () => {
    const said = { address: '10.0.0.2/24', gateway: undefined, interface: undefined };
    expect(readResult('0.4.0', v04).ips).toEqual([said]);
    expect(readResult('0.2.0', v02)).toEqual({
      interfaces: [],
      ips: [said],
      routes: [{ dst: '0.0.0.0/0', gw: undefined }],
    });
    expect(readResult('1.1.0', v1).ips[1]?.address).toBe('fd00::2/64');
  });
});

test.each([
  ['10.0.0.1/24', '10.0.0.1/24'],
  ['FD00:0:0::1/64', 'fd00::1/64'],
  ['10.0.0.1', undefined],
  ['10.0.0.1/', undefined],
  ['10.0.0.256/8', undefined],
  ['fd00::/129', undefined],
])('%s is normalised to %s', (text, expected) => {
  expect(canonicalCidr(text)).toBe(expected);
});

test.each([
  ['{"code":4,"msg":"a"}', 0],
  ['{"code":100,"msg":"a","details":"b"}', 0],
  ['{"code":77,"msg":"a"}', 1],
  ['{"code":"4","msg":""}', 2],
  ['{"code":4,"msg":"a","details":1}', 1],
  ['{"code":4,"msg":"a"}{}', 1],
  ['broken', 1],
])('the error %s has %s faults', (stdout, count) => {
  expect(errorDocumentFaults(stdout)).toHaveLength(count);
});

test.each([
  [{ cniVersion: '1.0.0', supportedVersions: ['1.0.0'] }, 0],
  [{ cniVersion: '1.0.0', supportedVersions: [] }, 1],
  [{ supportedVersions: ['newest'] }, 2],
  [undefined, 1],
])('the answer %j to VERSION has %s faults', (value, count) => {
  expect(versionAnswerFaults(value)).toHaveLength(count);
});
