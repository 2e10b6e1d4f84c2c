import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { NOTHING, Plugin, recordingLog } from '../testing/plugin.js';
import type { ProviderSource } from './address-provider.js';
import { ProviderHistory } from './provider-history.js';

const ATTACHMENT = { network: 'net', containerId: 'c0ffee', interfaceName: 'eth0' };
const DONE = { exitCode: 0, stdout: '' };

let folder: string;

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'podwire-providers-'));
});

afterEach(() => rmSync(folder, { recursive: true }));

/** An IPAM plugin that returns one address, and records its calls with their container. */
function install(type: string, first = ':'): void {
  const result = JSON.stringify({ cniVersion: '1.0.0', ips: [{ address: '192.0.2.7/24' }] });
  const lines = [
    '#!/bin/sh',
    `echo "${type} $CNI_COMMAND $CNI_CONTAINERID $CNI_IFNAME" >> ${folder}/calls`,
    `cat > ${folder}/stdin`,
    first,
    `test "$CNI_COMMAND" != ADD || echo '${result}'`,
  ];
  writeFileSync(join(folder, type), `${lines.join('\n')}\n`, { mode: 0o755 });
}

const calls = (): string[] => {
  try {
    return readFileSync(join(folder, 'calls'), 'utf8').trim().split('\n');
  } catch {
    return [];
  }
};

const path = () => join(folder, 'state', 'address-providers');
const variables = () => ({ CNI_PATH: folder });
const delegate = (type: string, rest: object = {}): ProviderSource => {
  const configuration = JSON.stringify({ cniVersion: '1.0.0', name: 'net', ipam: { type }, ...rest });
  return { delegate: { type, variables: variables(), configuration } };
};

function openHistory(bootId = 'boot-1') {
  const { log, lines } = recordingLog();
  return { history: new ProviderHistory({ path: path(), bootId, log }), lines };
}

test('no provider allocates before its name is stored, also while the same name is already being written', async () => {
  const path = join(folder, 'state', 'history');
  const history = new ProviderHistory({ path, bootId: 'boot', log: recordingLog().log });
  const first = history.record('net', {});
  // The file is being written by then.
  for (let turn = 0; turn < 3; turn++) await Promise.resolve();
  await history.record('net', {});
  expect(existsSync(path)).toBe(true);
  await first;
});

describe('a change of ipam.type, with a restart of the plugin in between', () => {
  let plugin: Plugin;

  const restarted = async () => {
    const { ipam, dataplane } = plugin;
    await plugin.end();
    plugin = new Plugin({ providerHistoryPath: path(), ipam, dataplane });
    await plugin.start();
  };

  beforeEach(async () => {
    plugin = await new Plugin({ providerHistoryPath: path() }).start();
    install('other-ipam');
    install('third-ipam');
  });

  afterEach(() => plugin.end());

  const as = (type: string) => ({ variables: variables(), config: { ipam: { type } } });

  test.each([
    ['podwire-ipam', 'other-ipam'],
    ['other-ipam', 'podwire-ipam'],
    ['other-ipam', 'third-ipam'],
  ])('from %s to %s: DEL releases the address at its own provider', async (before, after) => {
    expect(await plugin.run('ADD', as(before))).toMatchObject({ exitCode: 0 });
    await restarted();
    expect(await plugin.run('DEL', as(after))).toEqual(DONE);
    expect(plugin.state()).toBe(NOTHING);
    expect(calls().filter((call) => call.startsWith(before))).toEqual(
      before === 'podwire-ipam' ? [] : [`${before} ADD c0ffee eth0`, `${before} DEL c0ffee eth0`],
    );
    expect(plugin.journal.isIdle).toBe(true);
  });

  test('pending releases of the former one are in the journal, and DEL succeeds', async () => {
    await plugin.run('ADD', as('podwire-ipam'));
    await restarted();
    plugin.script.lacks.add('Release');
    expect(await plugin.run('DEL', as('other-ipam'))).toEqual(DONE);
    expect(plugin.journal.entries()).toMatchObject([{ action: 'release' }]);
    plugin.script.lacks.clear();
    await plugin.replayed();
    expect(plugin.state()).toBe(NOTHING);
  });

  test('DELs wait once for a former one that hangs; the journal releases the rest', async () => {
    await plugin.end();
    plugin = await new Plugin({ providerHistoryPath: path(), delServiceTimeoutMs: 1000 }).start();
    const run = (command: string, type: string, containerId: string) =>
      plugin.run(command, { ...as(type), variables: { ...variables(), CNI_CONTAINERID: containerId } });
    const reasonOf = (containerId: string) => plugin.journal.get({ ...ATTACHMENT, containerId })?.reason;
    await run('ADD', 'other-ipam', 'none');
    install('other-ipam', 'sleep 60');
    await run('DEL', 'podwire-ipam', 'a');
    expect(reasonOf('a')).toContain('was killed');
    await run('DEL', 'podwire-ipam', 'b');
    expect(reasonOf('b')).toBe('IPAM plugin other-ipam does not answer');

    install('other-ipam');
    await plugin.replayed();
    await run('DEL', 'podwire-ipam', 'c');
    expect(plugin.journal.isIdle).toBe(true);
    const lastDels = ['a', 'b', 'c'].map((containerId) => `other-ipam DEL ${containerId} eth0`);
    expect(calls()).toEqual(expect.arrayContaining(lastDels));
  });

  test('GC releases what IPAM allocated before', async () => {
    await plugin.run('ADD', as('podwire-ipam'));
    await restarted();
    plugin.ipam.put({ ...ATTACHMENT, containerId: 'left' });
    const config = { ...as('other-ipam').config, cniVersion: '1.1.0', 'cni.dev/valid-attachments': [] };
    const rest = { startedNs: BigInt(Date.now() + 60_000) * 1_000_000n };
    expect(await plugin.run('GC', { ...as('other-ipam'), config, rest })).toEqual(DONE);
    expect(plugin.state()).toBe(NOTHING);
  });

  test('without one, no other plugin is called', async () => {
    await plugin.run('ADD', as('other-ipam'));
    await restarted();
    for (let count = 0; count < 2; count++) expect(await plugin.run('DEL', as('other-ipam'))).toEqual(DONE);
    expect(calls()).toHaveLength(3);
    expect(plugin.script.calls.filter((call) => /Allocate|Release/.test(call))).toEqual([]);
  });
});

describe('the stored provider history', () => {
  test('is readable by root alone, has each provider once, and no data of single pods', async () => {
    const first = openHistory().history;
    await first.record('net', {});
    await first.record(
      'net',
      delegate('other-ipam', { runtimeConfig: { mac: 'secret' }, prevResult: {}, subnet: 'a' }),
    );
    const { ino, mode } = statSync(path());
    expect(mode & 0o777).toBe(0o600);
    expect(readFileSync(path(), 'utf8')).not.toContain('secret');
    await first.record('net', delegate('other-ipam', { runtimeConfig: { mac: 'other' }, subnet: 'a' }));
    await first.record('net', {});
    // Each write creates a new file.
    expect(statSync(path()).ino).toBe(ino);
    await first.record('net', delegate('other-ipam', { subnet: 'b' }));
    expect(statSync(path()).ino).not.toBe(ino);
    expect(readFileSync(path(), 'utf8')).not.toContain('"a"');
  });

  test('keeps podwire-ipam for one boot: the dataplane releases the addresses of dead pods', async () => {
    await openHistory().history.record('net', {});
    const [same, later] = [openHistory().history, openHistory('boot-2').history];
    await Promise.all([same.load(), later.load()]);
    expect([same, later].map((each) => each.formerProviders(ATTACHMENT, delegate('other-ipam')).isIpam)).toEqual([
      true,
      false,
    ]);
  });

  test('drops a plugin whose program is gone, with one log line', async () => {
    install('other-ipam');
    const { history: all, lines } = openHistory();
    await all.record('net', delegate('other-ipam'));
    expect(all.formerProviders(ATTACHMENT, {}).delegates).toMatchObject([{ type: 'other-ipam' }]);
    rmSync(join(folder, 'other-ipam'));
    for (let count = 0; count < 2; count++) expect(all.formerProviders(ATTACHMENT, {}).delegates).toEqual([]);
    expect(lines().map(({ msg }) => msg)).toEqual([
      expect.stringContaining('other-ipam allocated addresses in network net'),
    ]);
  });

  test('is bounded', async () => {
    const { history: all } = openHistory();
    for (let count = 0; count < 300; count++) await all.record(`net-${count}`, {});
    expect(Object.keys(JSON.parse(readFileSync(path(), 'utf8')).networks)).toHaveLength(256);
    expect([all.hasIpamAllocated('net-0'), all.hasIpamAllocated('net-299')]).toEqual([false, true]);
  });

  test.each(['', '{"version":2}', '{"version":1,"networks":{"net":{}}}', '\u0000'])(
    'that cannot be read counts as empty, and is reported: %j',
    async (text) => {
      mkdirSync(join(folder, 'state'));
      writeFileSync(path(), text);
      const { history: all, lines } = openHistory();
      await all.load();
      expect(all.hasIpamAllocated('net')).toBe(false);
      expect(lines()).toMatchObject([{ level: 'warn', msg: expect.stringContaining('cannot be read') }]);
    },
  );

  test('that cannot be stored fails no command, is reported once, and is stored later', async () => {
    writeFileSync(join(folder, 'state'), 'a file where the directory is to be');
    const { history: all, lines } = openHistory();
    for (let count = 0; count < 2; count++) await all.record('net', {});
    expect(lines()).toMatchObject([{ level: 'warn', msg: expect.stringContaining('cannot be written') }]);
    expect(all.hasIpamAllocated('net')).toBe(true);
    rmSync(join(folder, 'state'));
    await all.record('net', {});
    expect(readFileSync(path(), 'utf8')).toContain('"net"');
  });
});

test('a network is always wired if no other main plugin ever used its addresses', async () => {
  const { history } = openHistory();
  await history.load();
  await history.record('earlier', {});
  await history.record('full', { kind: 'full' });
  await history.record('both', { kind: 'full' });
  await history.record('both', { kind: 'ipam-only' });
  const next = openHistory().history;
  await next.load();
  for (const each of [history, next])
    expect(['earlier', 'full', 'both', 'unknown'].map((network) => each.isAlwaysWired(network))).toEqual([
      false,
      true,
      false,
      false,
    ]);
});
