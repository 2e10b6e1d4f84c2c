import {
  AddressServiceService,
  SetAttributesRequest,
  type AddressHolder,
  type Attributes,
} from '@podwire/proto/podwire/ipam/v1/address';
import { Failure } from '@podwire/shared/failure/failure';

import type { Context } from '../clients/services.js';
import { ADDRESS } from '../command-line/forms.js';
import type { Positional } from '../command-line/verb.js';
import type { Report } from '../output/report.js';
import { holderFields } from './tenures.js';

export const WHOSE_ADDRESS: Positional<string> = {
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
export async function changeAttributes(
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
