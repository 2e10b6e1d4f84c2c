import type { Attachment } from '@podwire/shared/attachment/attachment';
import { tracedMessage } from '@podwire/shared/failure/status';

import { delegateOf } from '../addresses/mode.js';
import { Stopping, type DelRequest } from '../requests/request.js';
import type { CommandTools, Tools } from './context.js';
import { limitsWithoutCaller, serviceOf, settle, writeDown } from './release.js';

/**
 * DEL: removes a pod's wire and releases its addresses.
 *
 * Succeeds even if a service is down: a step that times out or is rejected is written to the node's journal before the
 * answer and retried later. If the disk write fails, the entry is kept in memory as long as the process runs.
 *
 * Lenient, as the specification asks: a missing namespace, interface or allocation is no error. Idempotent. Continues
 * after the runtime disconnects.
 * @throws Failure CANCELLED when the process is stopping and the pending release exists only in its memory
 */
export async function del({ attachment, netns: named, share }: DelRequest, tools: CommandTools): Promise<undefined> {
  const { journal, knownAllocations, clock, limits, delServiceTimeoutMs, hanging } = tools;
  const limitsOf = () => limitsWithoutCaller(tools, Math.min(limits.deadlineMs, clock.nowMs() + delServiceTimeoutMs));
  const held = knownAllocations.of(attachment);
  // DEL sees today's configuration. Addresses known to be podwire-ipam's return to it, even if the configured provider
  // changed. If no provider was called, none is called to release: an ADD with a missing plugin would otherwise leave a
  // permanent pending release.
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

/** A runtime does not repeat a successful DEL. If the release is only in memory and the process is stopping, DEL has to fail. */
function requireKept(attachment: Attachment, { journal, stopping }: Tools): void {
  const fault = journal.volatileFault(attachment);
  if (fault === undefined || !stopping.aborted) return;
  throw new Stopping(`its rest cannot be left to it: ${fault}`);
}
