import {
  AddressServiceService,
  SetAttributesRequest,
  type AddressHolder,
  type Attributes,
} from '@podwire/proto/podwire/ipam/v1/address';
import { Failure } from '@podwire/shared/failure/failure';

import type { Context } from '../clients/services.js';
import { ADDRESS, LABEL, text, type Label } from '../command-line/forms.js';
import { argument, type Input, type Option, type Verb } from '../command-line/verb.js';
import type { Report } from '../output/report.js';
import { holderFields } from './history.js';

const ADDRESS_ARGUMENT = argument(ADDRESS, 'an allocated address', 'required');

/** New attributes of both owners; undefined for no change. */
interface Change {
  readonly attributes: Attributes | undefined;
  readonly alternate: Attributes | undefined;
}

/**
 * Changes the attributes of an address. The service rejects the change if allocation or attributes have changed since they were read.
 * @throws Failure ADDRESS_NOT_ALLOCATED, ALLOCATION_MISMATCH
 */
async function changeAttributes(
  address: string,
  decide: (holder: AddressHolder) => Change,
  { ipam, json }: Context,
): Promise<Report> {
  const { holder } = await ipam.call(AddressServiceService.getAddress, { address });
  if (!holder) {
    const text = `address ${address} is not allocated; "podwirectl who ${address}" shows its state`;
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

const labelOption = (name: string, about: string): Option<Label> => ({ name, form: LABEL, about, repeated: true });
const keyOption = (name: string, about: string): Option<string> => ({ name, form: text('KEY'), about, repeated: true });

const SET = labelOption('--set', 'an attribute of the owner, added or replaced');
const REMOVE = keyOption('--remove', 'an attribute of the owner to remove');
const SET_ALTERNATE = labelOption('--alternate', 'an attribute of the second owner, added or replaced');
const REMOVE_ALTERNATE = keyOption('--remove-alternate', 'an attribute of the second owner to remove');

export const attributesSet: Verb = {
  name: 'attributes set',
  about: 'change the attributes of the owner of an address, or of its second owner',
  details:
    'Other attributes stay unchanged. If the attributes are changed concurrently, the command fails and changes nothing.',
  positionals: [ADDRESS_ARGUMENT],
  options: [SET, REMOVE, SET_ALTERNATE, REMOVE_ALTERNATE],
  examples: [
    'attributes set 10.65.0.7 --set note=printer --remove ticket',
    'attributes set 10.65.0.7 --alternate pod=launcher-2 --alternate node=node-2',
  ],
  run: async (input, context) => {
    const owner = changeOf(input, SET, REMOVE);
    const second = changeOf(input, SET_ALTERNATE, REMOVE_ALTERNATE);
    if (!owner && !second)
      throw new Failure('INVALID_REQUEST', 'no attribute to change; see "podwirectl attributes set --help"');
    return changeAttributes(
      input.at(ADDRESS_ARGUMENT),
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
  const addedEntries = input.all(added).map(({ key, value }) => [key, value] as const);
  const removedKeys = new Set(input.all(removed));
  if (addedEntries.length + removedKeys.size === 0) return undefined;
  return (before) =>
    Object.fromEntries([...Object.entries(before).filter(([key]) => !removedKeys.has(key)), ...addedEntries]);
}

export const attributesSwap: Verb = {
  name: 'attributes swap',
  about: 'swap the first and the second owner of an address',
  details: 'For a virtual machine that was migrated. Refused where a container of Podwire is the owner.',
  positionals: [ADDRESS_ARGUMENT],
  examples: ['attributes swap 10.65.0.7'],
  run: async (input, context) =>
    changeAttributes(
      input.at(ADDRESS_ARGUMENT),
      ({ attributes, alternateAttributes }) => ({
        attributes: { values: alternateAttributes },
        alternate: { values: attributes },
      }),
      context,
    ),
};
