import { spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { afterAll, beforeAll, expect, test } from 'vitest';

import { ALERTS } from './alerts.js';
import { rulesFile, runbook } from './rules.js';
import { EXAMPLES, ruleTests } from './testing/alert-examples.js';

let folder: string;

beforeAll(() => {
  folder = mkdtempSync(join(tmpdir(), 'podwire-rules-'));
  writeFileSync(join(folder, 'rules.yaml'), rulesFile());
});

afterAll(() => rmSync(folder, { recursive: true }));

function promtool(...args: string[]) {
  const { error, status, stdout, stderr } = spawnSync('promtool', args, { cwd: folder, encoding: 'utf8' });
  if (error) throw new Error('promtool is missing; npm test installs it', { cause: error });
  return { status, text: stdout + stderr };
}

test('Prometheus accepts the rules', () => {
  expect(promtool('check', 'rules', 'rules.yaml')).toEqual({
    status: 0,
    text: expect.stringContaining(`${ALERTS.length} rules found`),
  });
});

test('each alert fires for its example, and is silent for the other', () => {
  expect(Object.keys(EXAMPLES)).toEqual(ALERTS.map(({ name }) => name));
  writeFileSync(join(folder, 'tests.yaml'), ruleTests('rules.yaml'));
  const { status, text } = promtool('test', 'rules', 'tests.yaml');
  expect(status, text).toBe(0);
});

test('an example that does not fire fails the test', () => {
  const name = 'PodwireAddBlocked';
  const { fires, silent } = EXAMPLES[name]!;
  const swapped = ruleTests('rules.yaml', { [name]: { fires: silent, silent: fires } });
  writeFileSync(join(folder, 'swapped.yaml'), swapped);
  const { status, text } = promtool('test', 'rules', 'swapped.yaml');
  expect([status, text.match(/alertname/g)?.length]).toEqual([1, 2]);
});

test.each(ALERTS)('$name says what it means and what to do', ({ name, summary, meaning, action }) => {
  expect(name).toMatch(/^Podwire([A-Z][a-z]+)+$/);
  for (const text of [meaning, action]) expect(text).toMatch(/[^.]\.$/);
  expect(summary).not.toMatch(/\.$/);
  expect(runbook()).toContain(`## ${name}\n`);
});
