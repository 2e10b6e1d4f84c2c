import { CheckPodRequest, PodServiceService, type CheckPodResponse } from '@podwire/proto/podwire/dataplane/v1/pod';
import type { Attachment } from '@podwire/shared/attachment/attachment';
import { counted } from '@podwire/shared/words/counted';

import type { Verb } from '../command-line/verb.js';
import { DONE, FOUND_WRONG } from '../exit-codes.js';
import { attachmentText } from './attachment-of.js';
import { CHOICE, chosenPods } from './chosen-pods.js';
import { differenceTable } from './difference-table.js';
import { failureText } from './failure-text.js';

interface Checked {
  readonly attachment: Attachment;
  readonly answer: CheckPodResponse | undefined;
  /** Why it could not be checked. */
  readonly fault: string | undefined;
}

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
    const none = `Nothing differs on ${counted(checked.length, 'pod')}.`;
    return {
      sections: [differenceTable(checked, none)],
      hints:
        wrong.length > 0
          ? [
              `something differs on ${wrong.length} of ${counted(checked.length, 'pod')}; to mend it: podwirectl pods repair`,
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
