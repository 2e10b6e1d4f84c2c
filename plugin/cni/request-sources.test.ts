import { describe, expect, test } from 'vitest';

import { readAttachConfig } from './config.js';

const read = (keys: object) =>
  readAttachConfig('ADD', JSON.stringify({ cniVersion: '1.0.0', name: 'net', type: 'podwire', ...keys })).requestSources
    .dns;

describe('DNS settings of a result', () => {
  test('are the configuration’s', () => {
    const dns = { nameservers: ['10.0.0.53'], domain: 'a.example', search: ['b'], options: ['ndots:5'], later: 1 };
    expect(read({ dns })).toEqual(dns);
  });

  test('are first the runtime’s for this pod, as the CNI conventions or containerd spell them', () => {
    const dns = { nameservers: ['10.0.0.53'] };
    const wanted = { nameservers: ['10.1.0.53'], search: ['c'], options: ['edns0'] };
    const spelled = { servers: ['10.1.0.53'], searches: ['c'], options: ['edns0'] };
    expect(read({ dns, runtimeConfig: { dns: spelled } })).toEqual(wanted);
    const capitals = { Servers: ['10.1.0.53'], Searches: ['c'], Options: ['edns0'] };
    expect(read({ dns, runtimeConfig: { DNS: capitals } })).toEqual(wanted);
  });

  test.each([
    {},
    { dns: null },
    { dns: {} },
    { dns: { nameservers: [], domain: '' } },
    { runtimeConfig: { dns: null } },
    { dns: {}, runtimeConfig: { dns: { Servers: null, Searches: [], Options: [] } } },
  ])('are empty without a source: %j', (keys) => {
    expect(read(keys)).toBeUndefined();
  });

  test('are the configuration’s where the runtime leaves them empty', () => {
    expect(read({ dns: { search: ['b'] }, runtimeConfig: { dns: { servers: [] } } })).toEqual({ search: ['b'] });
  });

  test.each([
    [{ dns: [] }, /dns must be an object/],
    [{ dns: { nameservers: '10.0.0.53' } }, /dns\.nameservers must be a list/],
    [{ dns: { search: [1] } }, /dns\.search\.0 must be a string/],
    [{ runtimeConfig: { dns: 'x' } }, /runtimeConfig\.dns must be an object/],
    [{ runtimeConfig: { dns: { Servers: 'x' } } }, /runtimeConfig\.dns\.Servers must be a list of strings/],
  ])('are refused with their source: %j', (keys, message) => {
    expect(() => read(keys)).toThrow(message);
  });
});
