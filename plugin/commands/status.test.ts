import { expect, test } from 'vitest';

import { SUPPORTED_VERSIONS } from '../cni/version.js';
import { CONFIG } from '../plugin.fixture.js';
import { status } from './status.js';

test.each(SUPPORTED_VERSIONS)('STATUS is refused in version %s, which lacks it', (cniVersion) => {
  expect(() => status(JSON.stringify({ ...CONFIG, cniVersion }))).toThrow(
    expect.objectContaining({
      code: 'INCOMPATIBLE_CNI_VERSION',
      message: expect.stringContaining('STATUS came with CNI 1.1.0'),
    }),
  );
});

test('STATUS is refused in the version that has it, which this release lacks', () => {
  expect(() => status(JSON.stringify({ ...CONFIG, cniVersion: '1.1.0' }))).toThrow(
    expect.objectContaining({
      code: 'INCOMPATIBLE_CNI_VERSION',
      details: { 'supported versions': '0.3.1, 0.4.0, 1.0.0' },
    }),
  );
});
