import { Failure } from '@podwire/shared/failure/failure';

import type { AttachmentRequest } from '../request.js';
import { describeLeftovers, takeDown } from './take-down.js';
import type { CommandTools } from './tools.js';

/**
 * DEL: takes a pod's wire away and gives its addresses back.
 *
 * Lenient, as the specification asks: without a namespace, an interface or an allocation there is less to do. Idempotent. It goes on
 * when the runtime no longer waits for it.
 * @throws Failure that says what was not done; the runtime repeats the command
 */
export async function del({ attachment }: AttachmentRequest, tools: CommandTools): Promise<undefined> {
  const { deadlineMs } = tools.limits;
  const leftovers = await takeDown(attachment, tools, { deadlineMs, signal: new AbortController().signal });
  const [first] = leftovers;
  if (!first) return;
  const { code, details } = first.failure;
  throw new Failure(code, `DEL is not done: ${describeLeftovers(leftovers)}; repeat it`, {
    details,
    cause: first.failure,
  });
}
