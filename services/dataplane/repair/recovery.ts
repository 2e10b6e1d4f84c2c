import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { HOST_INTERFACE_PREFIX, HOST_MAC } from '@podwire/shared/attachment/names';
import { isAborted } from '@podwire/shared/failure/signal';
import { forEachConcurrently } from '@podwire/shared/reconcile/concurrently';

import type { AttachmentEvents, RecoverySummary } from '../pods/events.js';
import type { Kernel } from '../pods/kernel.js';
import type { RepairResult } from '../pods/conflicts.js';
import type { PodWiring } from '../pods/pods.js';
import type { AttachmentRecord } from '../records/record.js';
import type { AttachmentRegistry } from '../records/registry.js';
import { attachmentOfAlias } from '../wiring/network.js';
import type { ObservedLink } from '../wiring/observed.js';
import { isMadeFor } from '../wiring/wire.js';

/** Concurrent recoveries: leaves the other threads of the service to calls. */
const RECOVERY_CONCURRENCY = 4;

export type RepairOutcome = RepairResult | { readonly outcome: 'unreadable' };

interface RecoveryOptions {
  readonly kernel: Kernel;
  readonly dataplane: PodWiring;
  /** Repairs an attachment from its record. */
  readonly repair: (attachment: Attachment) => Promise<RepairOutcome>;
  readonly registry: AttachmentRegistry;
  readonly events: AttachmentEvents;
}

type Outcome = keyof RecoverySummary;

/** Everything that the previous process left, or only incomplete links without a record. */
export type RecoveryScope = 'all' | 'incomplete';

/**
 * Reconciles kernel and records after a start: adopts or repairs complete attachments, finishes or undoes incomplete ones.
 * Evaluates each attachment again under its own lock, so that calls are served meanwhile and wait only for their own attachment.
 * @returns whether all incomplete links are gone; recorded attachments are reconciled in any case
 * @throws Failure KERNEL_REFUSED when the kernel cannot list its links
 */
export async function recover(options: RecoveryOptions, scope: RecoveryScope, signal: AbortSignal): Promise<boolean> {
  const { kernel, registry, events } = options;
  const routed = await routedLinks(kernel);
  const all = compareRecordsWithLinks({ records: registry.all(), links: await kernel.veths(), routed });
  const findings = all.filter(({ type }) => scope === 'all' || type === 'remove');
  const outcomes: Outcome[] = [];
  let failedRemovals = 0;
  await forEachConcurrently(findings, RECOVERY_CONCURRENCY, async (finding) => {
    const outcome = await tryApplyFinding(finding, options, signal);
    if (outcome) outcomes.push(outcome);
    if (outcome === 'failed' && finding.type === 'remove') failedRemovals++;
  });
  const isClean = failedRemovals === 0;
  const count = (wanted: Outcome): number => outcomes.filter((outcome) => outcome === wanted).length;
  const summary = {
    kept: count('kept'),
    repaired: count('repaired'),
    adopted: count('adopted'),
    undone: count('undone'),
    withoutNamespace: count('withoutNamespace'),
    waiting: count('waiting'),
    failed: count('failed'),
  };
  if (!signal.aborted && (scope === 'all' || isClean)) events.recoveryFinished(summary);
  return isClean;
}

/** @returns undefined when the outcome is unknown, or there was nothing to do */
async function tryApplyFinding(
  finding: Finding,
  options: RecoveryOptions,
  signal: AbortSignal,
): Promise<Outcome | undefined> {
  try {
    return signal.aborted ? undefined : await applyFinding(finding, options, signal);
  } catch (error) {
    // The next start retries.
    if (isAborted(signal)) return undefined;
    options.events.taskFailed(`recovery of ${describeFinding(finding)}`, error);
    return 'failed';
  }
}

/** @returns undefined when a call has handled it meanwhile */
async function applyFinding(
  finding: Finding,
  options: RecoveryOptions,
  signal: AbortSignal,
): Promise<Outcome | undefined> {
  switch (finding.type) {
    case 'repair':
      return repairRecorded(finding, options);
    case 'finish-detach':
      return finishDetach(finding, options, signal);
    case 'adopt':
    case 'remove':
      return handleUnrecorded(finding, options, signal);
  }
}

type FindingOf<Type extends Finding['type']> = Extract<Finding, { readonly type: Type }>;

async function repairRecorded(
  { record }: FindingOf<'repair'>,
  { repair }: RecoveryOptions,
): Promise<Outcome | undefined> {
  const result = await repair(record.network.attachment);
  switch (result.outcome) {
    case 'matches':
      return result.differences.length > 0 ? 'repaired' : 'kept';
    case 'namespace-gone':
      return 'withoutNamespace';
    case 'wire-lost':
      return 'waiting';
    case 'unreadable':
      return 'failed';
    case 'not-attached':
      return undefined;
  }
}

async function finishDetach(
  { record }: FindingOf<'finish-detach'>,
  { dataplane }: RecoveryOptions,
  signal: AbortSignal,
): Promise<Outcome | undefined> {
  return (await dataplane.finishDetach(record.network.attachment, signal)) ? 'undone' : undefined;
}

/** An attach stores the record before it answers: for a link without a record this process has sent no answer. */
async function handleUnrecorded(
  { type, attachment, link }: FindingOf<'adopt' | 'remove'>,
  { kernel, dataplane, registry, events }: RecoveryOptions,
  signal: AbortSignal,
): Promise<Outcome | undefined> {
  return dataplane.runExclusive({ attachment, hostInterfaceName: link.name }, signal, async () => {
    const found = await kernel.hostLink(link.name);
    const record = attachment ? registry.get(attachment) : registry.byHostInterface(link.name);
    if (record || found?.index !== link.index) return undefined;
    if (!(attachment ? isMadeFor(found, attachment) : isUnfinishedLink(found))) return undefined;
    if (type === 'adopt') {
      events.linkAdopted(attachment, found.name);
      await dataplane.adopt(found.name);
      return 'adopted';
    }
    if (!(await kernel.deleteHostLink(found))) return undefined;
    events.incompleteLinkRemoved(found.name);
    return 'undone';
  });
}

async function routedLinks(kernel: Kernel): Promise<ReadonlySet<string>> {
  const attached = await kernel.attachedLinks();
  return new Set(attached.filter(({ addresses }) => addresses.length > 0).map(({ link }) => link.name));
}

function describeFinding(finding: Finding): string {
  if (finding.type === 'adopt' || finding.type === 'remove') return finding.link.name;
  return formatAttachment(finding.record.network.attachment);
}

/** Action for one object found at the start. */
type Finding =
  /** Recorded: repair differences, finish incomplete changes. */
  | { readonly type: 'repair'; readonly record: AttachmentRecord }
  /** A detach was interrupted: finish it. */
  | { readonly type: 'finish-detach'; readonly record: AttachmentRecord }
  /** No record, but complete in the kernel: keep it, as a pod may use it. */
  | { readonly type: 'adopt'; readonly attachment: Attachment; readonly link: ObservedLink }
  /** No record, and incomplete: no call has reported it as wired. */
  | { readonly type: 'remove'; readonly attachment: Attachment | undefined; readonly link: ObservedLink };

interface NodeState {
  readonly records: readonly AttachmentRecord[];
  /** The node's veth links. */
  readonly links: readonly ObservedLink[];
  /** Names of links with Podwire's own routes to pods' addresses. */
  readonly routed: ReadonlySet<string>;
}

/** Compares records with links. Skips links that are not Podwire's, and dead attachments, which have no wire. */
function compareRecordsWithLinks({ records, links, routed }: NodeState): Finding[] {
  const recorded = new Set(records.map(({ network }) => formatAttachment(network.attachment)));
  const names = new Set(records.map(({ network }) => network.hostInterfaceName));
  return [
    ...records.flatMap(findingOfRecord),
    ...links.flatMap((link): Finding[] => {
      const attachment = attachmentOfAlias(link.alias);
      if (attachment) {
        if (recorded.has(formatAttachment(attachment))) return [];
        return [{ type: isComplete(link, routed) ? 'adopt' : 'remove', attachment, link }];
      }
      return isUnfinishedLink(link) && !names.has(link.name) ? [{ type: 'remove', attachment: undefined, link }] : [];
    }),
  ];
}

function findingOfRecord(record: AttachmentRecord): Finding[] {
  switch (record.state) {
    case 'attached':
      return [{ type: 'repair', record }];
    case 'detaching':
      return [{ type: 'finish-detach', record }];
    case 'dead':
      return [];
  }
}

/** The node's routes are the last step of a wiring: a link with routes is complete. */
function isComplete(link: ObservedLink, routed: ReadonlySet<string>): boolean {
  return link.up && routed.has(link.name);
}

/** A link whose creator was killed before it set the alias; only Podwire creates such links. */
function isUnfinishedLink({ name, kind, alias, up, mac }: ObservedLink): boolean {
  return name.startsWith(HOST_INTERFACE_PREFIX) && kind === 'veth' && (alias ?? '') === '' && !up && mac === HOST_MAC;
}
