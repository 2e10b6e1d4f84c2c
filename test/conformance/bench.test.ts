import { expect, test } from 'vitest';

import { Bench } from './bench.js';
import { run } from './machine/program.js';
import { PRESETS, subjectOf } from './subject.js';

test('on a shared node, the links of an earlier case’s container may still be being removed', () => {
  const node = `cnf-${process.pid}-shared`;
  run('ip', 'netns', 'add', node);
  const nodeNetns = `/run/netns/${node}`;
  const subject = subjectOf({ ...PRESETS.podwire!, name: 'podwire', binDir: '/nowhere', nodeNetns });
  const occasion = { subject, versions: [], seed: 1, pods: 1, parallel: 1, kills: 0 };
  const [before, after] = [new Bench(occasion, process.pid), new Bench(occasion, process.pid)];
  const far = [before, before, after].map((bench) => bench.pod({ isChained: true }).preceding?.far.name);
  expect(before.node.links().map(({ name }) => name)).toEqual(expect.arrayContaining(far));
  expect(new Set(far).size).toBe(3);
  for (const bench of [before, after]) bench.dispose();
  run('ip', 'netns', 'delete', node);
});
