import { expect, test } from 'vitest';

import { canWirePods } from './pod-health.js';
import type { Condition } from './routes/wanted.js';

const about = (...defeats: readonly (4 | 6)[]): Condition => ({ reason: 'Some', message: '', defeats });
const harmless: Condition = { reason: 'IpamUnreachable', message: '' };

test.each([
  ['nothing is wrong', [], undefined, true],
  ['what is wrong defeats no pod', [harmless], [4], true],
  ['no pod of the pools can be wired', [harmless, about(6)], [6], false],
  ['some pods can', [about(6)], [4, 6], true],
  ['the pools are not known', [about(6)], undefined, true],
  ['there are none', [about(6)], [], true],
  ['nothing works, whatever the pools', [about(4, 6)], undefined, false],
  ['each family is defeated by something else', [about(4), about(6)], [4, 6], false],
] as const)('while %s', (_, conditions, families, expected) => {
  expect(canWirePods(conditions, families)).toBe(expected);
});
