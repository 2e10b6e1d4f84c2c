import { existsSync, mkdtempSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { Failure } from '@podwire/shared/failure/failure';
import { afterEach, beforeEach, expect, test, vi } from 'vitest';

import { Plugin } from '../testing/plugin.js';

const ATTACHMENT = { network: 'net', containerId: 'c0ffee', interfaceName: 'eth0' };
const DONE = { exitCode: 0, stdout: '' };

let plugin: Plugin;
let folder: string;

beforeEach(async () => {
  plugin = await new Plugin().start();
  folder = mkdtempSync(join(tmpdir(), 'podwire-discard-'));
});

afterEach(async () => {
  expect(plugin.script.unusedFaults()).toEqual([]);
  await plugin.end();
  rmSync(folder, { recursive: true });
});

const discard = (cancel = new AbortController()) => plugin.parts.releases.discard(ATTACHMENT, cancel);

/** The other IPAM plugin of the network: a shell script that works whenever the replay calls it. */
function install(script: string): void {
  const path = join(folder, 'other-ipam');
  writeFileSync(`${path}.next`, `#!/bin/sh\n${script}\n`, { mode: 0o755 });
  renameSync(`${path}.next`, path);
}

const run = (command: string) =>
  plugin.run(command, {
    variables: { CNI_PATH: folder },
    config: { cniVersion: '1.1.0', ipam: { type: 'other-ipam' } },
  });

const GIVES = `test "$CNI_COMMAND" = ADD && echo '{"cniVersion":"1.1.0","ips":[{"address":"192.0.2.7/24"}]}'; exit 0`;

/** The pod and its interface are gone; the other IPAM plugin refuses to release the addresses. */
async function refusedRelease(): Promise<void> {
  install(GIVES);
  expect(await run('ADD')).toMatchObject({ exitCode: 0 });
  install(`test "$CNI_COMMAND" = GC && exit 0; echo '{"code":7,"msg":"no subnet"}'; exit 1`);
  expect(await run('DEL')).toEqual(DONE);
}

test('discarding a refused release lets GC and ADD succeed', async () => {
  await refusedRelease();
  for (const command of ['GC', 'ADD']) expect((await run(command)).stdout).toContain('no subnet');
  expect(await discard()).toMatchObject({
    attachment: ATTACHMENT,
    action: 'release',
    delegate: { type: 'other-ipam' },
  });
  const warned = plugin.record.lines().filter(({ msg }) => String(msg).includes('is discarded'));
  expect(warned).toEqual([expect.objectContaining({ level: 'warn', providers: ['other-ipam'] })]);
  expect(plugin.journal.isIdle).toBe(true);
  expect(plugin.store.texts.size).toBe(0);
  expect(await run('GC')).toEqual(DONE);
  expect(await discard()).toBeUndefined();
  install(GIVES);
  expect(await run('ADD')).toMatchObject({ exitCode: 0 });
});

test('discarding waits for an attempt in flight; a completed entry is not found', async () => {
  await plugin.run('ADD');
  plugin.script.failNext('DetachPod', new Failure('KERNEL_REFUSED', 'EBUSY'));
  expect(await plugin.run('DEL')).toEqual(DONE);
  await plugin.stopServices();
  await plugin.start();
  const letGo = plugin.script.hold('Release');
  const replayed = plugin.replayed();
  await plugin.script.untilCalled('Release');
  const discarded = discard();
  letGo();
  expect(await discarded).toBeUndefined();
  await replayed;
  expect(plugin.journal.entries()).toEqual([]);
});

test('discarding waits for an attempt in flight; a failed entry is discarded and does not return', async () => {
  await refusedRelease();
  install(`touch ${folder}/begun; while ! test -e ${folder}/go; do sleep 0.02; done; exit 1`);
  const collecting = run('GC');
  await vi.waitFor(() => expect(existsSync(join(folder, 'begun'))).toBe(true), { interval: 5, timeout: 20_000 });
  const discarded = discard();
  writeFileSync(join(folder, 'go'), '');
  expect(await discarded).toMatchObject({ action: 'release' });
  await collecting;
  await plugin.replayed();
  expect([plugin.journal.entries(), plugin.store.texts.size]).toEqual([[], 0]);
});

test('a discard whose caller disconnected in the queue leaves the entry', async () => {
  await refusedRelease();
  const cancel = new AbortController();
  cancel.abort(new Failure('CANCELLED', 'the caller disconnected'));
  await expect(discard(cancel)).rejects.toMatchObject({ code: 'CANCELLED' });
  expect(plugin.journal.entries()).toHaveLength(1);
});
