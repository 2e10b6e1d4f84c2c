import { Failure } from '@podwire/shared/failure/failure';

import { LABEL, text, type Label } from '../command-line/forms.js';
import type { Input, Option, Verb } from '../command-line/verb.js';
import { changeAttributes, WHOSE_ADDRESS } from './attributes.js';

const labels = (name: string, about: string): Option<Label> => ({ name, form: LABEL, about, repeated: true });
const names = (name: string, about: string): Option<string> => ({ name, form: text('KEY'), about, repeated: true });

const SET = labels('--set', 'an attribute of the owner, added or replaced');
const REMOVE = names('--remove', 'an attribute of the owner that goes');
const SET_ALTERNATE = labels('--alternate', 'an attribute of the second owner, added or replaced');
const REMOVE_ALTERNATE = names('--remove-alternate', 'an attribute of the second owner that goes');

export const attributesSet: Verb = {
  name: 'attributes set',
  about: 'change the attributes that an address has of its owner, or of a second one',
  details: 'What is not named stays. What somebody else changes in between is not lost: then nothing is changed.',
  positionals: [WHOSE_ADDRESS],
  options: [SET, REMOVE, SET_ALTERNATE, REMOVE_ALTERNATE],
  examples: [
    'attributes set 10.65.0.7 --set note=printer --remove ticket',
    'attributes set 10.65.0.7 --alternate pod=launcher-2 --alternate node=node-2',
  ],
  run: async (input, context) => {
    const owner = changeOf(input, SET, REMOVE);
    const second = changeOf(input, SET_ALTERNATE, REMOVE_ALTERNATE);
    if (!owner && !second)
      throw new Failure('INVALID_REQUEST', 'nothing to change is named; see "attributes set --help"');
    return changeAttributes(
      input.at(WHOSE_ADDRESS),
      ({ attributes, alternateAttributes }) => ({
        attributes: owner && { values: owner(attributes) },
        alternate: second && { values: second(alternateAttributes) },
      }),
      context,
    );
  },
};

type Values = Record<string, string>;

function changeOf(
  input: Input,
  added: Option<Label>,
  removed: Option<string>,
): ((before: Values) => Values) | undefined {
  const put = input.all(added).map(({ key, value }) => [key, value] as const);
  const gone = new Set(input.all(removed));
  if (put.length + gone.size === 0) return undefined;
  return (before) => Object.fromEntries([...Object.entries(before).filter(([key]) => !gone.has(key)), ...put]);
}
