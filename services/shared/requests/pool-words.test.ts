import { AddressUse, AssignmentMode, EncapsulationMode } from '@podwire/proto/podwire/ipam/v1/pool';
import { expect, test } from 'vitest';

import { ADDRESS_USES, ASSIGNMENT_MODES, ENCAPSULATION_MODES } from './pool-words.js';

/** The numbers of an enum except 0 and the one for unknown numbers. */
const specified = (constants: object): number[] =>
  Object.values(constants).filter((value): value is number => typeof value === 'number' && value > 0);

test.each([
  ['EncapsulationMode', EncapsulationMode, ENCAPSULATION_MODES, 'Never'],
  ['AddressUse', AddressUse, ADDRESS_USES, undefined],
  ['AssignmentMode', AssignmentMode, ASSIGNMENT_MODES, 'Automatic'],
])(
  'each constant of %s has one word, and an unknown one has none',
  (_, constants, { constants: own, wordOf }, zero) => {
    const words = specified(constants).map(wordOf);
    expect(words).toEqual(Object.keys(own));
    expect(specified(own)).toEqual(specified(constants));
    expect(wordOf(0)).toBe(zero);
    expect([wordOf(-1), wordOf(99)]).toEqual([undefined, undefined]);
  },
);
