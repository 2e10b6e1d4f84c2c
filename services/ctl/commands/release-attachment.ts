import { AddressServiceService, type GetEndpointResponse } from '@podwire/proto/podwire/ipam/v1/address';
import type { Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';

import type { Service } from '../clients/services.js';
import { ATTACHMENT } from '../command-line/forms.js';
import { unconfirmed, YES } from '../command-line/options.js';
import type { Positional, Verb } from '../command-line/verb.js';
import { sentence } from '../output/report.js';
import { attachmentText } from './attachment-of.js';
import { podText } from './endpoint-text.js';

const WHICH: Positional<Attachment> = {
  form: ATTACHMENT,
  about: 'the attachment, as "who" and "pods list" print it',
  presence: 'required',
};

export const releaseAttachment: Verb = {
  name: 'release attachment',
  about: 'release everything that an attachment holds, and its endpoint',
  details: 'Its wire stays; a DEL takes away both.',
  positionals: [WHICH],
  flags: [YES],
  run: async (input, { ipam, json }) => {
    const attachment = input.at(WHICH);
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
