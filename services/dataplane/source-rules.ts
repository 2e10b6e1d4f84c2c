import { Failure } from '@podwire/shared/failure/failure';

import { compareIdentities } from './attachments/identity.js';
import type { AttachmentRecord } from './attachments/record.js';
import type { Events } from './events.js';
import type { PodSession } from './kernel/kernel.js';
import { tableOf } from './plan/source-table.js';

/** Runs work in the pod's namespace, as the only one there. @throws Failure INVALID_NETNS where it is gone, or the call's own */
export type InPod = (work: (session: PodSession) => Promise<void>) => Promise<void>;

/**
 * Takes an attachment's rules out of a pod that lives on: they are on no link, and do not go with one. What the kernel refuses is
 * logged: rules that are left speak of an address that is gone and a table that is empty, and the interface is to go in any case.
 * @throws Failure the call's own
 */
export async function removeSourceRules(
  { network: { attachment }, identity }: AttachmentRecord,
  { inPod, events }: { readonly inPod: InPod; readonly events: Events },
): Promise<void> {
  try {
    await inPod(async (session) => {
      // The interface of that name in another namespace is another one's.
      if (compareIdentities(identity, session.identity) !== 'same') return;
      const rules = await session.rules(tableOf(attachment.interfaceName));
      const { failed } = await session.apply(rules.map((rule) => ({ type: 'rule-delete', side: 'pod', rule })));
      if (failed) throw failed.failure;
    });
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    // They went with the namespace.
    if (error.code === 'INVALID_NETNS') return;
    if (!KERNELS.includes(error.code)) throw error;
    events.rulesLeft(attachment, error);
  }
}

/** Failures that are the kernel's. */
const KERNELS: readonly string[] = ['KERNEL_REFUSED', 'KERNEL_UNSUPPORTED'];
