import type { Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';

import { compareIdentities, type AttachmentRecord } from '../records/record.js';
import type { AttachmentRegistry } from '../records/registry.js';
import { tableOf, type Wanted } from '../wiring/network.js';
import type { Observed } from '../wiring/observed.js';
import { formatRule, type Rule } from '../wiring/step.js';
import { movedAddresses } from '../wiring/wire.js';
import type { Events } from './events.js';
import type { Kernel, PodSession } from './kernel.js';

/** Runs work exclusively in the pod's namespace. @throws Failure INVALID_NETNS when it is gone, or the call's own */
type InPod = (work: (session: PodSession) => Promise<void>) => Promise<void>;

/**
 * Removes an attachment's rules from a pod that keeps running: they belong to no link, so deleting the interface does not remove
 * them. A refusal of the kernel is logged only: leftover rules match an unused address and an empty table, and the interface must
 * go in any case.
 * @throws Failure the call's own
 */
export async function removeSourceRules(
  { network: { attachment }, identity }: AttachmentRecord,
  { inPod, events }: { readonly inPod: InPod; readonly events: Events },
): Promise<void> {
  try {
    await inPod(async (session) => {
      // An interface of that name in another namespace belongs to another attachment.
      if (compareIdentities(identity, session.identity) !== 'same') return;
      const rules = await session.rules(tableOf(attachment.interfaceName));
      const { failed } = await session.apply(rules.map((rule) => ({ type: 'rule-delete', side: 'pod', rule })));
      if (failed) throw failed.failure;
    });
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    // The rules went with the namespace.
    if (error.code === 'INVALID_NETNS') return;
    if (error.code !== 'POD_UNREADABLE' && !KERNEL_CODES.includes(error.code)) throw error;
    events.rulesNotRemoved(attachment, error);
  }
}

interface PodOrphanRulesOptions {
  /** Record of one of the pod's interfaces. */
  readonly record: AttachmentRecord;
  readonly registry: Pick<AttachmentRegistry, 'all'>;
  readonly events: Events;
}

/**
 * Removes orphan rules from a pod: the interface is gone, and its record was lost, so that its detach did not know the namespace.
 * Their table has no routes, so removing them changes no routing. Recorded interfaces are left to their own repair. A refusal of
 * the kernel is logged and retried. Requires the pod's lock.
 */
export async function removePodOrphanRules(
  session: PodSession,
  { record, registry, events }: PodOrphanRulesOptions,
): Promise<void> {
  const { attachment } = record.network;
  try {
    await removeOrphanRules(session, { attachment, registry, events, isSelected: () => true });
  } catch (error) {
    if (!(error instanceof Failure) || !KERNEL_CODES.includes(error.code)) throw error;
    events.orphanRulesNotRemoved(attachment, error);
  }
}

export interface DetachedRulesOptions {
  /** The pod's namespace, given by the detach's caller. */
  readonly inPod: InPod;
  readonly registry: Pick<AttachmentRegistry, 'all'>;
  readonly events: Events;
}

/**
 * The namespace to search for rules once the wire is gone: without a record, the one given by the detach's caller; with one, the
 * recorded one when the kernel cannot show that it is still the pod's.
 */
export function netnsToSearch(record: AttachmentRecord | undefined, named: string | undefined): string | undefined {
  if (!record) return named;
  return record.identity.cookie === null ? record.network.netns : undefined;
}

/**
 * Same as {@link removeSourceRules} after the wire is gone, in a namespace given by path. Paths are reused, so it may be another
 * pod's: removes only rules of this interface's table that are orphans there. Failures are logged, as the pod is detached.
 * Rejects for defects alone.
 */
export async function removeDetachedRules(
  attachment: Attachment,
  { inPod, registry, events }: DetachedRulesOptions,
): Promise<void> {
  const own = tableOf(attachment.interfaceName);
  try {
    await inPod((session) =>
      removeOrphanRules(session, { attachment, registry, events, isSelected: ({ table }) => table === own }),
    );
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    if (error.code !== 'INVALID_NETNS') events.rulesNotRemoved(attachment, error);
  }
}

interface OrphanRulesOptions {
  /** Attachment for the log. */
  readonly attachment: Attachment;
  readonly registry: Pick<AttachmentRegistry, 'all'>;
  readonly events: Events;
  readonly isSelected: (rule: Rule) => boolean;
}

/** @throws Failure KERNEL_REFUSED, KERNEL_UNSUPPORTED */
async function removeOrphanRules(
  session: PodSession,
  { attachment, registry, events, isSelected: isMeant }: OrphanRulesOptions,
): Promise<void> {
  const found = (await session.orphanRules()).filter(isMeant);
  if (found.length === 0) return;
  const recorded = registry.all().filter(({ identity }) => compareIdentities(identity, session.identity) !== 'other');
  const kept = new Set(recorded.map(({ network }) => tableOf(network.attachment.interfaceName)));
  const orphans = found.filter(({ table }) => !kept.has(table));
  if (orphans.length === 0) return;
  const { failed } = await session.apply(orphans.map((rule) => ({ type: 'rule-delete', side: 'pod', rule })));
  if (failed) throw failed.failure;
  events.orphanRulesRemoved(attachment, orphans.map(formatRule));
}

/** Failure codes of the kernel. */
const KERNEL_CODES: readonly string[] = ['KERNEL_REFUSED', 'KERNEL_UNSUPPORTED'];

interface MovedFlowsInput {
  readonly wanted: Wanted;
  /** The state before the addresses were routed to the pod. */
  readonly observed: Observed;
}

/**
 * Deletes tracked flows of addresses that belonged to another pod; otherwise their packets would still follow that pod's state.
 */
export async function deleteMovedFlows(
  { wanted, observed }: MovedFlowsInput,
  { kernel, events }: { readonly kernel: Kernel; readonly events: Events },
): Promise<void> {
  const forgetting = movedAddresses(wanted, observed).map(async ({ destination, device }) => {
    if (device !== wanted.host.link.name) events.routeTakenOver(destination, device);
    try {
      await kernel.deleteFlows(destination.replace(/\/.*/, ''));
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      events.flowsNotDeleted(destination, error);
    }
  });
  await Promise.all(forgetting);
}
