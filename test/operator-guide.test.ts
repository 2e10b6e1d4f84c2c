import { execFileSync } from 'node:child_process';
import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { parseCommandLine } from '@podwire/ipam/commands';
import { describe, expect, test } from 'vitest';

import { FILES, read } from './architecture/tree.js';
import { ROOT } from './support/root.js';

const GUIDES = ['deploy/README.md', 'deploy/systemd/README.md'];
const PROGRAMS = join(ROOT, 'node_modules', '.bin');

/** The commands in the console blocks of a document, with continuation lines joined. */
function commandsIn(file: string): string[] {
  const blocks = [...read(file).matchAll(/```console\n([^`]*)```/g)].map(([, block]) => block!);
  return blocks.flatMap((block) => block.replaceAll('\\\n', ' ').split('\n')).filter((line) => line.trim() !== '');
}

const commands = GUIDES.flatMap(commandsIn);

/** Runs a program of this work tree. @throws Error when it fails */
function run(line: string, env: Readonly<Record<string, string>> = {}, cwd = ROOT): void {
  const PATH = `${PROGRAMS}:${process.env.PATH}`;
  execFileSync('sh', ['-c', line], { cwd, env: { ...process.env, PATH, ...env }, stdio: 'pipe' });
}

describe('the operator’s guides', () => {
  test('the way from a cluster without a network to pods has at most five commands', () => {
    const [, section] = /## Installing\n\n```console\n([^`]*)```/.exec(read('deploy/README.md'))!;
    expect(section!.trim().split('\n').length).toBeLessThanOrEqual(5);
    expect(read('deploy/README.md').split('\n').length).toBeLessThanOrEqual(200);
  });

  test('podwire-ipam accepts the commands of a backup', () => {
    const lines = commands.flatMap((line) => /(?:^|\s)podwire-ipam ((?:export|import) .+)$/.exec(line)?.[1] ?? []);
    expect(lines.length).toBeGreaterThan(0);
    expect(lines.map((line) => parseCommandLine(line.split(/\s+/)).name)).not.toContain('wrong');
  });

  test('a backup made with the guide’s commands is restored with them', () => {
    const folder = mkdtempSync(join(tmpdir(), 'podwire-backup-'));
    try {
      const [save, check, restore] = commandsIn('deploy/README.md').filter((line) => line.startsWith('podwire-ipam '));
      run(save!, { PODWIRE_IPAM_STORE_DIRECTORY: join(folder, 'old') }, folder);
      run(check!, { PODWIRE_IPAM_STORE_DIRECTORY: join(folder, 'new') }, folder);
      run(restore!, { PODWIRE_IPAM_STORE_DIRECTORY: join(folder, 'new') }, folder);
      expect(readFileSync(join(folder, 'backup.jsonl'), 'utf8')).not.toBe('');
    } finally {
      rmSync(folder, { recursive: true });
    }
  });

  test('the commands that remove Podwire from a host leave nothing', () => {
    const folder = mkdtempSync(join(tmpdir(), 'podwire-host-'));
    const [runtime, state] = [join(folder, 'run'), join(folder, 'state')];
    const env = {
      CNI_BIN_DIR: join(folder, 'bin'),
      CNI_NET_DIR: join(folder, 'net.d'),
      PODWIRE_NODE_LISTEN: `unix:${runtime}/dataplane.sock`,
      PODWIRE_NODE_RECORDS_DIRECTORY: join(runtime, 'attachments'),
    };
    try {
      run('podwire install --no-wait && test -x "$CNI_BIN_DIR/podwire"', env);
      const lines = commandsIn('deploy/README.md').filter((line) => /^(podwire |podwire-node |rm )/.test(line));
      expect(lines).toHaveLength(4);
      for (const line of lines) {
        run(line.replaceAll('/run/podwire', runtime).replaceAll('/var/lib/podwire', state), env);
      }
      expect(existsSync(join(env.CNI_BIN_DIR, 'podwire'))).toBe(false);
      expect(existsSync(join(env.CNI_NET_DIR, '10-podwire.conflist'))).toBe(false);
      expect(existsSync(runtime)).toBe(false);
    } finally {
      rmSync(folder, { recursive: true });
    }
  });

  // The chart is a separate folder: references of a guide to it are checked where it exists.
  const hasChart = FILES.some((file) => file.startsWith('deploy/kubernetes/chart/'));

  test.runIf(hasChart)('the files of the chart that a guide names exist', () => {
    const named = GUIDES.flatMap((file) =>
      [...read(file).matchAll(/deploy\/kubernetes\/[\w./-]*\w/g)].map(([path]) => path),
    );
    expect(named.filter((path) => !existsSync(join(ROOT, path)))).toEqual([]);
  });
});
