import { AddressServiceService } from '@podwire/proto/podwire/ipam/v1/address';
import type { Attachment } from '@podwire/shared/attachment/attachment';

import { ATTACHMENT } from '../command-line/forms.js';
import type { Positional, Verb } from '../command-line/verb.js';
import { sentence } from '../output/report.js';
import { podText } from './endpoint-text.js';
import { unconfirmed, YES } from './confirm.js';
import { attachmentText } from './attachment-of.js';

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
      const found = await ipam.call(AddressServiceService.getEndpoint, { attachment });
      const addresses = found.endpoint?.addresses.map(({ address }) => address).join(', ') ?? '';
      const whose = podText(found.endpoint);
      const sections = [sentence(`${name} would give back ${addresses}${whose === '' ? '' : `, of pod ${whose}`}.`)];
      const data = () => json.of(AddressServiceService.getEndpoint, found);
      return unconfirmed({ sections, data }, input.typed());
    }
    const answer = await ipam.call(AddressServiceService.release, { attachment });
    const told =
      answer.addresses.length > 0 ? `${name} has given back ${answer.addresses.join(', ')}` : `${name} holds nothing`;
    return { sections: [sentence(told)], data: () => json.of(AddressServiceService.release, answer) };
  },
};
