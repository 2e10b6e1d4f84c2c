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
import { previewReport, YES } from '../command-line/options.js';
import type { Flag, Input, Option, Positional, Verb } from '../command-line/verb.js';
import { DONE, FAILED, NOT_FOUND, sentence, type Report } from '../output/report.js';
import { attachmentText, podOf } from '../output/words.js';
import { podText } from '../resources/endpoints.js';
import { holderFields } from './history.js';

const ADDRESS_ARGUMENT: Positional<string> = { form: ADDRESS, about: 'the address to release', presence: 'required' };

const SEQUENCE: Option<bigint> = {
  name: '--sequence',
  form: SEQUENCE_NUMBER,
  about: 'only the allocation with this sequence number, as "who" shows it (the current one)',
};
const HANDLE: Option<string> = {
  name: '--handle',
  form: text('HANDLE'),
  about: 'only if the handle holds the address',
};

export const releaseAddress: Verb = {
  name: 'release address',
  about: 'release one address',
  details:
    'A pod that uses the address keeps using it. The preview names the sequence number, so that --yes releases exactly the\nallocation shown: a later allocation has another number, and is kept.',
  positionals: [ADDRESS_ARGUMENT],
  options: [SEQUENCE, HANDLE],
  flags: [YES],
  examples: ['release address 10.65.0.7', 'release address 10.65.0.7 --sequence 12 --yes'],
  run: async (input, context) => {
    const address = input.at(ADDRESS_ARGUMENT);
    if (input.has(YES)) return releaseOne(address, input, context);
    return preview(address, input, context);
  },
};

async function preview(address: string, input: Input, { ipam, json }: Context): Promise<Report> {
  const found = await ipam.call(AddressServiceService.getAddress, { address });
  const data = (): ReturnType<Report['data']> => json.of(AddressServiceService.getAddress, found);
  const { holder } = found;
  if (!holder) return { sections: [sentence(`${address} is not allocated`)], data, exitCode: NOT_FOUND };
  const [sequence = holder.sequenceNumber, handle = holder.handleId] = [input.get(SEQUENCE), input.get(HANDLE)];
  if (sequence !== holder.sequenceNumber || handle !== holder.handleId)
    return { sections: [sentence(mismatchText(address, holder))], data, exitCode: FAILED };
  const sections = [
    sentence(`${address} would be released; its owner:`),
    { kind: 'fields' as const, fields: holderFields(holder) },
  ];
  return previewReport({ sections, data }, input.toCommandLine({ options: { [SEQUENCE.name]: String(sequence) } }));
}

async function releaseOne(address: string, input: Input, { ipam, json }: Context): Promise<Report> {
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
    sections: outcomes.map(({ message: text }) => sentence(text)),
    data: () => json.of(AddressServiceService.releaseAddresses, answer),
    exitCode: Math.max(DONE, ...outcomes.map(({ exitCode }) => exitCode)),
  };
}

function outcomeOf({ address, result, holder }: ReleasedAddress): {
  readonly message: string;
  readonly exitCode: number;
} {
  const owner = holderText(holder);
  switch (result) {
    case AddressReleaseResult.ADDRESS_RELEASE_RESULT_RELEASED:
      return { message: `${address} is released; its owner was ${owner}`, exitCode: DONE };
    case AddressReleaseResult.ADDRESS_RELEASE_RESULT_NOT_ALLOCATED:
      return { message: `${address} is not allocated`, exitCode: NOT_FOUND };
    case AddressReleaseResult.ADDRESS_RELEASE_RESULT_MISMATCH:
      return { message: mismatchText(address, holder), exitCode: FAILED };
    case AddressReleaseResult.ADDRESS_RELEASE_RESULT_UNREADABLE:
    case AddressReleaseResult.ADDRESS_RELEASE_RESULT_UNSPECIFIED:
    case AddressReleaseResult.UNRECOGNIZED:
      return {
        message: `${address} is not released: its block cannot be read in the datastore; "podwirectl audit" names the record`,
        exitCode: FAILED,
      };
  }
}

function mismatchText(address: string, holder: ReleasedAddress['holder']): string {
  return `${address} is not released: its owner does not match --sequence or --handle: ${holderText(holder)}`;
}

function holderText(holder: ReleasedAddress['holder']): string {
  return holder ? `${podOf(holder.attributes) || holder.handleId}, sequence ${holder.sequenceNumber}` : 'no owner';
}

const ATTACHMENT_ARGUMENT: Positional<Attachment> = {
  form: ATTACHMENT,
  about: 'the attachment, as "who" and "pods list" print it',
  presence: 'required',
};

export const releaseAttachment: Verb = {
  name: 'release attachment',
  about: 'release all addresses of an attachment, and its endpoint',
  details: 'The wire is kept; DEL removes both.',
  positionals: [ATTACHMENT_ARGUMENT],
  flags: [YES],
  run: async (input, { ipam, json }) => {
    const attachment = input.at(ATTACHMENT_ARGUMENT);
    const name = attachmentText(attachment);
    if (!input.has(YES)) {
      const found = await endpointOf(ipam, attachment);
      if (!found) {
        const message = `${name} holds no address; its endpoint, if any, would be removed`;
        const data = () => json.of(AddressServiceService.release, { addresses: [] });
        return previewReport({ sections: [sentence(message)], data }, input.toCommandLine());
      }
      const addresses = found.endpoint?.addresses.map(({ address }) => address).join(', ') ?? '';
      const pod = podText(found.endpoint);
      const sections = [sentence(`${addresses} of ${name} would be released${pod === '' ? '' : `; pod ${pod}`}`)];
      const data = () => json.of(AddressServiceService.getEndpoint, found);
      return previewReport({ sections, data }, input.toCommandLine());
    }
    const answer = await ipam.call(AddressServiceService.release, { attachment });
    const message =
      answer.addresses.length > 0
        ? `${answer.addresses.join(', ')} of ${name} released`
        : `${name} holds no address; its endpoint, if any, is removed`;
    return { sections: [sentence(message)], data: () => json.of(AddressServiceService.release, answer) };
  },
};

async function endpointOf(ipam: Service, attachment: Attachment): Promise<GetEndpointResponse | undefined> {
  try {
    return await ipam.call(AddressServiceService.getEndpoint, { attachment });
  } catch (error) {
    if (error instanceof Failure && error.code === 'ENDPOINT_NOT_FOUND') return undefined;
    throw error;
  }
}

const HANDLE_ARGUMENT: Positional<string> = {
  form: text('HANDLE'),
  about: 'the handle, <network>.<container ID> for containers',
  presence: 'required',
};

const SEARCH: Flag = {
  name: '--search-all-blocks',
  about: 'search every block, for addresses whose handle record was lost',
};

export const releaseHandle: Verb = {
  name: 'release handle',
  about: 'release all addresses of a handle, and the endpoints of its containers',
  positionals: [HANDLE_ARGUMENT],
  flags: [SEARCH, YES],
  run: async (input, { ipam, json }) => {
    const handleId = input.at(HANDLE_ARGUMENT);
    if (!input.has(YES)) {
      const addresses = await addressesOfHandle(ipam, handleId);
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
            none: 'addresses: none; the endpoints of its containers, if any, would be removed',
          },
        ],
        data: () => json.of(HandleServiceService.getHandle, { addresses, nextPageToken: '' }),
      };
      return previewReport(preview, input.toCommandLine());
    }
    const answer = await ipam.call(HandleServiceService.releaseHandle, {
      handleId,
      searchAllBlocks: input.has(SEARCH),
    });
    const { addresses } = answer;
    const message =
      addresses.length > 0
        ? `${addresses.join(', ')} of ${handleId} released`
        : `${handleId} holds no address; its endpoints, if any, are removed`;
    return { sections: [sentence(message)], data: () => json.of(HandleServiceService.releaseHandle, answer) };
  },
};

async function addressesOfHandle(ipam: Service, handleId: string): Promise<HandleAddress[]> {
  try {
    const pages = await allPages((page) => ipam.call(HandleServiceService.getHandle, { ...page, handleId }));
    return pages.flatMap(({ addresses }) => addresses);
  } catch (error) {
    if (error instanceof Failure && error.code === 'HANDLE_NOT_FOUND') return [];
    throw error;
  }
}
