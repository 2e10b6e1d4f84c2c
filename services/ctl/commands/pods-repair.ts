import { PodServiceService, RepairPodRequest, type RepairPodResponse } from '@podwire/proto/podwire/dataplane/v1/pod';
import type { Attachment } from '@podwire/shared/attachment/attachment';
import { counted } from '@podwire/shared/words/counted';

import type { Verb } from '../command-line/verb.js';
import { DONE, FAILED } from '../exit-codes.js';
import { attachmentText } from './attachment-of.js';
import { CHOICE, chosenPods } from './chosen-pods.js';
import { differenceTable } from './difference-table.js';
import { failureText } from './failure-text.js';

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
      sections: [differenceTable(repaired, `Nothing was to mend on ${counted(repaired.length, 'pod')}.`)],
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
