// Runs the kit against the plugin beside this file, which keeps every rule except the one given.
import { chmodSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import type { Verdict } from '../case.js';
import { judge, type Trial } from '../judge.js';
import type { JsonObject } from '../specification/json.js';
import { subjectOf } from '../subject.js';

interface Broken {
  /** The rule to break; none where it is empty. */
  readonly flaw: string;
  readonly versions?: readonly string[];
  readonly only: readonly string[];
  readonly trial?: Partial<Trial>;
  /** Capabilities of its configuration, which it ignores. */
  readonly capabilities?: JsonObject;
}

export async function judgeBroken({
  flaw,
  versions = ['1.1.0'],
  only,
  trial = {},
  capabilities,
}: Broken): Promise<readonly Verdict[]> {
  const folder = mkdtempSync(join(tmpdir(), 'conformance-sound-'));
  const program = join(folder, 'sound');
  const source = join(import.meta.dirname, 'sound-plugin.py');
  writeFileSync(program, `#!/bin/sh\nexec python3 -I -S '${source}' '${flaw}' ${versions.join(' ')}\n`);
  chmodSync(program, 0o755);
  const template = { type: 'sound', leases: '{leases}', ipam: { type: 'own' }, ...(capabilities && { capabilities }) };
  const subject = subjectOf({ name: 'sound', kind: 'interface', binDir: folder, program, template });
  try {
    return await judge({ subject, only, pid: process.pid, seed: 7, kills: 4, pods: 12, parallel: 4, ...trial });
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

/** The reasons of a failed case, for the output of a failed test. */
export function reasonsOf(verdicts: readonly Verdict[]): string {
  const bad = verdicts.filter(({ status }) => status !== 'pass');
  return bad.map(({ id, status, reasons }) => `\n${id} (${status}): ${reasons.join('; ')}`).join('');
}

/** IDs of the cases that did not pass although they apply. */
export function failed(verdicts: readonly Verdict[]): readonly string[] {
  return verdicts.flatMap(({ id, status }) => (status === 'fail' || status === 'error' ? [id] : [])).sort();
}
