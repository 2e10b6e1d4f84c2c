import {
  CheckPodRequest,
  PodServiceService,
  RepairPodRequest,
  type CheckPodResponse,
  type Difference,
  type RepairPodResponse,
} from '@podwire/proto/podwire/dataplane/v1/pod';
import type { Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';
import { formatCount } from '@podwire/shared/words/format-count';

import type { Context, Service } from '../clients/services.js';
import { ADDRESS, POD_NAME, text } from '../command-line/forms.js';
import type { Input, Positional, Verb } from '../command-line/verb.js';
import { DONE, FAILED, FOUND_WRONG, type Table } from '../output/report.js';
import { attachmentText, failureText } from '../output/words.js';
import { listEndpoints } from '../resources/endpoints.js';
import { listPods } from '../resources/pods.js';

interface Checked {
  readonly attachment: Attachment;
  readonly answer: CheckPodResponse | undefined;
  /** Why it could not be checked. */
  readonly fault: string | undefined;
}

const CHOICE: Positional<string> = {
  form: text('POD'),
  about:
    'NAMESPACE/NAME, an attachment, the beginning of its container ID, its host interface or an address of it (all of this node)',
  presence: 'optional',
};

export const podsCheck: Verb = {
  name: 'pods check',
  about: 'compare the wires of this node’s pods with what they should be; nothing is changed',
  details: 'What a wire is to be is what the dataplane has recorded. Exit code 4: something differs.',
  positionals: [CHOICE],
  examples: ['pods check', 'pods check 4f1c9a', 'pods check 10.65.0.7'],
  run: async (input, context) => {
    const { dataplane, json } = context;
    const attachments = await chosenPods(input, context);
    const checked: Checked[] = [];
    for (const attachment of attachments) {
      const request = CheckPodRequest.fromPartial({ recorded: attachment });
      checked.push(
        await dataplane.call(PodServiceService.checkPod, request).then(
          (answer) => ({ attachment, answer, fault: undefined }),
          (error: unknown) => ({ attachment, answer: undefined, fault: failureText(error) }),
        ),
      );
    }
    const wrong = checked.filter(({ answer }) => answer === undefined || answer.differences.length > 0);
    const none = `Nothing differs on ${formatCount(checked.length, 'pod')}.`;
    return {
      sections: [differenceTable(checked, none)],
      hints:
        wrong.length > 0
          ? [
              `something differs on ${wrong.length} of ${formatCount(checked.length, 'pod')}; to mend it: podwirectl pods repair`,
            ]
          : [],
      data: () => ({
        pods: checked.map(({ attachment, answer, fault }) => ({
          attachment: attachmentText(attachment),
          check: answer ? json.of(PodServiceService.checkPod, answer) : null,
          fault: fault ?? null,
        })),
      }),
      exitCode: wrong.length > 0 ? FOUND_WRONG : DONE,
    };
  },
};

/** The attachments of this node that are meant. @throws Failure ATTACHMENT_NOT_FOUND, INVALID_REQUEST */
async function chosenPods(input: Input, { dataplane, ipam }: Context): Promise<Attachment[]> {
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

/** What was found of one pod. */
interface FoundDifferences {
  readonly attachment: Attachment;
  /** Undefined where the dataplane refused to look. */
  readonly answer: { readonly differences: readonly Difference[]; readonly moreDifferences: number } | undefined;
  readonly fault: string | undefined;
}

function differenceTable(pods: readonly FoundDifferences[], none: string): Table {
  return {
    kind: 'table',
    columns: ['OBJECT', 'WANTED', 'ACTUAL', 'ATTACHMENT'],
    rows: pods.flatMap(({ attachment, answer, fault }) => {
      const name = attachmentText(attachment);
      if (!answer) return [[fault ?? '', '', '', name]];
      const { differences, moreDifferences: more } = answer;
      return [
        ...differences.map(({ object, wanted, actual }) => [object, wanted, actual, name]),
        ...(more > 0 ? [[`${more} more differences`, '', '', name]] : []),
      ];
    }),
    none,
  };
}

interface Repaired {
  readonly attachment: Attachment;
  readonly answer: RepairPodResponse | undefined;
  readonly fault: string | undefined;
}

export const podsRepair: Verb = {
  name: 'pods repair',
  about: 'make the wires of this node’s pods what they should be, and show what was repaired',
  details: 'The dataplane does so by itself every 90 seconds, and at once where the kernel tells of a change.',
  positionals: [CHOICE],
  run: async (input, context) => {
    const { dataplane, json } = context;
    const repaired: Repaired[] = [];
    for (const attachment of await chosenPods(input, context)) {
      const request = RepairPodRequest.fromPartial({ recorded: attachment });
      repaired.push(
        await dataplane.call(PodServiceService.repairPod, request).then(
          (answer) => ({ attachment, answer, fault: undefined }),
          (error: unknown) => ({ attachment, answer: undefined, fault: failureText(error) }),
        ),
      );
    }
    return {
      sections: [differenceTable(repaired, `Nothing was to mend on ${formatCount(repaired.length, 'pod')}.`)],
      data: () => ({
        pods: repaired.map(({ attachment, answer, fault }) => ({
          attachment: attachmentText(attachment),
          repair: answer ? json.of(PodServiceService.repairPod, answer) : null,
          fault: fault ?? null,
        })),
      }),
      exitCode: repaired.some(({ answer }) => answer === undefined) ? FAILED : DONE,
    };
  },
};
