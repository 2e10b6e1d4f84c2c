import { expect, test } from 'vitest';

import { readChecked, Checks } from './checks.js';

test('a valid request becomes its value', () => {
  expect(readChecked('GetPool', (checks) => (checks.check('name', undefined), 7))).toBe(7);
});

test('all violations are reported at once', () => {
  const read = (checks: Checks) => {
    checks.check('name', 'is empty');
    checks.check('cidr', undefined);
    checks.check('page_size', 'is -1');
  };
  expect(() => readChecked('ListPools', read)).toThrow(
    expect.objectContaining({
      code: 'INVALID_REQUEST',
      message: 'ListPools refused: name is empty; page_size is -1',
      violations: [
        { field: 'name', reason: 'is empty' },
        { field: 'page_size', reason: 'is -1' },
      ],
    }),
  );
});

test('violations of a nested message are named behind its field', () => {
  const read = (checks: Checks) => {
    checks.within('items[1]').within('pod').check('name', 'is empty');
    checks.check('size', 'is 0');
  };
  expect(() => readChecked('Bind', read)).toThrow('Bind refused: items[1].pod.name is empty; size is 0');
});

test('finishing without violations does nothing', () => {
  expect(() => new Checks().throwIfAny('GetPool')).not.toThrow();
});
