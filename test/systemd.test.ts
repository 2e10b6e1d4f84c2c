import { execFileSync, spawnSync } from 'node:child_process';
import {
  chmodSync,
  copyFileSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { Fakes } from '@podwire/ctl/testing/ctl';
import { SETTINGS as IPAM_SETTINGS } from '@podwire/ipam/config';
import type { RunningService } from '@podwire/ipam/service';
import { clientLimits, Place } from '@podwire/ipam/testing/service';
import { nodeSettings, readNodeSettings } from '@podwire/node/settings';
import { INSTALL_SETTINGS } from '@podwire/plugin/install/settings';
import { NodeServiceService, RegisterNodeRequest } from '@podwire/proto/podwire/ipam/v1/node';
import { Peer } from '@podwire/shared/rpc/client';
import { systemClock } from '@podwire/shared/runtime/clock';
import type { Setting } from '@podwire/shared/settings/config-reader';
import { recordingLog } from '@podwire/shared/testing/server';
import { ipamTls } from '@podwire/shared/tls/certificate-source';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { z } from 'zod';

import { WORKSPACES } from '../deploy/image/recipe.mjs';
import { ROOT } from './support/root.js';

const FOLDER = join(ROOT, 'deploy', 'systemd');
const UNITS = readdirSync(FOLDER).filter((name) => name.endsWith('.service'));

/** The values of one setting of a unit, in order. */
function valuesOf(unit: string, key: string): string[] {
  const lines = readFileSync(join(FOLDER, unit), 'utf8').split('\n');
  return lines.filter((line) => line.startsWith(`${key}=`)).map((line) => line.slice(key.length + 1));
}

const valueOf = (unit: string, key: string) => valuesOf(unit, key).at(-1);

/** The variables of an environment file, also of its examples in comments. */
function assignmentsIn(name: string): [name: string, value: string][] {
  const text = readFileSync(join(FOLDER, 'env', name), 'utf8');
  return [...text.matchAll(/^#?([A-Z][A-Z0-9_]*)=(.*)$/gm)].map(([, variable, value]) => [variable!, value!]);
}

describe('the units', () => {
  let folder: string;

  beforeAll(() => {
    folder = mkdtempSync(join(tmpdir(), 'podwire-units-'));
    // Units are checked with programs that exist.
    mkdirSync(join(folder, 'bin'));
    for (const unit of UNITS) {
      const text = readFileSync(join(FOLDER, unit), 'utf8').replaceAll('/usr/bin/', `${folder}/bin/`);
      writeFileSync(join(folder, unit), text);
      const [program = ''] = valueOf(unit, 'ExecStart')!.split(' ');
      const path = program.replace('/usr/bin/', `${folder}/bin/`);
      writeFileSync(path, '#!/bin/sh\n');
      chmodSync(path, 0o755);
    }
  });
  afterAll(() => rmSync(folder, { recursive: true }));

  function analyze(...args: readonly string[]) {
    const { status, stdout, stderr, error } = spawnSync('systemd-analyze', args, {
      encoding: 'utf8',
      env: { ...process.env, SYSTEMD_UNIT_PATH: `${folder}:/lib/systemd/system:/usr/lib/systemd/system` },
    });
    if (error) throw new Error('systemd-analyze: not installed; as root on Debian: apt-get install systemd');
    return { status, output: `${stdout}${stderr}` };
  }

  test.each(UNITS)('systemd-analyze verifies %s', (unit) => {
    const { status, output } = analyze('verify', '--recursive-errors=no', '--man=no', join(folder, unit));
    expect(output.split('\n').filter((line) => line.includes('podwire'))).toEqual([]);
    expect(status).toBe(0);
  });

  const readme = readFileSync(join(FOLDER, 'README.md'), 'utf8');

  test.each(UNITS)('the exposure of %s is at most the README’s', (unit) => {
    const [, documented] = new RegExp(`\`${unit}\` +\\| ([0-9.]+)`).exec(readme)!;
    const threshold = String(Number(documented) * 10 + 1);
    const { status, output } = analyze('security', '--offline=true', `--threshold=${threshold}`, join(folder, unit));
    expect(status, output).toBe(0);
  });

  const commands = Object.keys(WORKSPACES).flatMap((workspace) => {
    const manifest = z
      .object({ bin: z.record(z.string(), z.string()).optional() })
      .parse(JSON.parse(readFileSync(join(ROOT, workspace, 'package.json'), 'utf8')));
    return Object.keys(manifest.bin ?? {});
  });

  test.each(UNITS)('%s starts a program of the image, and is back a few seconds after each end', (unit) => {
    const [program = ''] = valueOf(unit, 'ExecStart')!.split(' ');
    expect(commands.map((command) => `/usr/bin/${command}`)).toContain(program);
    expect([valueOf(unit, 'Restart'), valueOf(unit, 'StartLimitIntervalSec')]).toEqual(['always', '0']);
    expect(Number(valueOf(unit, 'RestartSec'))).toBeLessThanOrEqual(5);
    expect([valueOf(unit, 'NoNewPrivileges'), valueOf(unit, 'ProtectSystem')]).toEqual(['yes', 'strict']);
    expect(valuesOf(unit, 'CapabilityBoundingSet')).toHaveLength(1);
  });

  test('podwire-node keeps its directories at a restart and serves before the runtime', () => {
    const unit = 'podwire-node.service';
    expect(valueOf(unit, 'RuntimeDirectory')).toBe('podwire');
    expect(valueOf(unit, 'RuntimeDirectoryPreserve')).toBe('yes');
    expect(valueOf(unit, 'StateDirectory')).toBe('podwire/plugin');
    expect(valueOf(unit, 'Before')).toContain('containerd.service');
  });
});

describe('the environment files', () => {
  const files = {
    'ipam.env': IPAM_SETTINGS,
    'node.env': nodeSettings('node-1'),
    'install.env': INSTALL_SETTINGS,
  };

  test('each unit reads one, and each is read', () => {
    const read = UNITS.flatMap((unit) => valuesOf(unit, 'EnvironmentFile'));
    expect(read.toSorted()).toEqual(
      Object.keys(files)
        .map((name) => `/etc/podwire/${name}`)
        .toSorted(),
    );
    expect(readdirSync(join(FOLDER, 'env')).toSorted()).toEqual(Object.keys(files).toSorted());
  });

  test.each(Object.entries(files))('%s has only settings of the program, with valid values', (name, settings) => {
    const byVariable = new Map<string, Setting<unknown>>(
      Object.values(settings).map((setting) => [setting.variable, setting]),
    );
    for (const [variable, value] of assignmentsIn(name)) {
      const setting = byVariable.get(variable);
      expect(setting, `${variable} is not a setting`).toBeDefined();
      const read = setting!.schema.safeParse(value);
      expect(read.success, `${variable}=${value}: ${read.error?.message}`).toBe(true);
    }
  });
});

describe('several hosts', () => {
  const place = new Place();
  const fakes = new Fakes();
  const tls = join(place.directory, 'tls');
  const log = recordingLog().log;
  const peers: Peer[] = [];
  let service: RunningService;

  /** The lines about TLS of an environment file, filled for this machine. */
  function tlsLines(name: string, address: string): Record<string, string> {
    const paragraph = readFileSync(join(FOLDER, 'env', name), 'utf8')
      .split('\n\n')
      .find((part) => part.includes('_TLS_'));
    const values = [...paragraph!.matchAll(/^#?([A-Z][A-Z0-9_]*)=(.*)$/gm)].map(([, variable, value]) => {
      const own = value!.replaceAll('/etc/podwire/tls', tls).replace('unix:/run/podwire-ipam/ipam.sock', place.address);
      return [variable!, own.replace('192.0.2.1:9650', address)];
    });
    return Object.fromEntries(values);
  }

  beforeAll(async () => {
    mkdirSync(tls);
    const [, commands] = /```sh\n([^`]*)```/.exec(readFileSync(join(FOLDER, 'README.md'), 'utf8'))!;
    const [create, ...rest] = commands!.trim().split('\n');
    const certificates = join(place.directory, 'certificates');
    const words = create!.replace('--directory certificates', `--directory ${certificates}`).split(' ');
    expect(words.shift()).toBe('podwirectl');
    expect(await fakes.podwirectl(...words)).toMatchObject({ exitCode: 0 });
    // The user is made by a package.
    const script = rest.join('\n').replace('-g podwire', '-g 0').replaceAll('/etc/podwire/tls', tls);
    execFileSync('sh', ['-e', '-c', script], { cwd: place.directory, stdio: 'pipe' });
    for (const kind of ['crt', 'key'])
      copyFileSync(join(certificates, `node-node-2.${kind}`), join(tls, `node.${kind}`));
    service = await place.start(tlsLines('ipam.env', '127.0.0.1:0'));
  });
  afterAll(async () => {
    for (const peer of peers) peer.close();
    await service.stop();
    await fakes.clear();
    place.remove();
  });

  /** Registers a node as podwire-node with the settings of the environment file. */
  function registration() {
    const address = service.addresses.find((each) => !each.startsWith('unix:'))!;
    const env = tlsLines('node.env', address);
    expect(Object.values(env)).toContain(address);
    const files = readNodeSettings(env, 'node-2').ipamTls;
    const peer = new Peer('podwire-ipam', address, { tls: ipamTls(files, { clock: systemClock, log }) });
    peers.push(peer);
    return (node: string) => {
      const request = RegisterNodeRequest.fromPartial({ name: node, ipv4Address: '192.0.2.7/24' });
      return peer.call(NodeServiceService.registerNode, request, clientLimits());
    };
  }

  test('reach podwire-ipam with the README’s certificates and node.env, each for its own node', async () => {
    const registerAs = registration();
    await expect(registerAs('node-2')).resolves.toMatchObject({ node: { name: 'node-2' } });
    await expect(registerAs('node-1')).rejects.toMatchObject({ code: 'ACCESS_DENIED' });
  });

  test('have every setting of TLS in the environment files', () => {
    const names = (settings: Readonly<Record<string, { readonly variable: string }>>) =>
      Object.values(settings)
        .map(({ variable }) => variable)
        .filter((variable) => variable.includes('_TLS_'));
    const examples = ['ipam.env', 'node.env'].flatMap((name) => assignmentsIn(name).map(([variable]) => variable));
    const settings = [IPAM_SETTINGS, nodeSettings('node-1')].flatMap(names);
    expect(settings.length).toBeGreaterThanOrEqual(6);
    expect(settings.filter((variable) => !examples.includes(variable))).toEqual([]);
  });
});

test('systemd reads the user and the directories', () => {
  const root = mkdtempSync(join(tmpdir(), 'podwire-root-'));
  try {
    for (const path of ['etc', 'usr/lib/sysusers.d', 'usr/lib/tmpfiles.d'])
      mkdirSync(join(root, path), { recursive: true });
    writeFileSync(join(root, 'usr/lib/sysusers.d/podwire.conf'), readFileSync(join(FOLDER, 'podwire.sysusers')));
    execFileSync('systemd-sysusers', [`--root=${root}`, 'podwire.conf'], { stdio: 'pipe' });
    expect(readFileSync(join(root, 'etc/passwd'), 'utf8')).toMatch(/^podwire:/m);
    writeFileSync(join(root, 'usr/lib/tmpfiles.d/podwire.conf'), readFileSync(join(FOLDER, 'podwire.tmpfiles')));
    execFileSync('systemd-tmpfiles', [`--root=${root}`, '--create', 'podwire.conf'], { stdio: 'pipe' });
    const modes = ['run/podwire', 'run/podwire-ipam', 'etc/podwire/tls'].map((path) => statSync(join(root, path)).mode);
    expect(modes.map((mode) => (mode & 0o777).toString(8))).toEqual(['700', '700', '750']);
  } finally {
    rmSync(root, { recursive: true });
  }
});
