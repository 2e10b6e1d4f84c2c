import { execFileSync, spawnSync } from 'node:child_process';
import { chmodSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { dataplaneSettings } from '@podwire/dataplane/config';
import { SETTINGS as IPAM_SETTINGS } from '@podwire/ipam/config';
import { INSTALL_SETTINGS } from '@podwire/plugin/install/settings';
import { pluginSettings } from '@podwire/plugin/settings';
import type { Setting } from '@podwire/shared/runtime/config-reader';
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

  test.each(UNITS)('the exposure of %s is at most that of the README', (unit) => {
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

  test('the programs of a node share a directory that a restart keeps', () => {
    for (const unit of ['podwire-dataplane.service', 'podwire-plugin.service']) {
      expect(valueOf(unit, 'RuntimeDirectory')).toBe('podwire');
      expect(valueOf(unit, 'RuntimeDirectoryPreserve')).toBe('yes');
      expect(valueOf(unit, 'Before')).toContain('containerd.service');
    }
  });
});

describe('the environment files', () => {
  const files = {
    'ipam.env': IPAM_SETTINGS,
    'dataplane.env': dataplaneSettings('node-1'),
    'plugin.env': pluginSettings('node-1'),
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
      expect(setting, `${variable} is no setting`).toBeDefined();
      const read = setting!.schema.safeParse(value);
      expect(read.success, `${variable}=${value}: ${read.error?.message}`).toBe(true);
    }
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
  } finally {
    rmSync(root, { recursive: true });
  }
});
