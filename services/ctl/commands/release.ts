import {
  AddressReleaseResult,
  AddressServiceService,
  ReleaseAddressesRequest,
  type ReleasedAddress,
} from '@podwire/proto/podwire/ipam/v1/address';

import type { Context } from '../clients/services.js';
import { ADDRESS, SEQUENCE_NUMBER, text } from '../command-line/forms.js';
import { unconfirmed, YES } from '../command-line/options.js';
import type { Input, Option, Positional, Verb } from '../command-line/verb.js';
import { DONE, FAILED, NOT_FOUND } from '../exit-codes.js';
import { sentence, type Report } from '../output/report.js';
import { podOf } from '../output/words.js';
import { holderFields } from './tenures.js';

const WHICH: Positional<string> = { form: ADDRESS, about: 'the address to release', presence: 'required' };

const SEQUENCE: Option<bigint> = {
  name: '--sequence',
  form: SEQUENCE_NUMBER,
  about: 'only the allocation of this sequence number, as "who" shows it (the one that is there)',
};
const HANDLE: Option<string> = { name: '--handle', form: text('HANDLE'), about: 'only if this handle holds it' };

export const releaseAddress: Verb = {
  name: 'release address',
  about: 'release one address, so that others can get it',
  details:
    'A pod that uses it goes on doing so. What is asked about is what is given back: an allocation that is made in\nbetween has another sequence number, and stays.',
  positionals: [WHICH],
  options: [SEQUENCE, HANDLE],
  flags: [YES],
  examples: ['release address 10.65.0.7', 'release address 10.65.0.7 --sequence 12 --yes'],
  run: async (input, context) => {
    const address = input.at(WHICH);
    if (input.has(YES)) return give(address, input, context);
    return preview(address, input, context);
  },
};

async function preview(address: string, input: Input, { ipam, json }: Context): Promise<Report> {
  const found = await ipam.call(AddressServiceService.getAddress, { address });
  const data = (): ReturnType<Report['data']> => json.of(AddressServiceService.getAddress, found);
  const { holder } = found;
  if (!holder) return { sections: [sentence(`Nobody holds ${address}.`)], data, exitCode: NOT_FOUND };
  const [sequence = holder.sequenceNumber, handle = holder.handleId] = [input.get(SEQUENCE), input.get(HANDLE)];
  if (sequence !== holder.sequenceNumber || handle !== holder.handleId)
    return { sections: [sentence(ofAnother(address, holder))], data, exitCode: FAILED };
  const sections = [
    sentence(`${address} would be taken from:`),
    { kind: 'fields' as const, fields: holderFields(holder) },
  ];
  return unconfirmed({ sections, data }, input.typed({ options: { [SEQUENCE.name]: String(sequence) } }));
}

async function give(address: string, input: Input, { ipam, json }: Context): Promise<Report> {
  const [sequenceNumber, handleId] = [input.get(SEQUENCE), input.get(HANDLE)];
  const answer = await ipam.call(
    AddressServiceService.releaseAddresses,
    ReleaseAddressesRequest.fromPartial({
      releases: [
        {
          address,
          ...(sequenceNumber !== undefined && { sequenceNumber }),
          ...(handleId !== undefined && { handleId }),
        },
      ],
    }),
  );
  const outcomes = answer.addresses.map(outcomeOf);
  return {
    sections: outcomes.map(({ told }) => sentence(told)),
    data: () => json.of(AddressServiceService.releaseAddresses, answer),
    exitCode: Math.max(DONE, ...outcomes.map(({ exitCode }) => exitCode)),
  };
}

function outcomeOf({ address, result, holder }: ReleasedAddress): { readonly told: string; readonly exitCode: number } {
  const by = byWhom(holder);
  switch (result) {
    case AddressReleaseResult.ADDRESS_RELEASE_RESULT_RELEASED:
      return { told: `${address} is given back; it was held by ${by}`, exitCode: DONE };
    case AddressReleaseResult.ADDRESS_RELEASE_RESULT_NOT_ALLOCATED:
      return { told: `nobody holds ${address}`, exitCode: NOT_FOUND };
    case AddressReleaseResult.ADDRESS_RELEASE_RESULT_MISMATCH:
      return { told: ofAnother(address, holder), exitCode: FAILED };
    case AddressReleaseResult.ADDRESS_RELEASE_RESULT_UNREADABLE:
    case AddressReleaseResult.ADDRESS_RELEASE_RESULT_UNSPECIFIED:
    case AddressReleaseResult.UNRECOGNIZED:
      return {
        told: `${address} stays, as its block cannot be read in the datastore; "podwirectl audit" names the record`,
        exitCode: FAILED,
      };
  }
}

function ofAnother(address: string, holder: ReleasedAddress['holder']): string {
  return `${address} is held by another than was meant, and stays: ${byWhom(holder)}`;
}

function byWhom(holder: ReleasedAddress['holder']): string {
  return holder ? `${podOf(holder.attributes) || holder.handleId}, sequence ${holder.sequenceNumber}` : 'nobody';
}
