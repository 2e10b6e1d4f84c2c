import type { Attachment } from '@podwire/shared/attachment/attachment';
import { tracedMessage } from '@podwire/shared/failure/status';

import { delegateOf } from '../addresses/mode.js';
import { Stopping, type DelRequest } from '../requests/request.js';
import type { CommandTools, Tools } from './context.js';
import { limitsWithoutCaller, serviceOf, settle, writeDown } from './release.js';

/**
 * DEL: takes a pod's wire away and gives its addresses back.
 *
 * Succeeds whatever is away: what a service does not do in its time, or refuses, is written to the node's journal before the
 * answer, and done later; where the disk does not take it, it is in memory as long as the process is. Lenient, as the specification asks: without a namespace, an interface or an allocation there is less to
 * do. Idempotent. It goes on when the runtime no longer waits for it.
 * @throws Failure CANCELLED where what is left would be gone with a process that is told to end
 */
export async function del({ attachment, netns: named, share }: DelRequest, tools: CommandTools): Promise<undefined> {
  const { journal, knownAllocations, clock, limits, delServiceTimeoutMs, hanging } = tools;
  const limitsOf = () => limitsWithoutCaller(tools, Math.min(limits.deadlineMs, clock.nowMs() + delServiceTimeoutMs));
  const held = knownAllocations.of(attachment);
  // DEL has the configuration of today. Addresses that are known to be IPAM's go back to it, whoever would give them now; and
  // nobody takes back what nobody was asked for, or each ADD that names a plugin which is not there would leave a debt for good.
  const isDelegates = !(held && held.length > 0) && !knownAllocations.wasNobodyAsked(attachment);
  const delegate = isDelegates ? delegateOf(share) : undefined;
  const todo = share.kind === 'addresses' ? 'release' : 'detach-and-release';
  // A DEL that could not be done may have named it, and those that follow it need not.
  const netns = named ?? journal.get(attachment)?.netns;
  const unsettled = await settle({ attachment, todo, held: undefined, netns, delegate }, tools, {
    limitsOf,
    isGiverKnown: held !== undefined && held.length > 0,
    skip: new Set(hanging.of(attachment.network).map((type) => serviceOf({ type }))),
  });
  if (unsettled) {
    const { todo: left, failure } = unsettled;
    await writeDown({ attachment, todo: left, held, netns, delegate, reason: tracedMessage(failure) }, tools);
    requireKept(attachment, tools);
  } else {
    await journal.done(attachment);
  }
  knownAllocations.forget(attachment);
}

/** Who is told that a DEL is done does not repeat it, and the memory that alone has the rest is about to go. */
function requireKept(attachment: Attachment, { journal, stopping }: Tools): void {
  const fault = journal.volatileFault(attachment);
  if (fault === undefined || !stopping.aborted) return;
  throw new Stopping(`its rest cannot be left to it: ${fault}`);
}
