import { expect, test } from 'vitest';

import { INSTALL_SETTINGS, ignoredVariables, IGNORED_VARIABLES, readInstallSettings } from './settings.js';

test('no setting is required', () => {
  expect(readInstallSettings({})).toEqual({
    binaryDirectory: '/opt/cni/bin',
    configDirectory: '/etc/cni/net.d',
    conflistName: '10-podwire.conflist',
    oldConfName: '',
    template: '',
    templateFile: '',
    mtuBytes: 0,
    nodeName: '',
    skippedBinaries: [''],
    updatesBinaries: true,
    stays: false,
    logLevel: 'info',
    root: '',
    shimFile: '',
    programsDirectory: '',
    waitMs: 60_000,
    checkIntervalMs: 10_000,
    conflistMode: 0o600,
  });
});

test('settings of a Calico manifest are accepted', () => {
  const env = {
    CNI_CONF_NAME: '10-calico.conflist',
    CNI_NET_DIR: '/etc/cni/net.d',
    CNI_MTU: '1440',
    KUBERNETES_NODE_NAME: 'a',
    SLEEP: 'false',
    UPDATE_CNI_BINARIES: 'false',
    SKIP_CNI_BINARIES: 'bandwidth, podwire-ipam',
    LOG_LEVEL: 'Warning',
    DATASTORE_TYPE: 'kubernetes',
    ETCD_ENDPOINTS: '',
  };
  expect(readInstallSettings(env)).toMatchObject({
    conflistName: '10-calico.conflist',
    mtuBytes: 1440,
    skippedBinaries: ['bandwidth', 'podwire-ipam'],
    updatesBinaries: false,
    logLevel: 'warn',
  });
  expect(ignoredVariables(env)).toEqual(['DATASTORE_TYPE']);
});

test('invalid values and unknown settings are refused, all at once', () => {
  const wrong: Record<string, string> = {
    CNI_BIN_DIR: 'opt',
    CNI_NET_DIR: 'etc',
    CNI_CONF_NAME: '../x.conflist',
    CNI_OLD_CONF_NAME: 'a/b',
    CNI_NETWORK_CONFIG_FILE: 'x',
    CNI_MTU: '67',
    SLEEP: 'yes',
    UPDATE_CNI_BINARIES: '1',
    LOG_LEVEL: 'loud',
    PODWIRE_INSTALL_ROOT: 'host',
    PODWIRE_INSTALL_SHIM: 'podwire',
    PODWIRE_INSTALL_WAIT_MS: '-1',
    PODWIRE_INSTALL_CHECK_INTERVAL_MS: '1',
    PODWIRE_INSTALL_CONFLIST_MODE: '0666',
    PODWIRE_INSTALL_COLOUR: 'green',
  };
  const refusals = Object.keys(wrong).map((name) => expect.objectContaining({ field: name }));
  expect(() => readInstallSettings(wrong)).toThrow(
    expect.objectContaining({ code: 'INVALID_SETTINGS', violations: expect.arrayContaining(refusals) }),
  );
});

test.each(['10-podwire.conf', '.10.conflist', 'conflist', ''.padStart(3, '/')])('%s is not a valid name', (name) => {
  expect(() => readInstallSettings({ CNI_CONF_NAME: name })).toThrow(/CNI_CONF_NAME/);
});

test('every setting has an effect, and no variable is declared twice', () => {
  const variables = Object.values(INSTALL_SETTINGS).map(({ variable }) => variable);
  const all = [...variables, ...IGNORED_VARIABLES];
  expect(new Set(all).size).toBe(all.length);
});
