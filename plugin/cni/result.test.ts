import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import { ADDRESSES, BEFORE, BEFORE_OLD, GOLDEN, MADE, type Families, type Place } from '../testing/cni-result.js';
import { addResult, resultSchema, writeResult, type Result } from './result.js';
import { SUPPORTED_VERSIONS, type CniVersion } from './version.js';

const PLACES: readonly Place[] = ['first', 'behind'];
const FAMILIES: readonly Families[] = ['IPv4', 'IPv6', 'both'];

const cases = SUPPORTED_VERSIONS.flatMap((cniVersion) =>
  PLACES.flatMap((place) => FAMILIES.map((families) => ({ cniVersion, place, families }))),
);

test('there is a golden result for each version, place and family', () => {
  expect(Object.keys(GOLDEN)).toEqual(SUPPORTED_VERSIONS);
  expect(cases).toHaveLength(42);
});

describe('the result of ADD', () => {
  test.each(cases)('in $cniVersion, $place in its chain, with $families', ({ cniVersion, place, families }) => {
    const before = cniVersion < '0.3.0' ? BEFORE_OLD : BEFORE;
    const prevResult = resultSchema(cniVersion).parse(place === 'first' ? undefined : before);
    const result = addResult({ ...MADE, cniVersion, addresses: ADDRESSES[families], prevResult });
    // Through JSON, which drops undefined fields.
    expect(JSON.parse(JSON.stringify(result))).toEqual({ cniVersion, ...GOLDEN[cniVersion][place][families] });
    expect(Object.keys(result)[0]).toBe('cniVersion');
  });
});

const SEED = 20_261_121;

const readAs = (version: CniVersion, document: unknown): Result => {
  const result = resultSchema(version).parse(document);
  if (!result) throw new Error('no result');
  return result;
};

/** Converts a document to another version, as text. */
const convert = (document: object, to: CniVersion): Record<string, unknown> =>
  JSON.parse(JSON.stringify(writeResult(readAs('1.1.0', document), to)));

const isOld = (version: CniVersion) => version < '0.3.0';
const NEWER = SUPPORTED_VERSIONS.filter((version) => !isOld(version));
const OLDER = SUPPORTED_VERSIONS.filter(isOld);

const address = fc.oneof(
  fc.nat({ max: 254 }).map((host) => `10.65.0.${host}/24`),
  fc.nat({ max: 0xfffe }).map((host) => `fd65::${(host + 1).toString(16)}/64`),
);
const ip = fc.record(
  { address, interface: fc.nat({ max: 3 }), gateway: fc.constant('10.65.0.1') },
  { requiredKeys: ['address'] },
);
const route = fc.record(
  { dst: address, gw: fc.constant('10.65.0.1'), mtu: fc.nat(), scope: fc.constantFrom(0, 253), table: fc.nat() },
  { requiredKeys: ['dst'] },
);
const net = fc.record(
  {
    name: fc.constantFrom('eth0', 'net1'),
    mac: fc.constant('02:00:00:00:00:01'),
    mtu: fc.nat(),
    pciID: fc.constant('p'),
  },
  { requiredKeys: ['name'] },
);
const document = fc.record(
  {
    interfaces: fc.array(net, { maxLength: 3 }),
    ips: fc.array(ip, { minLength: 1, maxLength: 4 }),
    routes: fc.array(route, { maxLength: 4 }),
    dns: fc.constant({ nameservers: ['1.1.1.1'] }),
    unknown: fc.jsonValue(),
  },
  { requiredKeys: ['ips'] },
);

const addressesOf = (each: Record<string, unknown>) => readAs('1.1.0', each).ips.map((known) => known.address);

const check = <Values extends [unknown, ...unknown[]]>(property: fc.IProperty<Values>) =>
  fc.assert(property, { seed: SEED });

describe('a result that is converted', () => {
  test('keeps every address, up and down, from 0.3.0 on', () => {
    const ways = fc.array(fc.constantFrom(...NEWER), { minLength: 1, maxLength: 6 });
    check(
      fc.property(document, ways, (original, versions) => {
        const last = versions.reduce<Record<string, unknown>>(convert, { cniVersion: '1.1.0', ...original });
        expect(addressesOf(last)).toEqual(original.ips.map((each) => each.address));
        expect(last.dns).toEqual(original.dns);
        expect(last.unknown).toEqual(original.unknown);
      }),
    );
  });

  test('keeps the first address of each family in 0.1.0 and 0.2.0, and only routes of that family', () => {
    check(
      fc.property(document, fc.constantFrom(...OLDER), (original, version) => {
        const old = convert(original, version);
        const all = original.ips.map((each) => each.address);
        const firsts = [all.find((each) => !each.includes(':')), all.find((each) => each.includes(':'))];
        expect(addressesOf(old)).toEqual(firsts.filter((each) => each !== undefined));
        const destinations = readAs(version, old).routes.map(({ dst }) => dst.includes(':'));
        expect(destinations.every((isIpv6) => firsts[isIpv6 ? 1 : 0] !== undefined)).toBe(true);
      }),
    );
  });

  test('keeps of a route its destination and gateway in 0.1.0 and 0.2.0', () => {
    const [route, other] = [{ dst: '10.0.0.0/8', gw: '10.65.0.1' }, { dst: '192.0.2.0/24' }];
    const later = { mtu: 1400, advmss: 1360, priority: 5, table: 100, scope: 253 };
    const ips = [{ address: '10.65.0.2/24', interface: 0, gateway: '10.65.0.1' }];
    const newest = {
      cniVersion: '1.1.0',
      ips,
      routes: [{ ...route, ...later }, { ...other, ...later }, { dst: '::/0' }],
    };
    for (const version of OLDER) {
      expect(convert(newest, version)).toEqual({
        cniVersion: version,
        ip4: { ip: '10.65.0.2/24', gateway: '10.65.0.1', routes: [route, other] },
      });
    }
  });

  test('is converted back to 0.2.0 without a difference', () => {
    check(
      fc.property(document, fc.constantFrom(...SUPPORTED_VERSIONS), (original, version) => {
        const old = convert(original, '0.2.0');
        expect(convert(convert(old, version), '0.2.0')).toEqual(old);
      }),
    );
  });

  test('is converted between 1.0.0 and 1.1.0 without a loss', () => {
    const newest = { cniVersion: '1.1.0', ...BEFORE };
    expect(convert(newest, '1.0.0')).toEqual({ ...newest, cniVersion: '1.0.0' });
    expect(convert(convert(newest, '1.0.0'), '1.1.0')).toEqual(newest);
  });

  test('loses the 1.1.0 fields of interfaces before 1.0.0, and keeps the fields of routes', () => {
    const middle = convert({ cniVersion: '1.1.0', ...BEFORE }, '0.4.0');
    expect(JSON.stringify(middle.interfaces)).not.toMatch(/mtu|socketPath|pciID/);
    expect(middle.routes).toEqual(BEFORE.routes);
  });

  test('has the routes of both families in one list and no interface after 0.2.0', () => {
    const ip6 = { ip: 'fd65::2/64', gateway: 'fd65::1', routes: [{ dst: '::/0' }] };
    expect(convert({ cniVersion: '0.2.0', ...BEFORE_OLD, ip6 }, '1.1.0')).toEqual({
      cniVersion: '1.1.0',
      ips: [
        { address: '192.168.0.2/24', gateway: '192.168.0.1', lease: 7 },
        { address: 'fd65::2/64', gateway: 'fd65::1' },
      ],
      routes: [{ dst: '192.168.0.0/16', gw: '192.168.0.1' }, { dst: '::/0' }],
      dns: BEFORE.dns,
      later: BEFORE.later,
    });
  });

  test('needs an address in 0.2.0', () => {
    expect(() => convert({ cniVersion: '1.0.0', dns: {} }, '0.2.0')).toThrow('cannot convert: no valid IP addresses');
    expect(convert({ cniVersion: '0.2.0' }, '1.0.0')).toEqual({ cniVersion: '1.0.0' });
  });
});

describe('a result that is read', () => {
  test('has the form of its own version, or of the configuration’s without one', () => {
    const ip4 = { ip: '10.0.0.1/24' };
    expect(readAs('1.0.0', { cniVersion: '0.2.0', ip4 }).ips).toEqual([{ address: '10.0.0.1/24' }]);
    expect(readAs('0.1.0', { cniVersion: '', ip4 }).ips).toEqual([{ address: '10.0.0.1/24' }]);
    expect(readAs('1.0.0', { ip4 })).toEqual({ interfaces: [], ips: [], routes: [], rest: {} });
  });

  test('may have null for a list, and may be absent', () => {
    expect(readAs('1.0.0', { interfaces: null, ips: null, routes: null }).ips).toEqual([]);
    expect(readAs('0.2.0', { ip4: null, ip6: { ip: 'fd65::1/64', routes: null } }).ips).toEqual([
      { address: 'fd65::1/64' },
    ]);
    expect(resultSchema('1.0.0').parse(undefined)).toBeUndefined();
    expect(resultSchema('1.0.0').parse(null)).toBeUndefined();
  });

  test.each<readonly [CniVersion, unknown, string, string]>([
    ['1.0.0', [], '', 'must be an object'],
    ['1.0.0', { cniVersion: '7.0.0' }, 'cniVersion', 'must be one of 0.1.0, '],
    ['1.0.0', { ips: [{}] }, 'ips.0.address', 'is missing'],
    ['1.0.0', { ips: [{ address: '10.0.0.1/8', interface: 'x' }] }, 'ips.0.interface', 'must be a whole number'],
    ['0.4.0', { interfaces: [{ name: 'a' }, { mac: 'b' }] }, 'interfaces.1.name', 'is missing'],
    ['0.4.0', { routes: {} }, 'routes', 'must be a list'],
    ['0.2.0', { ip4: { gateway: '10.0.0.1' } }, 'ip4.ip', 'is missing'],
    ['0.2.0', { ip6: { ip: 'fd65::1/64', routes: [{}] } }, 'ip6.routes.0.dst', 'is missing'],
  ])('is refused in %s as %j', (version, value, path, message) => {
    const { error } = resultSchema(version).safeParse(value);
    expect(error?.issues.map((issue) => issue.path.join('.'))).toEqual([path]);
    expect(error?.issues[0]?.message).toContain(message);
  });
});
