import {
  AddressServiceService,
  SetAttributesRequest,
  type AddressHolder,
  type Attributes,
} from '@podwire/proto/podwire/ipam/v1/address';
import { Failure } from '@podwire/shared/failure/failure';

import type { Context } from '../clients/services.js';
import { ADDRESS, LABEL, text, type Label } from '../command-line/forms.js';
import type { Input, Option, Positional, Verb } from '../command-line/verb.js';
import type { Report } from '../output/report.js';
import { holderFields } from './history.js';

const WHOSE_ADDRESS: Positional<string> = {
  form: ADDRESS,
  about: 'an address that is held',
  presence: 'required',
};

/** What becomes of both owners' attributes; undefined for what stays. */
interface Change {
  readonly attributes: Attributes | undefined;
  readonly alternate: Attributes | undefined;
}

/**
 * Changes the attributes of an address, on the condition that allocation and attributes are as they were read just before.
 * @throws Failure ADDRESS_NOT_ALLOCATED, ALLOCATION_MISMATCH
 */
async function changeAttributes(
  address: string,
  decide: (holder: AddressHolder) => Change,
  { ipam, json }: Context,
): Promise<Report> {
  const { holder } = await ipam.call(AddressServiceService.getAddress, { address });
  if (!holder) {
    const text = `address ${address} is not allocated, so it has no attributes; "who" says what it is`;
    throw new Failure('ADDRESS_NOT_ALLOCATED', text, { details: { address } });
  }
  const answer = await ipam.call(
    AddressServiceService.setAttributes,
    SetAttributesRequest.fromPartial({
      ...{ address, sequenceNumber: holder.sequenceNumber },
      expected: { values: holder.attributes },
      expectedAlternate: { values: holder.alternateAttributes },
      ...decide(holder),
    }),
  );
  return {
    sections: answer.holder ? [{ kind: 'fields', fields: holderFields(answer.holder) }] : [],
    data: () => json.of(AddressServiceService.setAttributes, answer),
  };
}

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
