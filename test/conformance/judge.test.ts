import { expect, test } from 'vitest';

import { failed, judgeBroken, reasonsOf } from './testing/sound-plugin.js';

/** A part of the long run of `flaws.test.ts`: the kit as a whole passes a sound plugin, and fails broken ones. */

test('a sound plugin passes', { timeout: 120_000 }, async () => {
  const only = ['version.echo', 'config.list', 'add.kernel', 'add.interface-exists', 'del.chained', 'gc.spares'];
  const verdicts = await judgeBroken({ flaw: '', only });
  expect(failed(verdicts), reasonsOf(verdicts)).toEqual([]);
  expect(verdicts).toHaveLength(7);
});

test.each([
  ['wrong-mac', ['add.kernel.chained'], /mac is 02:00:00:00:00:01, the link's /],
  ['talks', ['del.native'], /DEL wrote to standard output/],
  ['gc-takes-all', ['gc.spares'], /a listed container has not what it had/],
])('%s fails with the reason', { timeout: 120_000 }, async (flaw, only, reason) => {
  const verdicts = await judgeBroken({ flaw, only });
  expect(verdicts).toMatchObject([
    { status: 'fail', reasons: expect.arrayContaining([expect.stringMatching(reason)]) },
  ]);
});
