import {
  AddressReleaseResult,
  AddressServiceService,
  ReleaseAddressesRequest,
  type GetEndpointResponse,
  type ReleasedAddress,
} from '@podwire/proto/podwire/ipam/v1/address';
import { HandleServiceService, type HandleAddress } from '@podwire/proto/podwire/ipam/v1/handle';
import type { Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';

import { allPages, type Context, type Service } from '../clients/services.js';
import { ADDRESS, ATTACHMENT, SEQUENCE_NUMBER, text } from '../command-line/forms.js';
import { unconfirmed, YES } from '../command-line/options.js';
import type { Flag, Input, Option, Positional, Verb } from '../command-line/verb.js';
import { DONE, FAILED, NOT_FOUND, sentence, type Report } from '../output/report.js';
import { attachmentText, podOf } from '../output/words.js';
import { podText } from '../resources/endpoints.js';
import { holderFields } from './history.js';

const ADDRESS_ALLOCATION: Positional<string> = { form: ADDRESS, about: 'the address to release', presence: 'required' };

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
  positionals: [ADDRESS_ALLOCATION],
  options: [SEQUENCE, HANDLE],
  flags: [YES],
  examples: ['release address 10.65.0.7', 'release address 10.65.0.7 --sequence 12 --yes'],
  run: async (input, context) => {
    const address = input.at(ADDRESS_ALLOCATION);
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

const ATTACHMENT_ALLOCATION: Positional<Attachment> = {
  form: ATTACHMENT,
  about: 'the attachment, as "who" and "pods list" print it',
  presence: 'required',
};

export const releaseAttachment: Verb = {
  name: 'release attachment',
  about: 'release everything that an attachment holds, and its endpoint',
  details: 'Its wire stays; a DEL takes away both.',
  positionals: [ATTACHMENT_ALLOCATION],
  flags: [YES],
  run: async (input, { ipam, json }) => {
    const attachment = input.at(ATTACHMENT_ALLOCATION);
    const name = attachmentText(attachment);
    if (!input.has(YES)) {
      const found = await heldBy(ipam, attachment);
      if (!found) {
        const told = `${name} holds no address; an endpoint that is left of it would be removed.`;
        const data = () => json.of(AddressServiceService.release, { addresses: [] });
        return unconfirmed({ sections: [sentence(told)], data }, input.typed());
      }
      const addresses = found.endpoint?.addresses.map(({ address }) => address).join(', ') ?? '';
      const whose = podText(found.endpoint);
      const sections = [sentence(`${name} would give back ${addresses}${whose === '' ? '' : `, of pod ${whose}`}.`)];
      const data = () => json.of(AddressServiceService.getEndpoint, found);
      return unconfirmed({ sections, data }, input.typed());
    }
    const answer = await ipam.call(AddressServiceService.release, { attachment });
    const told =
      answer.addresses.length > 0
        ? `${name} has given back ${answer.addresses.join(', ')}`
        : `${name} holds no address, and has no endpoint any more`;
    return { sections: [sentence(told)], data: () => json.of(AddressServiceService.release, answer) };
  },
};

async function heldBy(ipam: Service, attachment: Attachment): Promise<GetEndpointResponse | undefined> {
  try {
    return await ipam.call(AddressServiceService.getEndpoint, { attachment });
  } catch (error) {
    if (error instanceof Failure && error.code === 'ENDPOINT_NOT_FOUND') return undefined;
    throw error;
  }
}

const HANDLE_ALLOCATION: Positional<string> = {
  form: text('HANDLE'),
  about: 'the handle, <network>.<container ID> for containers',
  presence: 'required',
};

const SEARCH: Flag = {
  name: '--search-all-blocks',
  about: 'look in every block: for addresses whose handle was lost',
};

export const releaseHandle: Verb = {
  name: 'release handle',
  about: 'release everything that a handle holds, and the endpoints of its containers',
  positionals: [HANDLE_ALLOCATION],
  flags: [SEARCH, YES],
  run: async (input, { ipam, json }) => {
    const handleId = input.at(HANDLE_ALLOCATION);
    if (!input.has(YES)) {
      const addresses = await heldByHandle(ipam, handleId);
      const preview = {
        sections: [
          {
            kind: 'table' as const,
            columns: ['ADDRESS', 'POD', 'NODE', { right: 'SEQUENCE' }],
            rows: addresses.map(({ address, attributes, sequenceNumber }) => [
              address,
              podOf(attributes),
              attributes.node ?? '',
              String(sequenceNumber),
            ]),
            none: 'It holds no address; endpoints that are left of its containers would be removed.',
          },
        ],
        data: () => json.of(HandleServiceService.getHandle, { addresses, nextPageToken: '' }),
      };
      return unconfirmed(preview, input.typed());
    }
    const answer = await ipam.call(HandleServiceService.releaseHandle, {
      handleId,
      searchAllBlocks: input.has(SEARCH),
    });
    const { addresses } = answer;
    const told =
      addresses.length > 0
        ? `${handleId} has given back ${addresses.join(', ')}`
        : `${handleId} holds no address, and has no endpoint any more`;
    return { sections: [sentence(told)], data: () => json.of(HandleServiceService.releaseHandle, answer) };
  },
};

async function heldByHandle(ipam: Service, handleId: string): Promise<HandleAddress[]> {
  try {
    const pages = await allPages((page) => ipam.call(HandleServiceService.getHandle, { ...page, handleId }));
    return pages.flatMap(({ addresses }) => addresses);
  } catch (error) {
    if (error instanceof Failure && error.code === 'HANDLE_NOT_FOUND') return [];
    throw error;
  }
}
