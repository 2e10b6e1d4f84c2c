import { chmodSync, existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterAll, afterEach, beforeEach, describe, expect, test } from 'vitest';

import { cleanUp, requireThrowawayNamespace, run } from '../testing/kernels.js';
import { nftContract } from '../testing/contracts/nft-contract.js';
import { kernelNft } from '../testing/nft.js';
import { ProgramNft } from './nft-program.js';

const TABLE = { family: 'ip', name: 'podwire' } as const;

describe('the kernel’s', () => {
  beforeEach(requireThrowawayNamespace);
  afterEach(cleanUp);

  nftContract(kernelNft);

  test('foreign tables stay unchanged, byte for byte', async () => {
    run('nft', 'add', 'table', 'ip', 'podwire-not');
    run('nft', 'add', 'table', 'inet', 'theirs');
    run('nft', 'add', 'chain', 'inet', 'theirs', 'c', '{ type filter hook forward priority 0; }');
    run('nft', 'add', 'rule', 'inet', 'theirs', 'c', 'counter', 'accept');
    const before = run('nft', '-a', 'list', 'ruleset');
    const nft = new ProgramNft();
    await nft.apply([{ add: { table: TABLE } }]);
    expect(run('nft', '-a', 'list', 'ruleset')).not.toBe(before);
    await nft.apply([{ delete: { table: TABLE } }]);
    expect(run('nft', '-a', 'list', 'ruleset')).toBe(before);
  });
});

describe('a program that', () => {
  const folder = mkdtempSync(join(tmpdir(), 'podwire-nft-'));
  const script = (name: string, text: string): string => {
    const path = join(folder, name);
    writeFileSync(path, `#!/bin/sh\n${text}\n`);
    chmodSync(path, 0o755);
    return path;
  };
  afterAll(() => rmSync(folder, { recursive: true }));

  test('is missing: the failure names the package', async () => {
    const nft = new ProgramNft({ program: join(folder, 'missing') });
    const failure = { code: 'KERNEL_UNSUPPORTED', message: expect.stringContaining('apt-get install nftables') };
    await expect(nft.read(TABLE)).rejects.toMatchObject(failure);
    await expect(nft.apply([])).rejects.toMatchObject(failure);
  });

  test('runs on a kernel without nftables', async () => {
    const text = 'internal:0:0-0: Error: Could not process rule: Operation not supported';
    const nft = new ProgramNft({ program: script('unsupported', `echo '${text}' >&2; exit 1`) });
    await expect(nft.apply([])).rejects.toMatchObject({ code: 'KERNEL_UNSUPPORTED' });
    await expect(nft.read(TABLE)).rejects.toMatchObject({ code: 'KERNEL_UNSUPPORTED' });
  });

  test('refuses: its error text is reported', async () => {
    const nft = new ProgramNft({ program: script('refuses', "echo 'Error: no,  thank you' >&2; exit 1") });
    await expect(nft.apply([])).rejects.toMatchObject({
      code: 'KERNEL_REFUSED',
      message: expect.stringContaining('Error: no, thank you'),
    });
  });

  test('prints no JSON, or unexpected JSON', async () => {
    for (const answer of ['hello', '[]', '{"nftables": 7}', '']) {
      const nft = new ProgramNft({ program: script('chatter', `echo '${answer}'`) });
      await expect(nft.read(TABLE)).rejects.toMatchObject({ code: 'KERNEL_REFUSED' });
    }
  });

  test('exceeds the timeout is killed', async () => {
    const nft = new ProgramNft({ program: script('sleeper', 'exec sleep 600'), timeoutMs: 50 });
    const failure = { code: 'KERNEL_REFUSED', message: expect.stringContaining('it exceeded 50 ms') };
    await expect(nft.read(TABLE)).rejects.toMatchObject(failure);
  });

  test('has started another one that exceeds the timeout is killed with it, even when the other keeps the output open', async () => {
    const started = join(folder, 'started');
    const nft = new ProgramNft({
      program: script('wrapper', `sleep 600 & echo $! > ${started}; wait`),
      timeoutMs: 500,
    });
    const failure = { code: 'KERNEL_REFUSED', message: expect.stringContaining('it exceeded 500 ms') };
    await expect(nft.read(TABLE)).rejects.toMatchObject(failure);
    const commandLine = `/proc/${readFileSync(started, 'utf8').trim()}/cmdline`;
    // Empty for an ended process whose parent has not read its status yet.
    await expect.poll(() => (existsSync(commandLine) ? readFileSync(commandLine, 'utf8') : '')).toBe('');
  });

  test('cannot be run at the moment is not reported as missing', async () => {
    const nft = new ProgramNft({ program: script('long', 'exit 0') });
    const table = { family: 'ip', name: 'x'.repeat(1 << 20) } as const;
    await expect(nft.read(table)).rejects.toMatchObject({
      code: 'KERNEL_REFUSED',
      message: expect.stringContaining('cannot be run (spawn E2BIG)'),
    });
  });

  test('does not read its input, however large, is evaluated by its exit code', async () => {
    const nft = new ProgramNft({ program: script('deaf', 'exec <&-; exit 0') });
    const commands = Array.from({ length: 20_000 }, () => ({ add: { table: TABLE } }));
    await expect(nft.apply(commands)).resolves.toBeUndefined();
  });

  test('gets no shell that would interpret names', async () => {
    const nft = new ProgramNft({ program: script('echo', 'echo "$@" >&2; exit 1') });
    const table = { family: 'ip', name: '$(id); x' } as const;
    await expect(nft.read(table)).rejects.toThrow('list table ip $(id); x');
  });
});
