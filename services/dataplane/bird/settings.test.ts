import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { readSettings } from '@podwire/shared/settings/config-reader';
import { afterEach, beforeEach, expect, test } from 'vitest';

import { FULL_MESH } from './peers-file.js';
import { BIRD_SETTINGS, birdSettings, readPeerPlan } from './settings.js';

const read = (env: Record<string, string>) => readSettings({ settings: BIRD_SETTINGS, prefix: 'PODWIRE_BIRD_', env });

let directory: string;
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'podwire-bird-settings-'));
});
afterEach(() => rmSync(directory, { recursive: true, force: true }));

test('without BIRD the file is not read', async () => {
  expect(await readPeerPlan(read({ PODWIRE_BIRD_PEERS_FILE: '/nowhere' }))).toBeUndefined();
});

test('with BIRD and no file: the full mesh', async () => {
  expect(await readPeerPlan(read({ PODWIRE_ROUTING: 'bird' }))).toEqual(FULL_MESH);
});

test('with a file: its content, or every fault of it', async () => {
  const path = join(directory, 'peers.yaml');
  const config = read({ PODWIRE_ROUTING: 'bird', PODWIRE_BIRD_PEERS_FILE: path });
  writeFileSync(path, 'mesh: false\n');
  expect(await readPeerPlan(config)).toEqual({ ...FULL_MESH, mesh: false });
  writeFileSync(path, 'mesh: 7\ncolour: blue\n');
  await expect(readPeerPlan(config)).rejects.toMatchObject({
    code: 'INVALID_SETTINGS',
    violations: [{ field: 'mesh' }, { field: 'colour' }],
  });
});

test('every setting is passed to BIRD', () => {
  const env = {
    PODWIRE_BIRD_AS_NUMBER: '65001',
    PODWIRE_BIRD_CONFIG_FILE: '/a/bird.conf',
    PODWIRE_BIRD_CONTROL_SOCKET: '/a/bird.ctl',
    PODWIRE_BIRD_RUN: 'child',
    PODWIRE_BIRD_PROGRAM: '/a/bird',
    PODWIRE_BIRD_POLL_MS: '100',
  };
  expect(birdSettings(read(env), FULL_MESH)).toEqual({
    plan: FULL_MESH,
    asNumber: 65_001,
    run: 'child',
    pollMs: 100,
    files: { program: '/a/bird', configPath: '/a/bird.conf', socketPath: '/a/bird.ctl' },
  });
});

test.each(['/a/"b', '/a\nb', 'a'])('%j is refused as a path', (path) => {
  const env = { PODWIRE_BIRD_CONFIG_FILE: path, PODWIRE_BIRD_CONTROL_SOCKET: path, PODWIRE_BIRD_PEERS_FILE: path };
  expect(() => read(env)).toThrow(/PEERS_FILE.*CONFIG_FILE.*CONTROL_SOCKET/s);
});
