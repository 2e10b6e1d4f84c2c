import { execFileSync } from 'node:child_process';
import {
  cpSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  symlinkSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';

import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { z } from 'zod';

import { packFolder, writeArchive } from '../deploy/image/oci.mjs';
import { NODE, WORKSPACES } from '../deploy/image/recipe.mjs';
import { checksums, digestsOf, notesOf, provenance } from '../deploy/release/documents.mjs';
import { packChart, writePackages } from '../deploy/release/packages.mjs';
import { FILES, read } from './architecture/tree.js';
import { ROOT } from './support/root.js';

const manifestSchema = z.object({
  version: z.string(),
  workspaces: z.array(z.string()).default([]),
  bin: z.record(z.string(), z.string()).default({}),
  dependencies: z.record(z.string(), z.string()).default({}),
  devDependencies: z.record(z.string(), z.string()).default({}),
});
const manifestOf = (folder: string) => manifestSchema.parse(JSON.parse(read(join(folder, 'package.json'))));
const { version, workspaces } = manifestOf('.');
const EPOCH_SECONDS = 1_700_000_000;

let folder: string;
beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), 'podwire-release-test-'));
});
afterEach(() => rmSync(folder, { recursive: true }));

/** Writes files below the test's folder. @returns their folder */
function makeFiles(name: string, files: Readonly<Record<string, string>>): string {
  for (const [path, text] of Object.entries(files)) {
    mkdirSync(dirname(join(folder, name, path)), { recursive: true });
    writeFileSync(join(folder, name, path), text);
  }
  return join(folder, name);
}

function run(command: string, ...args: readonly string[]): string {
  return execFileSync(command, args, { encoding: 'utf8', cwd: folder, stdio: ['ignore', 'pipe', 'pipe'] });
}

describe('the version of package.json', () => {
  test.each(workspaces)('is that of the workspace %s, and of its dependencies', (path) => {
    const manifest = manifestOf(path);
    const dependencies = Object.entries({ ...manifest.dependencies, ...manifest.devDependencies });
    const own = dependencies.filter(([name]) => name.startsWith('@podwire/')).map(([, wanted]) => wanted);
    expect(new Set([manifest.version, ...own])).toEqual(new Set([version]));
  });

  test('is that of charts, manifests and documents', () => {
    const pattern = /(?:^(?:version|appVersion): |podwire[\w-]*[:_-]|VERSION=|--version )(\d+\.\d+\.\d+)/gm;
    const files = FILES.filter((file) => /^(deploy|test\/conformance)\/.*\.(yaml|md)$/.test(file));
    const found = files.flatMap((file) => [...read(file).matchAll(pattern)].map(([, each]) => `${file}: ${each}`));
    expect(found.length).toBeGreaterThanOrEqual(12);
    expect(found.filter((each) => !each.endsWith(`: ${version}`))).toEqual([]);
  });

  test('has a section of the changelog, which becomes the notes', () => {
    expect(notesOf(read('CHANGELOG.md'), version)).toContain('**Upgrade.**');
    expect(notesOf('# Changelog\n\n## 0.2.0\n\nNew.\n\n## 0.1.0\n\nOld.\n', '0.2.0')).toBe('New.\n');
    expect(() => notesOf('# Changelog\n\n## 0.1.0\n', '0.1')).toThrow('has no section "## 0.1"');
  });
});

describe('archives have the same bytes', () => {
  const files = { 'a/one': '1', 'a/two': '2', b: '3' };

  test('whatever the order and the times of their files', () => {
    const first = makeFiles('first', files);
    const second = makeFiles('second', Object.fromEntries(Object.entries(files).toReversed()));
    utimesSync(join(second, 'b'), 1, 1);
    const packed = [first, second].map((each) => {
      packFolder({ file: `${each}.tar.gz`, folder: each, epochSeconds: EPOCH_SECONDS });
      return readFileSync(`${each}.tar.gz`, 'base64');
    });
    expect(packed[0]).toBe(packed[1]);
    expect(run('tar', '-tvzf', `${first}.tar.gz`, '--numeric-owner')).toMatch(/^(\S+ 0\/0 .*2023-11-14.*\n)+$/);
  });

  test('and an image of two architectures has an index of both', () => {
    const layers = [makeFiles('layer', files)];
    const config = { user: '1', workingDirectory: '/', environment: {}, labels: {} };
    const images = ['amd64', 'arm64'].map((arch) => ({ arch, layers }));
    const [first, second] = ['first.tar', 'second.tar'].map((name) => {
      const file = join(folder, name);
      const archive = { file, work: folder, name: 'podwire:1', epochSeconds: EPOCH_SECONDS };
      return { digest: writeArchive({ ...archive, images, config }), bytes: readFileSync(file, 'base64') };
    });
    expect(first).toEqual(second);
    const index = run('tar', '-xOf', 'first.tar', `blobs/${first!.digest.replace(':', '/')}`);
    const { manifests } = z
      .object({ manifests: z.array(z.looseObject({ platform: z.unknown() })) })
      .parse(JSON.parse(index));
    expect(manifests.map(({ platform }) => platform)).toEqual(
      ['amd64', 'arm64'].map((architecture) => ({ architecture, os: 'linux' })),
    );
  });
});

test('a packed chart has files in the place of the links of its folder', () => {
  const source = join(ROOT, 'deploy/kubernetes/chart');
  const chart = join(folder, 'chart.tgz');
  packChart({ chart, source, name: 'podwire', work: folder, epochSeconds: EPOCH_SECONDS });
  run('tar', '-xzf', chart);
  run('diff', '-r', source, 'podwire');
  expect(run('find', 'podwire', '-type', 'l')).toBe('');
  expect(run('find', 'podwire/dashboards', '-name', '*.json', '-size', '+0')).not.toBe('');
});

describe('the Debian package', () => {
  const commands = Object.entries(WORKSPACES).flatMap(([path]) =>
    Object.entries(manifestOf(path).bin).map(([name, file]) => [name, join('/opt/podwire', path, file)]),
  );

  /** Layers of an image with small programs. */
  function makeLayers() {
    const manifests = Object.keys(WORKSPACES).map((path) => [
      `opt/podwire/${path}/package.json`,
      read(join(path, 'package.json')),
    ]);
    const programs = commands.map(([, file]) => [file!.slice(1), '#!/bin/sh\n']);
    const packages = ['deb-libc6-2', 'deb-bird2-2', 'npm-zod-4'].map((id) => ({ SPDXID: `SPDXRef-${id}` }));
    const sbom = JSON.stringify({
      name: 'podwire-1-amd64',
      documentNamespace: 'urn:podwire:sbom:1',
      packages,
      relationships: [],
    });
    const podwire = makeFiles('podwire', {
      ...Object.fromEntries([...manifests, ...programs]),
      'usr/share/podwire/sbom.spdx.json': sbom,
      'usr/share/podwire/licenses/debian/bird2': 'GPL',
      'usr/share/podwire/licenses/podwire': 'Apache',
    });
    mkdirSync(join(podwire, 'usr/local/bin'), { recursive: true });
    for (const [name, file] of commands) symlinkSync(file!, join(podwire, 'usr/local/bin', name!));
    return { base: makeFiles('base', { [NODE.program]: '#!/bin/sh\n' }), podwire };
  }

  function write(output: string): string {
    const layers = existsSync(join(folder, 'base'))
      ? { base: join(folder, 'base'), podwire: join(folder, 'podwire') }
      : makeLayers();
    mkdirSync(join(folder, output));
    const commit = { version, epochSeconds: EPOCH_SECONDS };
    writePackages({ arch: 'amd64', source: ROOT, layers, commit, work: folder, output: join(folder, output) });
    return join(folder, output, `podwire_${version}_amd64.deb`);
  }

  test('and the archive have the same bytes each time, and the same files', () => {
    const [first, second] = ['first', 'second'].map((output) => {
      write(output);
      return digestsOf(join(folder, output), readdirSync(join(folder, output)));
    });
    expect(Object.keys(first!)).toHaveLength(2);
    expect(second).toEqual(first);
    const packed = run('sh', '-c', 'dpkg-deb --fsys-tarfile first/*.deb | tar -t').split('\n');
    const archived = run('sh', '-c', 'tar -tzf first/*.tar.gz').split('\n');
    expect(packed.map((path) => path.replace('./', '')).toSorted()).toEqual([...archived, ''].toSorted());
  });

  test('has the units’ programs, with Node.js in their PATH', () => {
    run('dpkg-deb', '-x', write('output'), 'root');
    expect(readdirSync(join(folder, 'root/usr/bin')).toSorted()).toEqual(commands.map(([name]) => name).toSorted());
    const units = join(folder, 'root/usr/lib/systemd/system');
    expect(readdirSync(units)).toHaveLength(3);
    for (const unit of readdirSync(units)) {
      const text = readFileSync(join(units, unit), 'utf8');
      const [, name] = /^ExecStart=\/usr\/bin\/(\S+)/m.exec(text)!;
      expect(existsSync(join(folder, 'root', Object.fromEntries(commands)[name!]))).toBe(true);
      expect(text).toContain(`PATH=${dirname(NODE.program)}:`);
      const [, settings] = /^EnvironmentFile=(\S+)/m.exec(text)!;
      expect(existsSync(join(folder, 'root', settings!))).toBe(true);
    }
  });

  test('names version, architecture and configuration files, and has root as owner', () => {
    const file = write('output');
    expect(run('dpkg-deb', '--field', file, 'Version', 'Architecture')).toBe(
      `Version: ${version}\nArchitecture: amd64\n`,
    );
    const control = run('dpkg-deb', '--info', file, 'conffiles').trim().split('\n');
    expect(control).toEqual(['ipam.env', 'node.env', 'install.env'].map((name) => `/etc/podwire/${name}`));
    const owners = run('dpkg-deb', '--contents', file)
      .trim()
      .split('\n')
      .map((line) => line.split(/\s+/)[1]);
    expect(new Set(owners)).toEqual(new Set(['root/root']));
    for (const script of ['postinst', 'prerm', 'postrm']) {
      cpSync(makeFiles('scripts', { [script]: run('dpkg-deb', '--info', file, script) }), join(folder, 'checked'), {
        recursive: true,
      });
      run('sh', '-n', join(folder, 'checked', script));
    }
  });

  test('has licences and bill of materials of its own files', () => {
    run('dpkg-deb', '-x', write('output'), 'root');
    const documents = join(folder, 'root/usr/share/podwire');
    expect(readdirSync(join(documents, 'licenses'))).toEqual(['podwire']);
    const sbom = readFileSync(join(documents, 'sbom.spdx.json'), 'utf8');
    expect([...sbom.matchAll(/SPDXRef-[\w-]+/g)].map(([id]) => id)).toEqual([
      'SPDXRef-deb-libc6-2',
      'SPDXRef-npm-zod-4',
    ]);
  });
});

describe('the documents', () => {
  test('have checksums that find a changed file', () => {
    const output = makeFiles('output', { one: '1', two: '2' });
    writeFileSync(join(output, 'SHA256SUMS'), checksums(digestsOf(output, readdirSync(output))));
    const check = () => run('sh', '-c', 'cd output && sha256sum --check --strict SHA256SUMS');
    expect(check()).toBe('one: OK\ntwo: OK\n');
    writeFileSync(join(output, 'two'), '3');
    expect(check).toThrow('1 computed checksum did NOT match');
  });

  test('have a provenance with the commit, the materials once, and no time', () => {
    const material = {
      name: 'zod',
      externalRefs: [{ referenceLocator: 'pkg:npm/zod@4' }],
      checksums: [{ checksumValue: 'ab' }],
    };
    const sbom = { packages: [{ name: 'podwire', externalRefs: [] }, material] };
    const commit = { version, revision: 'c0ffee' };
    const statement = provenance({ digests: { one: 'ff' }, commit, sboms: [sbom, sbom], builder: { gcc: '12' } });
    expect(statement).toMatchObject({
      subject: [{ name: 'one', digest: { sha256: 'ff' } }],
      predicate: {
        buildDefinition: {
          resolvedDependencies: [
            { name: 'podwire', digest: { gitCommit: 'c0ffee' } },
            { uri: 'pkg:npm/zod@4', digest: { sha512: 'ab' } },
          ],
        },
      },
    });
    expect(JSON.stringify(statement)).not.toMatch(/\d{4}-\d\d-\d\d/);
  });
});
