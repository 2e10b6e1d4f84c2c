import type { Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';

import { tableOf, type Wanted } from '../wiring/network.js';
import type { Observed } from '../wiring/observed.js';
import { formatRule, type Rule } from '../wiring/step.js';
import { movedAddresses } from '../wiring/wire.js';
import type { Events } from './events.js';
import type { Kernel, PodSession } from './kernel.js';
import { compareIdentities, type AttachmentRecord } from './record.js';
import type { AttachmentRegistry } from './registry.js';

/** Runs work in the pod's namespace, as the only one there. @throws Failure INVALID_NETNS where it is gone, or the call's own */
type InPod = (work: (session: PodSession) => Promise<void>) => Promise<void>;

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
    if (error.code !== 'POD_UNREADABLE' && !KERNELS.includes(error.code)) throw error;
    events.rulesLeft(attachment, error);
  }
}

interface StrayRulesOptions {
  /** Of one of the pod's interfaces. */
  readonly record: AttachmentRecord;
  readonly registry: Pick<AttachmentRegistry, 'all'>;
  readonly events: Events;
}

/**
 * Takes rules out of a pod whose interface is gone, and with it whoever knew of them: its record was lost, so that its detach did not
 * know the namespace. They lead to a table without routes, so that nothing is routed otherwise without them. Those of an interface that
 * is recorded are its own repair's. What the kernel refuses is logged, and comes again. As the only one in the pod.
 */
export async function removeStrayRules(
  session: PodSession,
  { record, registry, events }: StrayRulesOptions,
): Promise<void> {
  const { attachment } = record.network;
  try {
    await removeStray(session, { attachment, registry, events, isMeant: () => true });
  } catch (error) {
    if (!(error instanceof Failure) || !KERNELS.includes(error.code)) throw error;
    events.strayRulesLeft(attachment, error);
  }
}

export interface RulesIn {
  /** In the namespace that the detach's caller names. */
  readonly inPod: InPod;
  readonly registry: Pick<AttachmentRegistry, 'all'>;
  readonly events: Events;
}

/**
 * Where rules are to be looked for once the wire is gone: where nothing is recorded, in the namespace that the detach's caller names, and
 * in the recorded one where the kernel does not tell whether that is still the pod's.
 */
export function netnsOfRules(record: AttachmentRecord | undefined, named: string | undefined): string | undefined {
  if (!record) return named;
  return record.identity.cookie === null ? record.network.netns : undefined;
}

/**
 * The same as {@link removeSourceRules}, once the wire is gone, in a namespace that is named. That may be another pod's by
 * then, as paths are used again: so only rules of this interface's table go, and only where they are stray there. What fails is logged: the
 * pod is detached. Rejects for defects alone.
 */
export async function removeLostRules(attachment: Attachment, { inPod, registry, events }: RulesIn): Promise<void> {
  const own = tableOf(attachment.interfaceName);
  try {
    await inPod((session) =>
      removeStray(session, { attachment, registry, events, isMeant: ({ table }) => table === own }),
    );
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    if (error.code !== 'INVALID_NETNS') events.rulesLeft(attachment, error);
  }
}

interface Stray {
  /** For the log. */
  readonly attachment: Attachment;
  readonly registry: Pick<AttachmentRegistry, 'all'>;
  readonly events: Events;
  readonly isMeant: (rule: Rule) => boolean;
}

/** @throws Failure KERNEL_REFUSED, KERNEL_UNSUPPORTED */
async function removeStray(session: PodSession, { attachment, registry, events, isMeant }: Stray): Promise<void> {
  const found = (await session.strayRules()).filter(isMeant);
  if (found.length === 0) return;
  const recorded = registry.all().filter(({ identity }) => compareIdentities(identity, session.identity) !== 'other');
  const kept = new Set(recorded.map(({ network }) => tableOf(network.attachment.interfaceName)));
  const stray = found.filter(({ table }) => !kept.has(table));
  if (stray.length === 0) return;
  const { failed } = await session.apply(stray.map((rule) => ({ type: 'rule-delete', side: 'pod', rule })));
  if (failed) throw failed.failure;
  events.strayRulesRemoved(attachment, stray.map(formatRule));
}

/** Failures that are the kernel's. */
const KERNELS: readonly string[] = ['KERNEL_REFUSED', 'KERNEL_UNSUPPORTED'];

interface Move {
  readonly wanted: Wanted;
  /** What was there before the addresses were routed to the pod. */
  readonly observed: Observed;
}

/** Flows of addresses that were another pod's are forgotten, or their packets would go on as was right for that one. */
export async function forgetMovedFlows(
  { wanted, observed }: Move,
  { kernel, events }: { readonly kernel: Kernel; readonly events: Events },
): Promise<void> {
  const forgetting = movedAddresses(wanted, observed).map(async ({ destination, device }) => {
    if (device !== wanted.host.link.name) events.routeTakenOver(destination, device);
    try {
      await kernel.forgetFlows(destination.replace(/\/.*/, ''));
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      events.flowsNotForgotten(destination, error);
    }
  });
  await Promise.all(forgetting);
}
