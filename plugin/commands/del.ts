import type { Attachment } from '@podwire/shared/attachment/attachment';
import { tracedMessage } from '@podwire/shared/failure/status';

import { IPAM_ADDRESSES } from '../addresses/ipam-addresses.js';
import { pluginName } from '../addresses/ipam-plugin.js';
import { providerOf } from '../addresses/provider-history.js';
import { ProcessStopping, type DelRequest } from '../requests/request.js';
import type { CommandTools, Tools } from './context.js';
import { limitsAfterDisconnect, persistRelease, release } from './release.js';

/**
 * DEL: removes a pod's wire and releases its addresses.
 *
 * Succeeds even if a service is down: DEL writes what it could not release to the node's journal, and the journal retries.
 * If the disk write fails, the entry stays in memory as long as the process runs.
 *
 * As the specification requires, a missing namespace, interface or allocation is no error. Idempotent. Continues after the
 * runtime disconnects.
 * @throws Failure CANCELLED when the process is stopping and the pending release exists only in its memory
 */
export async function del(
  { attachment, netns: requestedNetns, mode }: DelRequest,
  tools: CommandTools,
): Promise<undefined> {
  const { journal, knownAllocations, nodeAddresses, clock, limits, delServiceTimeoutMs, circuitBreaker } = tools;
  const limitsOf = () => limitsAfterDisconnect(tools, Math.min(limits.deadlineMs, clock.nowMs() + delServiceTimeoutMs));
  const held = nodeAddresses.recorded(attachment)?.allocation?.addresses ?? knownAllocations.of(attachment);
  // The configuration may have changed since ADD. Addresses known to be podwire-ipam's are released there, whichever provider
  // is configured now. A provider that ADD never called is not called: its missing program would leave a permanent entry.
  const isOfIpam = held !== undefined && held.length > 0;
  const provider = isOfIpam || knownAllocations.wasUnrequested(attachment) ? IPAM_ADDRESSES : providerOf(mode);
  const action = mode.kind === 'ipam-only' ? 'release' : 'detach-and-release';
  // A repeated DEL may lack the namespace that an earlier DEL had.
  const netns = requestedNetns ?? journal.get(attachment)?.netns;
  const pending = { attachment, action, netns, ...provider.source } as const;
  const failed = await release({ ...pending, held: undefined }, tools, {
    limitsOf,
    isProviderKnown: isOfIpam,
    skip: new Set(circuitBreaker.openFor(attachment.network).map((type) => pluginName({ type }))),
  });
  if (failed) {
    const { action: remaining, failure } = failed;
    await persistRelease({ ...pending, action: remaining, held, reason: tracedMessage(failure) }, tools);
    requireStoredWhileStopping(attachment, tools);
  } else {
    await journal.done(attachment);
  }
  knownAllocations.forget(attachment);
}

/** A runtime does not repeat a successful DEL. If the release is only in memory and the process is stopping, DEL has to fail. */
function requireStoredWhileStopping(attachment: Attachment, { journal, stopping }: Tools): void {
  const fault = journal.volatileFault(attachment);
  if (fault === undefined || !stopping.aborted) return;
  throw new ProcessStopping(`the pending release cannot be persisted: ${fault}`);
}
