import { describe, expect, test } from 'vitest';

import { ADDRESSES, BEFORE, BEFORE_OLD, GOLDEN, MADE, type Families, type Place } from '../testing/cni-result.js';
import { resultSchema } from './result-form.js';
import { addResult } from './result.js';
import { SUPPORTED_VERSIONS } from './version.js';

const PLACES: readonly Place[] = ['first', 'behind'];
const FAMILIES: readonly Families[] = ['IPv4', 'IPv6', 'both'];

const cases = SUPPORTED_VERSIONS.flatMap((cniVersion) =>
  PLACES.flatMap((place) => FAMILIES.map((families) => ({ cniVersion, place, families }))),
);

test('there is a golden result for each version, place and family', () => {
  expect(Object.keys(GOLDEN)).toEqual(SUPPORTED_VERSIONS);
  expect(cases).toHaveLength(42);
});

describe('the result of ADD', () => {
  test.each(cases)('in $cniVersion, $place in its chain, of $families', ({ cniVersion, place, families }) => {
    const before = cniVersion < '0.3.0' ? BEFORE_OLD : BEFORE;
    const prevResult = resultSchema(cniVersion).parse(place === 'first' ? undefined : before);
    const result = addResult({ ...MADE, cniVersion, addresses: ADDRESSES[families], prevResult });
    // Through JSON: a field that is undefined is none.
    expect(JSON.parse(JSON.stringify(result))).toEqual({ cniVersion, ...GOLDEN[cniVersion][place][families] });
    expect(Object.keys(result)[0]).toBe('cniVersion');
  });
});
