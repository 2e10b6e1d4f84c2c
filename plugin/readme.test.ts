import { readFileSync } from 'node:fs';
import { join } from 'node:path';

import { FAILURE_CODES } from '@podwire/shared/failure/codes';
import { expect, test } from 'vitest';

import { readAttachConfig } from './cni/config.js';
import { INSTALL_SETTINGS } from './install/settings.js';

const read = (name: string) => readFileSync(join(import.meta.dirname, name), 'utf8');

/** The first cells of each row of the README's table under a heading. */
function rows(heading: string, cellsCount = 2): string[][] {
  const section = read('README.md').split(`## ${heading}\n`)[1]!.split('\n## ')[0]!;
  const lines = section.split('\n').filter((line) => line.startsWith('|'));
  return lines.slice(2).map((line) =>
    line
      .split('|')
      .slice(1, 1 + cellsCount)
      .map((cell) => cell.trim().replaceAll('`', '')),
  );
}

test('the README lists every setting of the installer as its help does', () => {
  const settings = Object.values(INSTALL_SETTINGS);
  const cells = settings.map(({ variable, default: usual, about }) => [variable, usual, about]);
  expect(rows('Installing on a node', 3)).toEqual(cells);
});

test('the README lists every error code', () => {
  const codes = new Set(Object.values(FAILURE_CODES).map(({ cni }) => cni));
  expect(rows('Error codes').map(([code]) => Number(code))).toEqual([...codes].sort((a, b) => a - b));
});

test('the example requests the capability that pods use, and it is read', () => {
  const [member] = JSON.parse(read('conflist/10-podwire.conflist')).plugins;
  const given = { 'cni.projectcalico.org/ipv4pools': '["a"]' };
  const capabilities: string[] = Object.keys(member.capabilities);
  // As libcni does: capabilities that are declared true and given.
  const runtimeConfig = Object.fromEntries(capabilities.map((name) => [name, given]));
  const text = JSON.stringify({ ...member, cniVersion: '1.0.0', name: 'net', runtimeConfig });
  const { annotations } = readAttachConfig('ADD', text).requestSources;
  expect([capabilities.length, annotations.ipv4Pools?.value]).toEqual([1, ['a']]);
});

test('the example is a configuration that ADD accepts', () => {
  const { cniVersion, name, plugins } = JSON.parse(read('conflist/10-podwire.conflist'));
  const config = readAttachConfig('ADD', JSON.stringify({ ...plugins[0], cniVersion, name }));
  expect(config).toMatchObject({ cniVersion: '1.0.0', name: 'k8s-pod-network' });
});
