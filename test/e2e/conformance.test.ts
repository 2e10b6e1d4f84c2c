import { existsSync } from 'node:fs';
import { dirname } from 'node:path';

import type { Trial } from '@podwire/conformance/judge';
import { judge } from '@podwire/conformance/judge';
import { PRESETS, subjectOf } from '@podwire/conformance/subject';
import { afterAll, beforeAll, expect, test } from 'vitest';

import { allocations } from '../support/leftovers.js';
import { SHIM } from '../support/root.js';
import { Stack } from '../support/stack.js';

/** Podwire before the same judge as everybody else. */

const stack = new Stack();

beforeAll(() => stack.start());
afterAll(() => stack.destroy());

const trial = { pid: process.pid, seed: 1, kills: 10, pods: 110, parallel: 16, only: [] } satisfies Partial<Trial>;

/** Addresses in use, one line each. */
async function holdings(): Promise<readonly string[]> {
  const held = await allocations(stack);
  return held.map(({ address, handleId }) => `allocation ${address} ${handleId}`);
}

/**
 * What it fails. The shim answers VERSION by itself, without reading; and looks for the resident at the default place when the
 * configuration is a list, which can name no other.
 */
const FAILS = ['config.list', 'version.echo'];

test('the network plugin passes everything but what is listed', { timeout: 1_200_000 }, async () => {
  expect(existsSync(SHIM)).toBe(true);
  const subject = subjectOf({
    ...PRESETS.podwire!,
    name: 'podwire',
    binDir: dirname(SHIM),
    program: SHIM,
    nodeNetns: stack.netnsPath,
    template: { ...PRESETS.podwire!.template, socket: stack.sockets.plugin },
    holdings,
  });
  const verdicts = await judge({ ...trial, subject });
  const bad = verdicts.filter(({ status }) => status === 'fail' || status === 'error');
  expect(
    bad.map(({ id }) => id).sort(),
    JSON.stringify(
      bad.map(({ id, reasons }) => ({ id, reasons })),
      undefined,
      1,
    ),
  ).toEqual(FAILS);
  expect(verdicts.length).toBeGreaterThan(100);
});
