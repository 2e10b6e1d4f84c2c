import type { Attachment } from '@podwire/shared/attachment/attachment';

import type { Providers } from '../addresses/providers.js';
import type { Limits, NodeAddresses } from '../clients/clients.js';
import type { Journal } from '../journal/journal.js';
import type { KnownAllocations } from '../journal/known-allocations.js';
import { ProcessStopping } from '../requests/attachment-queue.js';
import type { DelRequest } from '../requests/request.js';
import { limitsAfterDisconnect, type ProcessEnd, type Releases } from './release.js';

export interface DelDeps extends ProcessEnd {
  readonly nodeAddresses: Pick<NodeAddresses, 'recorded'>;
  readonly providers: Providers;
  readonly releases: Releases;
  readonly known: KnownAllocations;
  readonly journal: Journal;
  /** Timeout of each service call, in milliseconds; then DEL leaves the release pending. */
  readonly delServiceTimeoutMs: number;
  /** Fires on SIGTERM: no more commands are accepted. */
  readonly stopping: AbortSignal;
}

/**
 * DEL: removes a pod's wire and releases its addresses. The node's record returns podwire-ipam's addresses in the background;
 * addresses without a record are released at their provider.
 *
 * Succeeds even if a service is down: the dataplane or the journal completes what DEL could not. If the journal cannot be written,
 * the entry stays in memory as long as the process runs.
 *
 * A missing namespace, interface or allocation is no error, as the specification requires. Idempotent. Continues after the
 * runtime disconnects.
 * @throws Failure CANCELLED when the process is stopping and the pending release exists only in its memory
 */
export async function del({ attachment, netns, mode }: DelRequest, limits: Limits, deps: DelDeps): Promise<undefined> {
  const { nodeAddresses, providers, releases, known, journal, clock, delServiceTimeoutMs } = deps;
  const held = nodeAddresses.recorded(attachment)?.allocation?.addresses ?? known.of(attachment);
  // The configuration may have changed since ADD. Addresses known to be podwire-ipam's are released there, whichever provider
  // is configured now. A provider that ADD never called is not called: its missing program would leave a permanent entry.
  const isOfIpam = held !== undefined && held.length > 0;
  const own = isOfIpam || known.wasUnrequested(attachment) ? providers.ipam : providers.of(mode);
  const release = {
    attachment,
    action: mode.kind === 'ipam-only' ? ('release' as const) : ('detach-and-release' as const),
    // A repeated DEL may lack the namespace that an earlier DEL had.
    netns: netns ?? journal.get(attachment)?.netns,
    held,
    ...own.source,
  };
  const limitsOf = () => {
    const deadlineMs = Math.min(limits.deadlineMs, clock.nowMs() + delServiceTimeoutMs);
    return limitsAfterDisconnect({ ...limits, deadlineMs }, deps);
  };
  const skip = providers.unresponsive(attachment.network);
  await releases.release(release, { limitsOf, skip });
  requireStoredWhileStopping(attachment, deps);
  known.forget(attachment);
}

/** A runtime does not repeat a successful DEL. If the release is only in memory and the process is stopping, DEL has to fail. */
function requireStoredWhileStopping(
  attachment: Attachment,
  { journal, stopping }: Pick<DelDeps, 'journal' | 'stopping'>,
): void {
  const fault = journal.volatileFault(attachment);
  if (fault === undefined || !stopping.aborted) return;
  throw new ProcessStopping(`the pending release cannot be persisted: ${fault}`);
}
