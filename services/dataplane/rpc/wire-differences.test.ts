import { expect, test } from 'vitest';

import { differencesMessage } from './wire-differences.js';

const differences = (count: number) =>
  Array.from({ length: count }, (_, number) => ({
    object: `pod route ${number}`,
    wanted: 'absent',
    actual: 'present',
  }));

test('an answer has at most 100 differences, the first ones, and the number of the others', () => {
  expect(differencesMessage([])).toEqual({ differences: [], moreDifferences: 0 });
  expect(differencesMessage(differences(100))).toEqual({ differences: differences(100), moreDifferences: 0 });
  expect(differencesMessage(differences(4000))).toEqual({ differences: differences(100), moreDifferences: 3900 });
});
