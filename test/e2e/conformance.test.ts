import { mkdtempSync, rmSync, symlinkSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';

import type { Verdict } from '@podwire/conformance/case';
import { judge } from '@podwire/conformance/judge';
import { PRESETS, subjectOf } from '@podwire/conformance/subject';
import { afterAll, beforeAll, expect, test } from 'vitest';

import { allocations } from '../support/leftovers.js';
import { SHIM } from '../support/root.js';
import { Stack } from '../support/stack.js';
import { PEERS } from './delegation.js';

/** Podwire under the conformance kit. */

const stack = new Stack();
/** Folder of the plugins: Podwire's under both names, and plugins that call it for addresses. */
const bin = mkdtempSync(join(tmpdir(), 'podwire-conformance-e2e-'));

beforeAll(async () => {
  const programs = [SHIM, join(dirname(SHIM), 'podwire-ipam'), join(PEERS, 'ptp'), join(PEERS, 'bridge')];
  for (const program of programs) symlinkSync(program, join(bin, program.slice(program.lastIndexOf('/') + 1)));
  await stack.start();
});

afterAll(async () => {
  await stack.destroy();
  rmSync(bin, { recursive: true });
});

/** Addresses in use, one line each. */
async function holdings(): Promise<readonly string[]> {
  const held = await allocations(stack);
  return held.map(({ address, handleId }) => `allocation ${address} ${handleId}`);
}

function judged(name: 'podwire' | 'podwire-ipam'): Promise<readonly Verdict[]> {
  const preset = PRESETS[name]!;
  const socket = stack.sockets.node;
  const { ipam } = preset.template;
  const inner = name === 'podwire-ipam' ? { ipam: { ...Object(ipam), socket } } : {};
  const subject = subjectOf({
    ...preset,
    name,
    binDir: bin,
    ...(preset.nodeNetns === undefined ? {} : { nodeNetns: stack.netnsPath }),
    template: { ...preset.template, socket, ...inner },
    holdings,
  });
  return judge({ subject, pid: process.pid, seed: 1, kills: 10, pods: 110, parallel: 16, only: [] });
}

/** The cases that apply and did not pass, with their reasons: none, on every level. */
const unpassed = (verdicts: readonly Verdict[]) =>
  verdicts.filter(({ status }) => status === 'fail' || status === 'error').map(({ id, reasons }) => ({ id, reasons }));

test('the network plugin passes every case in every version', { timeout: 1_800_000 }, async () => {
  const verdicts = await judged('podwire');
  expect(unpassed(verdicts)).toEqual([]);
  expect(verdicts.length).toBeGreaterThan(130);
  expect(verdicts.find(({ id }) => id === 'storm')?.status).toBe('pass');
});

test('the IPAM plugin passes every case, also under ptp and bridge', { timeout: 1_800_000 }, async () => {
  const verdicts = await judged('podwire-ipam');
  expect(unpassed(verdicts)).toEqual([]);
  expect(verdicts.filter(({ id }) => id.startsWith('delegate.'))).toHaveLength(12);
});
