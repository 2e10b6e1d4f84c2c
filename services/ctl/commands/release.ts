import {
  AddressReleaseResult,
  AddressServiceService,
  ReleaseAddressesRequest,
  type GetEndpointResponse,
  type ReleasedAddress,
} from '@podwire/proto/podwire/ipam/v1/address';
import type { Attachment } from '@podwire/shared/attachment/attachment';
import { handleId } from '@podwire/shared/attachment/names';
import { Failure } from '@podwire/shared/failure/failure';

import type { Context, Service } from '../clients/services.js';
import { ADDRESS, ATTACHMENT, SEQUENCE_NUMBER, text } from '../command-line/forms.js';
import { FORCE, FORCED_TIMEOUT_MS, previewReport, YES } from '../command-line/options.js';
import { argument, option, type Verb } from '../command-line/verb.js';
import { DONE, FAILED, NOT_FOUND, sentence, type Report } from '../output/report.js';
import { attachmentText, podOf } from '../output/words.js';
import { podText } from '../resources/workloadendpoint.js';
import { holderFields } from './history.js';

const ADDRESS_ARGUMENT = argument(ADDRESS, 'the address to release', 'required');

const SEQUENCE = option(
  '--sequence',
  SEQUENCE_NUMBER,
  'only the allocation with this sequence number, as "who" shows it (the current one)',
);
const HANDLE = option('--handle', text('HANDLE'), 'only if the handle holds the address');

export const releaseAddress: Verb = {
  name: 'release address',
  about: 'release one address',
  details:
    'Refused while the node of the pod runs. A lease that no pod has is recalled from its node first. The preview names the\nsequence number, so that --yes releases exactly the allocation shown: a later allocation has another number, and is kept.',
  positionals: [ADDRESS_ARGUMENT],
  options: [SEQUENCE, HANDLE],
  flags: [FORCE, YES],
  examples: ['release address 10.65.0.7', 'release address 10.65.0.7 --sequence 12 --yes'],
  run: async (input, context) => {
    const address = input.at(ADDRESS_ARGUMENT);
    const release = { address, sequenceNumber: input.get(SEQUENCE), handleId: input.get(HANDLE) };
    const force = input.has(FORCE);
    if (input.has(YES)) return releaseAddresses({ releases: [release], force }, context);
    const command = (sequence: string) => input.toCommandLine({ options: { [SEQUENCE.name]: sequence } });
    return previewRelease({ ...release, force }, command, context);
  },
};

export interface Release {
  readonly address: string;
  /** Only the allocation with this number; undefined for any. */
  readonly sequenceNumber: bigint | undefined;
  readonly handleId: string | undefined;
}

export interface Releases {
  readonly releases: readonly Release[];
  /** Whether nodes that run are asked for what their pods have. */
  readonly force: boolean;
}

/** @param command - the command line that releases exactly this allocation, by its sequence number */
export async function previewRelease(
  { address, sequenceNumber, handleId, force }: Release & Pick<Releases, 'force'>,
  command: (sequence: string) => string,
  context: Context,
): Promise<Report> {
  const { ipam, json } = context;
  const found = await ipam.call(AddressServiceService.getAddress, { address });
  const data = (): ReturnType<Report['data']> => json.of(AddressServiceService.getAddress, found);
  const { holder } = found;
  if (!holder) return { sections: [sentence(`${address} is not allocated`)], data, exitCode: NOT_FOUND };
  const [sequence, handle] = [sequenceNumber ?? holder.sequenceNumber, handleId ?? holder.handleId];
  if (sequence !== holder.sequenceNumber || handle !== holder.handleId)
    return { sections: [sentence(mismatchText(address, holder))], data, exitCode: FAILED };
  const sections = [
    sentence(`${address} would be released; its owner:`),
    { kind: 'fields' as const, fields: holderFields(holder) },
  ];
  const releases = [{ address, sequenceNumber: sequence, handleId }];
  const execute = () => releaseAddresses({ releases, force }, context);
  return previewReport({ sections, data }, command(String(sequence)), execute);
}

export async function releaseAddresses({ releases, force }: Releases, context: Context): Promise<Report> {
  const { ipam, json } = context;
  if (force) context.restartTimeout(FORCED_TIMEOUT_MS);
  const answer = await ipam.call(
    AddressServiceService.releaseAddresses,
    ReleaseAddressesRequest.fromPartial({
      releases: releases.map(({ address, sequenceNumber, handleId }) => ({
        address,
        ...(sequenceNumber !== undefined && { sequenceNumber }),
        ...(handleId !== undefined && { handleId }),
      })),
      ...(force && { force }),
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
    case AddressReleaseResult.ADDRESS_RELEASE_RESULT_IN_USE:
      return { message: `${address} is kept: its node runs, and has it for ${owner}`, exitCode: FAILED };
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

const ATTACHMENT_ARGUMENT = argument(ATTACHMENT, 'the attachment, as "who" and "pods list" print it', 'required');

export const releaseAttachment: Verb = {
  name: 'release attachment',
  about: 'release all addresses of an attachment, and its endpoint',
  details: 'The wire is kept; DEL removes both. Refused while the node of the pod runs.',
  positionals: [ATTACHMENT_ARGUMENT],
  flags: [FORCE, YES],
  run: async (input, context) => {
    const attachment = input.at(ATTACHMENT_ARGUMENT);
    const execute = () => releaseOf(attachment, input.has(FORCE), context);
    if (input.has(YES)) return execute();
    const { ipam, json } = context;
    const name = attachmentText(attachment);
    const found = await endpointOf(ipam, attachment);
    if (!found) {
      const message = `${name} holds no address; its endpoint, if any, would be removed`;
      const data = () => json.of(AddressServiceService.release, { addresses: [] });
      return previewReport({ sections: [sentence(message)], data }, input.toCommandLine(), execute);
    }
    const addresses = found.endpoint?.addresses.map(({ address }) => address).join(', ') ?? '';
    const pod = podText(found.endpoint);
    const sections = [sentence(`${addresses} of ${name} would be released${pod === '' ? '' : `; pod ${pod}`}`)];
    const data = () => json.of(AddressServiceService.getEndpoint, found);
    return previewReport({ sections, data }, input.toCommandLine(), execute);
  },
};

async function releaseOf(attachment: Attachment, force: boolean, context: Context): Promise<Report> {
  const { ipam, json } = context;
  const found = await endpointOf(ipam, attachment);
  const held = found?.endpoint?.addresses ?? [];
  const releases = held.map(({ address, sequenceNumber }) => ({
    ...{ address: address.replace(/\/\d+$/, ''), sequenceNumber },
    handleId: handleId(attachment),
  }));
  // Release is the node's own call, and does not check whether the node runs.
  const checked = releases.length > 0 ? await releaseAddresses({ releases, force }, context) : undefined;
  if (checked?.exitCode === FAILED) return checked;
  const answer = await ipam.call(AddressServiceService.release, { attachment });
  const addresses = [...new Set([...held.map(({ address }) => address), ...answer.addresses])];
  const name = attachmentText(attachment);
  const message =
    addresses.length > 0
      ? `${addresses.join(', ')} of ${name} released`
      : `${name} holds no address; its endpoint, if any, is removed`;
  return { sections: [sentence(message)], data: () => json.of(AddressServiceService.release, { addresses }) };
}

async function endpointOf(ipam: Service, attachment: Attachment): Promise<GetEndpointResponse | undefined> {
  try {
    return await ipam.call(AddressServiceService.getEndpoint, { attachment });
  } catch (error) {
    if (error instanceof Failure && error.code === 'ENDPOINT_NOT_FOUND') return undefined;
    throw error;
  }
}
