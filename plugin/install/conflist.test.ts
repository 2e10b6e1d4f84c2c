import fc from 'fast-check';
import { describe, expect, test } from 'vitest';

import {
  applySettings,
  foreignTypes,
  isLoaded,
  mergeConflists,
  readConflist,
  requireConflist,
  conflictWarnings,
  statusRequest,
  withOneLimiter,
  writeConflist,
} from './conflist.js';

const list = (...types: string[]) => ({ name: 'net', plugins: types.map((type) => ({ type })) });
const typesOf = (conflist: { plugins: { type: string }[] }) => conflist.plugins.map(({ type }) => type).join(' ');

describe('the kind of a configuration file', () => {
  test.each([
    ['', { kind: 'unreadable' }],
    ['{"name":"n","plu', { kind: 'unreadable' }],
    ['[]', { kind: 'unreadable' }],
    ['{"name":"n","plugins":[]}', { kind: 'unreadable' }],
    ['{"type":"bridge"}', { kind: 'foreign', types: ['bridge'] }],
    ['{"type":"podwire"}', { kind: 'foreign', types: ['podwire'] }],
    [
      '{"name":"n","plugins":[{"type":"calico"},{"type":"portmap"}]}',
      { kind: 'foreign', types: ['calico', 'portmap'] },
    ],
  ])('%s', (text, expected) => expect(readConflist(text)).toEqual(expected));

  test('a file of Podwire, with every key', () => {
    const conflist = { name: 'n', disableGC: true, plugins: [{ type: 'podwire', mtu: 9 }] };
    expect(readConflist(JSON.stringify(conflist))).toEqual({ kind: 'ours', conflist });
  });
});

describe('the configuration to install', () => {
  test.each([
    ['{', 'is not JSON'],
    ['{"type":"podwire","name":"n"}', 'must be a list of plugins'],
    ['{"name":"n","plugins":[{"mtu":1}]}', 'plugins.0.type'],
    ['{"name":"n","plugins":[{"type":"calico"}]}', 'has 0 plugins of type podwire'],
    ['{"name":"n","plugins":[{"type":"podwire"},{"type":"podwire"}]}', 'has 2 plugins of type podwire'],
  ])('%s is refused: %s', (text, reason) => {
    expect(() => requireConflist(text, 'CNI_NETWORK_CONFIG')).toThrow(
      expect.objectContaining({ code: 'INSTALL_REFUSED', message: expect.stringContaining(reason) }),
    );
  });

  test('the shipped configuration takes an MTU and a node name', () => {
    const shipped = list('podwire', 'portmap');
    expect(applySettings(shipped, { mtuBytes: 0, nodeName: '' })).toEqual(shipped);
    expect(applySettings(shipped, { mtuBytes: 1400, nodeName: 'a' }).plugins).toEqual([
      { type: 'podwire', mtu: 1400, nodename: 'a' },
      { type: 'portmap' },
    ]);
  });

  test('STATUS is asked for in the version that has it', () => {
    const conflist = { cniVersion: '1.0.0', name: 'n', plugins: [{ type: 'x' }, { type: 'podwire', socket: '/s' }] };
    expect(JSON.parse(statusRequest(conflist))).toEqual({
      type: 'podwire',
      socket: '/s',
      name: 'n',
      cniVersion: '1.1.0',
    });
  });
});

describe('plugins that another program added to the chain', () => {
  test.each([
    ['podwire', 'podwire bandwidth', 'podwire bandwidth'],
    ['podwire portmap', 'podwire bandwidth portmap', 'podwire bandwidth portmap'],
    ['podwire portmap', 'podwire portmap linkerd-cni', 'podwire portmap linkerd-cni'],
    ['podwire', 'tuning podwire tuning', 'tuning podwire tuning'],
    ['podwire portmap', 'podwire', 'podwire portmap'],
    ['podwire', 'a b podwire c d', 'a b podwire c d'],
    ['x podwire', 'podwire a x b', 'x b podwire a'],
  ])('%s over %s is %s', (wanted, existing, expected) => {
    const result = mergeConflists(list(...wanted.split(' ')), list(...existing.split(' ')));
    expect(typesOf(result)).toBe(expected);
    expect(foreignTypes(list(...wanted.split(' ')), result)).toEqual(
      expected.split(' ').filter((type) => !wanted.split(' ').includes(type)),
    );
  });

  test('keep all their keys; Podwire’s keys are replaced', () => {
    const existing = {
      cniVersion: '0.3.1',
      cniVersions: ['0.3.1'],
      name: 'old',
      disableCheck: true,
      plugins: [
        { type: 'podwire', mtu: 1 },
        { type: 'bandwidth', capabilities: { bandwidth: true } },
      ],
    };
    expect(
      mergeConflists({ cniVersion: '1.0.0', name: 'net', plugins: [{ type: 'podwire', mtu: 2 }] }, existing),
    ).toEqual({
      cniVersion: '1.0.0',
      name: 'net',
      disableCheck: true,
      plugins: [
        { type: 'podwire', mtu: 2 },
        { type: 'bandwidth', capabilities: { bandwidth: true } },
      ],
    });
  });

  test('limit pods alone: Podwire’s member keeps its other capabilities', () => {
    const capabilities = { bandwidth: true, portMappings: true };
    const podwire = { type: 'podwire', capabilities };
    const conflist = { name: 'net', plugins: [podwire, { type: 'bandwidth', capabilities: { bandwidth: true } }] };
    const [own, program] = withOneLimiter(conflist).plugins;
    expect(own).toEqual({ type: 'podwire', capabilities: { portMappings: true } });
    expect(program).toEqual(conflist.plugins[1]);
    expect(withOneLimiter({ name: 'net', plugins: [podwire] }).plugins).toEqual([podwire]);
    expect(withOneLimiter(list('podwire', 'bandwidth'))).toEqual(list('podwire', 'bandwidth'));
  });

  test('merging twice changes nothing, drops no plugin, and keeps the order of both groups', () => {
    const own = fc.constantFrom('podwire', 'podwire portmap', 'tuning podwire', 'tuning podwire portmap');
    const any = fc.array(fc.constantFrom('podwire', 'portmap', 'tuning', 'a', 'b', 'c'), {
      minLength: 1,
      maxLength: 8,
    });
    fc.assert(
      fc.property(own, any, (wantedTypes, existingTypes) => {
        const wanted = list(...wantedTypes.split(' '));
        const once = mergeConflists(wanted, list(...existingTypes));
        expect(mergeConflists(wanted, once)).toEqual(once);
        const ours = once.plugins.map(({ type }) => type).filter((type) => wantedTypes.split(' ').includes(type));
        expect(ours.join(' ')).toBe(wantedTypes);
        const theirs = (types: string[]) => types.filter((type) => !wantedTypes.split(' ').includes(type)).sort();
        expect(theirs(once.plugins.map(({ type }) => type))).toEqual(theirs(existingTypes));
      }),
    );
  });
});

test('a written configuration is read back unchanged, versions first', () => {
  const conflist = { plugins: [{ type: 'podwire' }], disableGC: true, name: 'n', cniVersion: '1.0.0' };
  const text = writeConflist(conflist);
  expect(readConflist(text)).toEqual({ kind: 'ours', conflist });
  expect(text).toMatch(/^{\n {2}"cniVersion": "1.0.0",\n {2}"name": "n",\n/);
  expect(text.endsWith('}\n')).toBe(true);
});

const file = (name: string, ...types: string[]) => ({
  name,
  content: readConflist(JSON.stringify({ name: 'n', plugins: types.map((type) => ({ type })) })),
});

test('files that runtimes load', () => {
  const names = ['a.conf', 'a.conflist', 'a.json', 'a.conflist.bak', '.podwire-install.0', 'a', 'calico-kubeconfig'];
  expect(names.filter(isLoaded)).toEqual(['a.conf', 'a.conflist', 'a.json']);
});

test('warnings: a configuration that sorts before ours, one of Calico’s, and Podwire’s under another name', () => {
  const files = [
    file('00-multus.conf', 'multus'),
    file('10-calico.conflist', 'calico', 'portmap'),
    file('10-podwire.conflist', 'podwire'),
    file('20-podwire.conflist', 'podwire'),
    file('87-podman.conflist', 'bridge'),
    file('00-notes.txt', 'calico'),
  ];
  expect(conflictWarnings(files, '10-podwire.conflist')).toEqual([
    '00-multus.conf comes before 10-podwire.conflist, so container runtimes use it instead: remove it, or set CNI_CONF_NAME',
    '10-calico.conflist comes before 10-podwire.conflist, so container runtimes use it instead: remove it, or set CNI_CONF_NAME',
    '10-calico.conflist is Calico’s: remove it and Calico’s installer, or set CNI_OLD_CONF_NAME=10-calico.conflist',
    '20-podwire.conflist has a podwire plugin too: remove it, or set CNI_OLD_CONF_NAME=20-podwire.conflist',
  ]);
  expect(conflictWarnings(files.slice(2, 3), '10-podwire.conflist')).toEqual([]);
});
