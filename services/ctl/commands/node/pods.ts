import type { MethodDefinition } from '@grpc/grpc-js';
import {
  PodServiceService,
  type CheckPodRequest,
  type CheckPodResponse,
} from '@podwire/proto/podwire/dataplane/v1/pod';
import type { Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';
import { formatCount } from '@podwire/shared/words/format-count';

import type { Context, Service } from '../../clients/services.js';
import { ADDRESS, POD_NAME, text } from '../../command-line/forms.js';
import { ON_NODE } from '../../command-line/options.js';
import { argument, type Input, type Verb } from '../../command-line/verb.js';
import { DONE, FAILED, PROBLEM_FOUND, type Table } from '../../output/report.js';
import { attachmentText, failureText } from '../../output/words.js';
import { listEndpoints } from '../../resources/workloadendpoint.js';
import { listPods } from '../../resources/pods.js';

const POD_ARGUMENT = argument(
  text('POD'),
  'NAMESPACE/NAME, an attachment, the beginning of a container ID, a host interface or an address (all pods of this node)',
  'optional',
);

export const podsCheck: Verb = {
  name: 'pods check',
  about: 'compare the wires of this node’s pods with their recorded state; nothing is changed',
  details: 'The dataplane has recorded the state of each wire. Exit code 4: a wire differs.',
  positionals: [POD_ARGUMENT],
  examples: ['pods check', 'pods check 4f1c9a', 'pods check 10.65.0.7'],
  options: [ON_NODE],
  run: async (input, context) => {
    const checked = await differencesOf(PodServiceService.checkPod, input, context);
    const wrong = checked.filter(({ found }) => found === undefined || found.differences.length > 0);
    const none = `check: no differences (${formatCount(checked.length, 'pod')})`;
    return {
      sections: [differenceTable(checked, none)],
      hints:
        wrong.length > 0
          ? [
              `${wrong.length} of ${formatCount(checked.length, 'pod')} differ or could not be checked; to repair them: podwirectl pods repair`,
            ]
          : [],
      data: () => ({
        pods: checked.map(({ attachment, found, fault }) => {
          const check = found ? context.json.of(PodServiceService.checkPod, found) : null;
          return { attachment, check, fault };
        }),
      }),
      exitCode: wrong.length > 0 ? PROBLEM_FOUND : DONE,
    };
  },
};

/** The attachments of this node that the argument selects. @throws Failure ATTACHMENT_NOT_FOUND, INVALID_REQUEST */
async function selectPods(input: Input, { dataplane, ipam }: Context): Promise<Attachment[]> {
  const [choice] = input.rest(POD_ARGUMENT);
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
    throw new Failure(
      'ATTACHMENT_NOT_FOUND',
      `no pod of this node matches "${choice}"; "podwirectl pods list" lists them`,
    );
  const containers = new Set(found.map(({ containerId }) => containerId));
  if (containers.size > 1)
    throw new Failure(
      'INVALID_REQUEST',
      `"${choice}" matches ${containers.size} containers; use a longer prefix of the ID`,
    );
  return found;
}

/** The attachments of a pod by its name, which only IPAM knows; empty where the argument is not a pod's name. */
async function attachmentsOf(choice: string, ipam: Service): Promise<string[]> {
  const pod = POD_NAME.read(choice);
  if (!pod.ok || ADDRESS.read(choice).ok) return [];
  const { namespace, name } = pod.value;
  const endpoints = await listEndpoints(ipam, { namespace, pod: name });
  return endpoints.map(({ attachment }) => attachmentText(attachment));
}

/** The differences of one pod. */
interface PodDifferences {
  readonly attachment: string;
  readonly found: CheckPodResponse | undefined;
  /** Why the call failed. */
  readonly fault: string | null;
}

/** Calls CheckPod or RepairPod for the selected pods. */
async function differencesOf(
  method: MethodDefinition<CheckPodRequest, CheckPodResponse>,
  input: Input,
  context: Context,
): Promise<PodDifferences[]> {
  const pods: PodDifferences[] = [];
  for (const recorded of await selectPods(input, context)) {
    const attachment = attachmentText(recorded);
    pods.push(
      await context.dataplane.call(method, { recorded, pod: undefined }).then(
        (found) => ({ attachment, found, fault: null }),
        (error: unknown) => ({ attachment, found: undefined, fault: failureText(error) }),
      ),
    );
  }
  return pods;
}

function differenceTable(pods: readonly PodDifferences[], none: string): Table {
  return {
    kind: 'table',
    columns: ['OBJECT', 'WANTED', 'ACTUAL', 'ATTACHMENT'],
    rows: pods.flatMap(({ attachment: name, found, fault }) => {
      if (!found) return [[fault ?? '', '', '', name]];
      const { differences, moreDifferences: more } = found;
      return [
        ...differences.map(({ object, wanted, actual }) => [object, wanted, actual, name]),
        ...(more > 0 ? [[`${more} more differences`, '', '', name]] : []),
      ];
    }),
    none,
  };
}

export const podsRepair: Verb = {
  name: 'pods repair',
  about: 'repair the wires of this node’s pods, and show the repaired differences',
  details: 'The dataplane itself repairs wires every 90 seconds, and immediately when the kernel reports a change.',
  positionals: [POD_ARGUMENT],
  options: [ON_NODE],
  run: async (input, context) => {
    const repaired = await differencesOf(PodServiceService.repairPod, input, context);
    return {
      sections: [differenceTable(repaired, `repair: no differences (${formatCount(repaired.length, 'pod')})`)],
      data: () => ({
        pods: repaired.map(({ attachment, found, fault }) => {
          const repair = found ? context.json.of(PodServiceService.repairPod, found) : null;
          return { attachment, repair, fault };
        }),
      }),
      exitCode: repaired.some(({ found }) => found === undefined) ? FAILED : DONE,
    };
  },
};
