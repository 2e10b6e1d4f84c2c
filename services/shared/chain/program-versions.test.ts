import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterAll, expect, test } from 'vitest';

import { systemClock } from '../runtime/clock.js';
import { readChainVersions } from './chain-versions.js';
import { programVersions } from './program-versions.js';

const folder = mkdtempSync(join(tmpdir(), 'podwire-chain-'));
afterAll(() => rmSync(folder, { recursive: true }));

const ask = (path: string) => programVersions(path, systemClock);

function program(name: string, script: string, mode = 0o755): string {
  const path = join(folder, name);
  writeFileSync(path, `#!/bin/sh\n${script}\n`, { mode });
  return path;
}

test('Debian’s portmap, which lacks 1.1.0, answers', async () => {
  const answer = await ask('/usr/lib/cni/portmap');
  expect(answer).toMatchObject({ kind: 'answered', versions: expect.arrayContaining(['0.4.0', '1.0.0']) });
  expect(answer).not.toMatchObject({ versions: expect.arrayContaining(['1.1.0']) });
});

test.each([
  ['a program that does not speak CNI', 'echo hello', 0o755, 'exit code 0, "hello\\n"'],
  ['a program that fails', 'exit 3', 0o755, 'exit code 3'],
  ['a program that is not executable', 'exit 0', 0o644, 'EACCES'],
])('%s is reported', async (name, script, mode, reason) => {
  expect(await ask(program(name, script, mode))).toEqual({ kind: 'failed', reason });
});

test('each program of a chain is called, and loopback', async () => {
  program('one', `echo '{"cniVersion":"1.0.0","supportedVersions":["1.0.0"]}'`);
  const versions = await readChainVersions({ plugins: [{ type: 'one' }, { type: 'two' }] }, folder, ask);
  expect([...versions]).toEqual([
    ['one', { kind: 'answered', versions: ['1.0.0'] }],
    ['two', { kind: 'missing' }],
    ['loopback', { kind: 'missing' }],
  ]);
});
