import { mkdirSync } from 'node:fs';
import { join } from 'node:path';

import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { scriptShim, Site } from '../testing/site.js';
import { readInstallSpec } from './read-spec.js';
import { readInstallSettings } from './settings.js';

let site: Site;
beforeEach(() => {
  site = new Site();
  site.write('shim', scriptShim());
});
afterEach(() => site.remove());

const packageFolder = join(import.meta.dirname, '..');

/** The installation that an environment describes; with the test's shim where it names none. */
function wantedOf(variables: Readonly<Record<string, string>>) {
  const env = { PODWIRE_INSTALL_SHIM: join(site.folder, 'shim'), ...variables };
  return readInstallSpec({ settings: readInstallSettings(env), env, packageFolder, log: site.log });
}

const list = (name: string, keys = '') => `{"name":"${name}","plugins":[{"type":"podwire"${keys}}]}`;

describe('the installation', () => {
  test('has everything that is shipped, without settings', async () => {
    expect(await wantedOf({})).toMatchObject({
      binaryDirectory: '/opt/cni/bin',
      configDirectory: '/etc/cni/net.d',
      runtimeBinaryDirectory: '/opt/cni/bin',
      binaries: ['podwire', 'podwire-ipam'],
      updatesBinaries: true,
      conflistName: '10-podwire.conflist',
      conflistMode: 0o600,
      oldConfName: undefined,
      shim: scriptShim(),
    });
    expect(site.messages).toEqual([]);
  });

  test('includes the programs of a directory, except Podwire’s, skipped ones and other files', async () => {
    const programs = join(site.folder, 'programs');
    for (const name of ['portmap', 'loopback', 'tuning', 'podwire', '.hidden']) {
      site.write(`programs/${name}`, '#!/bin/sh\n', 0o755);
    }
    site.write('programs/LICENSE', 'text', 0o644);
    mkdirSync(join(programs, 'folder'));
    const spec = await wantedOf({ PODWIRE_INSTALL_PROGRAMS: programs, SKIP_CNI_BINARIES: 'tuning' });
    expect(spec.programs).toEqual(['loopback', 'portmap'].map((name) => ({ name, path: join(programs, name) })));
    expect(site.messages).toEqual([]);
    await expect(wantedOf({ PODWIRE_INSTALL_PROGRAMS: '/nowhere' })).rejects.toMatchObject({
      code: 'INSTALL_IO',
      message: expect.stringContaining('correct PODWIRE_INSTALL_PROGRAMS'),
    });
  });

  test('follows each variable', async () => {
    const spec = await wantedOf({
      PODWIRE_INSTALL_ROOT: '/host',
      CNI_BIN_DIR: '/srv/bin',
      CNI_NET_DIR: '/srv/net.d',
      CNI_CONF_NAME: '10-calico.conflist',
      CNI_OLD_CONF_NAME: '10-old.conf',
      SKIP_CNI_BINARIES: 'podwire-ipam',
      UPDATE_CNI_BINARIES: 'false',
      PODWIRE_INSTALL_CONFLIST_MODE: '0644',
    });
    expect(spec).toMatchObject({
      binaryDirectory: '/host/srv/bin',
      configDirectory: '/host/srv/net.d',
      // Paths on the node, as container runtimes see them.
      runtimeBinaryDirectory: '/srv/bin',
      binaries: ['podwire'],
      updatesBinaries: false,
      conflistName: '10-calico.conflist',
      conflistMode: 0o644,
      oldConfName: '10-old.conf',
    });
  });

  test('uses CNI_CONF_NAME as the file name', async () => {
    const variables = { PODWIRE_INSTALL_ROOT: site.folder, CNI_BIN_DIR: '/bin', CNI_NET_DIR: '/net.d' };
    await site.install(await wantedOf({ ...variables, CNI_CONF_NAME: '05-first.conflist' }));
    expect(Object.keys(site.state())).toEqual(['bin/podwire', 'bin/podwire-ipam', 'net.d/05-first.conflist']);
  });

  test('warns that Calico’s own programs are not part of Podwire', async () => {
    await wantedOf({ SKIP_CNI_BINARIES: 'calico,bandwidth' });
    expect(site.messages).toEqual([
      'SKIP_CNI_BINARIES has no effect on calico, bandwidth: Podwire does not install it',
    ]);
  });

  test('never has another program under the shim’s name', async () => {
    site.write('shim', '#!/bin/sh\n');
    await expect(wantedOf({})).rejects.toMatchObject({ code: 'INSTALL_REFUSED' });
    await expect(wantedOf({ PODWIRE_INSTALL_SHIM: '/nowhere' })).rejects.toMatchObject({ code: 'INSTALL_IO' });
  });
});

describe('the network configuration', () => {
  test('has the MTU and the node’s name, as shipped', async () => {
    const { conflist } = await wantedOf({ CNI_MTU: '1440', KUBERNETES_NODE_NAME: 'node-1' });
    expect(conflist.plugins[0]).toMatchObject({ type: 'podwire', mtu: 1440, nodename: 'node-1' });
  });

  test('is read from a file rather than from CNI_NETWORK_CONFIG, with a warning', async () => {
    site.write('template', list('of-file', ',"mtu":__CNI_MTU__,"nodename":"__KUBERNETES_NODE_NAME__"'));
    const variables = { CNI_NETWORK_CONFIG_FILE: join(site.folder, 'template'), CNI_MTU: '1440' };
    const named = { ...variables, KUBERNETES_NODE_NAME: 'node-1' };
    const plugin = { type: 'podwire', mtu: 1440, nodename: 'node-1' };
    expect((await wantedOf(named)).conflist).toMatchObject({ name: 'of-file', plugins: [plugin] });
    expect(site.messages).toEqual([]);
    const both = await wantedOf({ ...named, CNI_NETWORK_CONFIG: list('of-text') });
    expect(both.conflist.name).toBe('of-file');
    expect(site.messages).toEqual(['CNI_NETWORK_CONFIG has no effect: CNI_NETWORK_CONFIG_FILE is set']);
  });

  test('of CNI_NETWORK_CONFIG has its placeholders replaced; unknown ones are reported', async () => {
    const text = list('of-text', ',"mtu":__CNI_MTU__,"etcd_endpoints":"__ETCD_ENDPOINTS__"');
    const { conflist } = await wantedOf({ CNI_NETWORK_CONFIG: text, CNI_MTU: '9000' });
    expect(conflist.plugins).toEqual([{ type: 'podwire', mtu: 9000, etcd_endpoints: '' }]);
    expect(site.messages).toEqual([
      'CNI_NETWORK_CONFIG has placeholders that Podwire ignores and fills with an empty value: ETCD_ENDPOINTS',
    ]);
  });

  test('is refused by its source when it is unreadable or invalid', async () => {
    const file = join(site.folder, 'template');
    const refusal = (text: string) => expect.objectContaining({ message: expect.stringContaining(text) });
    await expect(wantedOf({ CNI_NETWORK_CONFIG_FILE: file })).rejects.toEqual(
      refusal('correct CNI_NETWORK_CONFIG_FILE'),
    );
    site.write('template', '{"name":');
    await expect(wantedOf({ CNI_NETWORK_CONFIG_FILE: file })).rejects.toEqual(
      refusal(`CNI_NETWORK_CONFIG_FILE (${file})`),
    );
    mkdirSync(join(site.folder, 'folder'));
    await expect(wantedOf({ CNI_NETWORK_CONFIG_FILE: join(site.folder, 'folder') })).rejects.toMatchObject({
      code: 'INSTALL_IO',
    });
    const calico = '{"name":"n","plugins":[{"type":"calico"}]}';
    await expect(wantedOf({ CNI_NETWORK_CONFIG: calico })).rejects.toEqual(refusal('has 0 plugins of type podwire'));
  });
});
