import { expect, test } from 'vitest';

import { judge } from './judge.js';
import { failed } from './sound-plugin.fixture.js';
import { PRESETS, subjectOf } from './subject.js';

/** What Debian's containernetworking-plugins 1.1.1 honestly come to: what they fail, and nothing else. */

const EVERYWHERE = ['error.version', 'version.echo'];
const PASSES_ON = ['0.3.0', '0.3.1', '0.4.0', '1.0.0'].map((version) => `chain.passes-on.${version}`);

test.each<[plugin: string, expected: readonly string[]]>([
  ['ptp', [...EVERYWHERE, ...PASSES_ON, 'add.second-interface', 'del.foreign.container', 'del.foreign.interface']],
  ['host-local', EVERYWHERE],
])('%s', { timeout: 900_000 }, async (name, expected) => {
  const subject = subjectOf({ ...PRESETS[name]!, name, binDir: '/usr/lib/cni' });
  const verdicts = await judge({ subject, only: [], pid: process.pid, seed: 1, kills: 3, pods: 16, parallel: 8 });
  expect(failed(verdicts)).toEqual([...expected].sort());
  expect(verdicts.length).toBeGreaterThan(80);
});
