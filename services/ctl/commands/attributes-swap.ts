import type { Verb } from '../command-line/verb.js';
import { changeAttributes, WHOSE_ADDRESS } from './attributes.js';

export const attributesSwap: Verb = {
  name: 'attributes swap',
  about: 'swap the first and the second owner of an address',
  details:
    'As when a virtual machine has moved. A container of Podwire’s stays the owner of its address: that is refused.',
  positionals: [WHOSE_ADDRESS],
  examples: ['attributes swap 10.65.0.7'],
  run: async (input, context) =>
    changeAttributes(
      input.at(WHOSE_ADDRESS),
      ({ attributes, alternateAttributes }) => ({
        attributes: { values: alternateAttributes },
        alternate: { values: attributes },
      }),
      context,
    ),
};
