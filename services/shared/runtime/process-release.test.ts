import { expect, test } from 'vitest';

import { readProcessRelease } from './process-release.js';

test('this process has the release of the package, and has started', async () => {
  const { release, nodeVersion, startTime } = await readProcessRelease();
  expect([release, nodeVersion]).toEqual([expect.stringMatching(/^\d+\.\d+\.\d+/), process.version]);
  expect(startTime.getTime()).toBeLessThan(Date.now());
  expect(await readProcessRelease()).toEqual({ release, nodeVersion, startTime });
});
