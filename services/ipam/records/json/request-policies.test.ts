import { expect, test } from 'vitest';

import { policy } from '../../testing/request-policies.js';
import { formatJson, parseJson } from './json.js';
import { RecordKeys } from './keys.js';
import { decodeRecord, encodeRecord, type DecodedRecord } from './registry.js';

const keys = new RecordKeys('/calico');
const KEY = '/calico/podwire/requestpolicies';

const STORED = `{"kind":"RequestPolicyList","apiVersion":"podwire.dev/v1","metadata":{"note":"x"},"items":[{"metadata":{"name":"tenants","uid":"uid-tenants",
 "creationTimestamp":"2026-08-22T06:33:25Z","annotations":{"a":"b"}},"spec":{"namespaces":["red"],"namespaceSelector":"has(lab)","rules":{
 "pools":{"names":["a"],"cidrs":["10.0.0.0/8"],"selector":"has(open)"},"addresses":["10.0.0.0/28","10.0.0.99","fd00::/64"],
 "addressesWithoutIPAM":[],"sourcePrefixes":["10.8.0.0/16"],"macAddresses":["02:42:00:00:00:00/16"],
 "families":["IPv4","IPv6"]}}}]}`;

const TENANTS = policy('tenants', {
  namespaces: ['red'],
  namespaceSelector: 'has(lab)',
  pools: { names: ['a'], cidrs: ['10.0.0.0/8'], selector: 'has(open)' },
  addresses: ['10.0.0.0/28', '10.0.0.99/32', 'fd00::/64'],
  addressesWithoutIpam: [],
  sourcePrefixes: ['10.8.0.0/16'],
  macAddresses: ['02:42:00:00:00:00/16'],
  families: [4, 6],
});

function decode(text: string): DecodedRecord {
  const name = keys.parse(KEY);
  if (!name) throw new Error('the key names no record');
  return decodeRecord(KEY, name, Buffer.from(text));
}

test('policies are read, and written back unchanged, with other stored fields', () => {
  const decoded = decode(STORED);
  const value = [{ ...TENANTS, createTimeMs: Date.parse('2026-08-22T06:33:25Z') }];
  expect(decoded.record).toEqual({ kind: 'requestPolicies', value });
  expect(encodeRecord({ kind: 'requestPolicies', value }, decoded)).toEqual(parseJson(STORED.replaceAll('\n', '')));
});

test('a removed rule is no longer stored; a new policy has no fields of another', () => {
  const rest = { ...policy('next', { families: [] }), createTimeMs: 0 };
  const text = formatJson(encodeRecord({ kind: 'requestPolicies', value: [rest] }, decode(STORED)));
  expect(decode(text).record).toEqual({ kind: 'requestPolicies', value: [rest] });
  expect(text).toContain('"rules":{"families":[]}');
  expect(text).not.toContain('annotations');
});

test.each([
  ['"families":["IPv4","IPv6"]', '"families":["IPv5"]', 'items[0].spec.rules.families[0]'],
  ['"sourcePrefixes"', '"ports"', 'items[0].spec.rules.ports'],
  ['"namespaces"', '"serviceAccounts":["x"],"namespaces"', 'items[0].spec.serviceAccounts'],
  ['"names":["a"]', '"names":["a"],"families":[4]', 'items[0].spec.rules.pools.families'],
  ['"has(lab)"', '"has("', 'items[0].spec.namespaceSelector'],
  ['"has(open)"', '"="', 'items[0].spec.rules.pools.selector'],
  ['"10.0.0.0/28"', '"10.0.0.1/28"', 'items[0].spec.rules.addresses[0]'],
  ['"02:42:00:00:00:00/16"', '"02"', 'items[0].spec.rules.macAddresses[0]'],
  ['"name":"tenants"', '"name":"T"', 'items[0].metadata.name'],
])('%s in place of %s makes all of them unreadable, as more would be allowed otherwise', (from, to, path) => {
  expect(() => decode(STORED.replace(from, to))).toThrow(
    expect.objectContaining({ code: 'STORE_CORRUPT', message: expect.stringContaining(path) }),
  );
});
