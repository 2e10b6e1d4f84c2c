import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterEach, beforeEach, expect, test } from 'vitest';

import { Plugin } from '../testing/plugin.js';
import { release } from './release.js';

const ATTACHMENT = { network: 'net', containerId: 'c0ffee', interfaceName: 'eth0' };

let plugin: Plugin;
let folder: string;

beforeEach(async () => {
  plugin = await new Plugin().start();
  folder = mkdtempSync(join(tmpdir(), 'podwire-release-'));
});

afterEach(async () => {
  await plugin.end();
  rmSync(folder, { recursive: true });
});

test('addresses of another IPAM plugin are released while podwire-ipam is known to be down', async () => {
  const script = `#!/bin/sh\necho $CNI_COMMAND >> ${folder}/calls\n`;
  writeFileSync(join(folder, 'other-ipam'), script, { mode: 0o755 });
  const delegate = { type: 'other-ipam', variables: { CNI_PATH: folder }, configuration: '{}' };
  const pending = { attachment: ATTACHMENT, action: 'release-unless-attached', held: undefined, delegate } as const;
  const { tools } = plugin.options;
  const limits = { deadlineMs: tools.clock.nowMs() + 20_000, signal: new AbortController().signal };
  const failed = await release(pending, tools, { limitsOf: () => limits, skip: new Set(['podwire-ipam']) });
  expect(failed).toBeUndefined();
  expect(readFileSync(join(folder, 'calls'), 'utf8')).toBe('DEL\n');
});
