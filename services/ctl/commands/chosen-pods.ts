import type { Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';

import type { Context, Service } from '../clients/services.js';
import { ADDRESS, POD_NAME, text } from '../command-line/forms.js';
import type { Input, Positional } from '../command-line/verb.js';
import { listEndpoints } from '../resources/endpoints.js';
import { listPods } from '../resources/pods.js';
import { attachmentText } from './attachment-of.js';

export const CHOICE: Positional<string> = {
  form: text('POD'),
  about:
    'NAMESPACE/NAME, an attachment, the beginning of its container ID, its host interface or an address of it (all of this node)',
  presence: 'optional',
};

/** The attachments of this node that are meant. @throws Failure ATTACHMENT_NOT_FOUND, INVALID_REQUEST */
export async function chosenPods(input: Input, { dataplane, ipam }: Context): Promise<Attachment[]> {
  const [choice] = input.rest(CHOICE);
  const pods = await listPods(dataplane);
  const known = pods.flatMap((pod) => (pod.attachment ? [{ ...pod, attachment: pod.attachment }] : []));
  if (choice === undefined) return known.map(({ attachment }) => attachment);
  const matching = known.filter(
    ({ attachment, hostInterface, addresses }) =>
      attachmentText(attachment) === choice ||
      attachment.containerId.startsWith(choice) ||
      hostInterface?.name === choice ||
      addresses.some((address) => address === choice || address.split('/')[0] === choice),
  );
  const own = new Set(matching.length === 0 ? await attachmentsOf(choice, ipam) : []);
  const named = known.filter(({ attachment }) => own.has(attachmentText(attachment)));
  const found = [...matching, ...named].map(({ attachment }) => attachment);
  if (found.length === 0)
    throw new Failure('ATTACHMENT_NOT_FOUND', `no pod of this node is "${choice}"; "podwirectl pods list" shows them`);
  const containers = new Set(found.map(({ containerId }) => containerId));
  if (containers.size > 1)
    throw new Failure('INVALID_REQUEST', `"${choice}" is ${containers.size} containers; give more of the ID`);
  return found;
}

/** The attachments of a pod, whose name only IPAM knows; none where the choice is no pod's name. */
async function attachmentsOf(choice: string, ipam: Service): Promise<string[]> {
  const pod = POD_NAME.read(choice);
  if (!pod.ok || ADDRESS.read(choice).ok) return [];
  const { namespace, name } = pod.value;
  const endpoints = await listEndpoints(ipam, { namespace, podName: name, nodeName: '', poolName: '' });
  return endpoints.map(({ attachment }) => attachmentText(attachment));
}
