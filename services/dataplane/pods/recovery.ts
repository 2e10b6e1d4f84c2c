import { formatAttachment } from '@podwire/shared/attachment/attachment';

import { forEachFew } from '../attachments/each.js';
import type { AttachmentEvents, RecoverySummary } from '../attachments/events.js';
import { isBare, survey, type Finding } from '../attachments/survey.js';
import { isMadeFor } from '../wiring/wire.js';
import type { Kernel } from './kernel.js';
import type { Mender } from './mender.js';
import type { Dataplane } from './pods.js';
import type { AttachmentRegistry } from './registry.js';

/** How many attachments are looked at at a time: the rest of the service's threads is for calls. */
const AT_ONCE = 4;

interface RecoveryOptions {
  readonly kernel: Kernel;
  readonly dataplane: Dataplane;
  readonly mender: Mender;
  readonly registry: AttachmentRegistry;
  readonly events: AttachmentEvents;
}

type Outcome = keyof RecoverySummary;

/** What is looked at: everything that the process before has left, or what it has not noted as anybody's alone. */
export type RecoveryScope = 'all' | 'half made';

/**
 * Brings kernel and records together after a start: adopts or mends what is complete, finishes or undoes what is not. Each attachment
 * is judged again under its own lock, so that calls are served meanwhile and none waits for another attachment's recovery.
 * @returns whether all that was half made is gone. What is recorded is looked after in any case.
 * @throws Failure KERNEL_REFUSED when the kernel cannot be asked for its links
 */
export async function recover(options: RecoveryOptions, scope: RecoveryScope, signal: AbortSignal): Promise<boolean> {
  const { kernel, registry, events } = options;
  const routed = await routedLinks(kernel);
  const found = survey({ records: registry.all(), links: await kernel.veths(), routed });
  const findings = found.filter(({ type }) => scope === 'all' || type === 'undo');
  const outcomes: Outcome[] = [];
  let leftCount = 0;
  await forEachFew(findings, AT_ONCE, async (finding) => {
    const outcome = await settleOrTell(finding, options, signal);
    if (outcome) outcomes.push(outcome);
    if (outcome === 'failed' && finding.type === 'undo') leftCount++;
  });
  const isClean = leftCount === 0;
  const count = (wanted: Outcome): number => outcomes.filter((outcome) => outcome === wanted).length;
  const summary = {
    kept: count('kept'),
    mended: count('mended'),
    adopted: count('adopted'),
    undone: count('undone'),
    withoutNamespace: count('withoutNamespace'),
    waiting: count('waiting'),
    failed: count('failed'),
  };
  if (!signal.aborted && (scope === 'all' || isClean)) events.recovered(summary);
  return isClean;
}

/** @returns undefined when it is not known what came of it, or nothing was to be done */
async function settleOrTell(
  finding: Finding,
  options: RecoveryOptions,
  signal: AbortSignal,
): Promise<Outcome | undefined> {
  try {
    return signal.aborted ? undefined : await settle(finding, options, signal);
  } catch (error) {
    // The next start looks again.
    if (failedBy(signal)) return undefined;
    options.events.failed(`recovery of ${nameOf(finding)}`, error);
    return 'failed';
  }
}

function failedBy(signal: AbortSignal): boolean {
  return signal.aborted;
}

/** @returns undefined when a call has settled it meanwhile */
async function settle(finding: Finding, options: RecoveryOptions, signal: AbortSignal): Promise<Outcome | undefined> {
  switch (finding.type) {
    case 'mend':
      return mend(finding, options, signal);
    case 'finish-detach':
      return finishDetach(finding, options, signal);
    case 'adopt':
    case 'undo':
      return judgeUnrecorded(finding, options, signal);
  }
}

type FindingOf<Type extends Finding['type']> = Extract<Finding, { readonly type: Type }>;

async function mend(
  { record }: FindingOf<'mend'>,
  { mender }: RecoveryOptions,
  signal: AbortSignal,
): Promise<Outcome | undefined> {
  const mended = await mender.mend(record.network.attachment, signal);
  switch (mended.outcome) {
    case 'as-wanted':
      return mended.differences.length > 0 ? 'mended' : 'kept';
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

/** The record comes before the answer of an attach: without one nobody has been told of the link by this process. */
async function judgeUnrecorded(
  { type, attachment, link }: FindingOf<'adopt' | 'undo'>,
  { kernel, dataplane, registry, events }: RecoveryOptions,
  signal: AbortSignal,
): Promise<Outcome | undefined> {
  return dataplane.exclusively({ attachment, hostInterfaceName: link.name }, signal, async () => {
    const found = await kernel.hostLink(link.name);
    const record = attachment ? registry.get(attachment) : registry.byHostInterface(link.name);
    if (record || found?.index !== link.index) return undefined;
    if (!(attachment ? isMadeFor(found, attachment) : isBare(found))) return undefined;
    if (type === 'adopt') {
      events.adopted(attachment, found.name);
      return 'adopted';
    }
    if (!(await kernel.deleteHostLink(found))) return undefined;
    events.undone(found.name);
    return 'undone';
  });
}

async function routedLinks(kernel: Kernel): Promise<ReadonlySet<string>> {
  const attached = await kernel.attached();
  return new Set(attached.filter(({ addresses }) => addresses.length > 0).map(({ link }) => link.name));
}

function nameOf(finding: Finding): string {
  if (finding.type === 'adopt' || finding.type === 'undo') return finding.link.name;
  return formatAttachment(finding.record.network.attachment);
}
