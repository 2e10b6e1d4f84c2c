import { readFileSync } from 'node:fs';
import { join } from 'node:path';

import { FAILURE_CODES } from '@podwire/shared/failure/codes';
import { expect, test } from 'vitest';

import { readAttachConfig } from './cni/config.js';
import { INSTALL_SETTINGS } from './install/settings.js';

const read = (name: string) => readFileSync(join(import.meta.dirname, name), 'utf8');

/** A section of podwire-node's guide. */
function section(heading: string): string {
  return read('../services/node/README.md').split(`## ${heading}\n`)[1]!.split('\n## ')[0]!;
}

test('the guide names every setting of the installer, and no other', () => {
  const table = section('Installing on a node')
    .split('\n')
    .filter((line) => line.startsWith('| `'));
  const named = [...table.join('\n').matchAll(/`([A-Z][A-Z_]+)`/g)].map(([, variable]) => variable!);
  const variables = Object.values(INSTALL_SETTINGS).map(({ variable }) => variable);
  expect(named.toSorted()).toEqual(variables.toSorted());
});

test('the guide lists every error code', () => {
  const listed = [...section('Error codes').matchAll(/^\| (\d+) /gm)].map(([, code]) => Number(code));
  const codes = new Set<number>(Object.values(FAILURE_CODES).map(({ cni }) => cni));
  expect(listed).toEqual([...codes].sort((a, b) => a - b));
});

test('the example requests the capabilities that pods use, and they are read', () => {
  const [member] = JSON.parse(read('conflist/10-podwire.conflist')).plugins;
  const given: Readonly<Record<string, unknown>> = {
    'io.kubernetes.cri.pod-annotations': { 'cni.projectcalico.org/ipv4pools': '["a"]' },
    portMappings: [{ hostPort: 8080, containerPort: 80, protocol: 'tcp' }],
  };
  // Capabilities as libcni passes them: capabilities that are declared true and given.
  const runtimeConfig = Object.fromEntries(Object.keys(member.capabilities).map((name) => [name, given[name]]));
  const text = JSON.stringify({ ...member, cniVersion: '1.0.0', name: 'net', runtimeConfig });
  const { annotations, hostPorts } = readAttachConfig('ADD', text).requestSources;
  expect([annotations.ipv4Pools?.value, hostPorts.map(({ hostPort }) => hostPort)]).toEqual([['a'], [8080]]);
});

test('the example is a configuration that ADD accepts', () => {
  const { cniVersion, name, plugins } = JSON.parse(read('conflist/10-podwire.conflist'));
  const config = readAttachConfig('ADD', JSON.stringify({ ...plugins[0], cniVersion, name }));
  expect(config).toMatchObject({ cniVersion: '1.0.0', name: 'k8s-pod-network' });
});
