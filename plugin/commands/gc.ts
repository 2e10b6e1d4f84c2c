import {
  formatAttachment,
  identifierFault,
  MAX_CONTAINER_ID_BYTES,
  podInterfaceNameFault,
  type Attachment,
} from '@podwire/shared/attachment/attachment';
import { Failure, violationsFailure } from '@podwire/shared/failure/failure';
import { z } from 'zod';

import { callDelegate } from '../addresses/ipam-plugin.js';
import { isGatewayHolder } from '../addresses/ipam-result.js';
import type { Delegate, Mode } from '../addresses/mode.js';
import type { NodeEndpoint } from '../clients/upkeep.js';
import type { QueuePosition, AttachmentQueue } from '../requests/attachment-queue.js';
import { startedAtMs, readNodeRequest, type CniRequest } from '../requests/request.js';
import type { CommandTools } from './context.js';
import { failureOf, replayEntry } from './release.js';

/** One GC call. */
interface Collection {
  readonly network: string;
  readonly nodeName: string;
  readonly mode: Mode;
  readonly tools: CommandTools;
  readonly queue: AttachmentQueue;
  /** When the runtime started GC. The runtime made its list before. */
  readonly since: QueuePosition;
  /** Failures so far. */
  readonly failures: Failure[];
}

/**
 * GC: removes the wires and releases the addresses of this network on this node that the runtime does not list. Without a
 * list it collects only proven garbage: pending releases of the journal and allocations of earlier boots. A delegated IPAM
 * plugin gets GC in both cases.
 *
 * Keeps attachments whose ADD is queued, in flight, or has ended since GC started. Releases an address in the attachment's
 * queue, only when no wire uses it, and never a later allocation. Idempotent; continues after errors.
 * @throws Failure that lists everything that failed
 */
export async function gc(request: CniRequest, tools: CommandTools, queue: AttachmentQueue): Promise<undefined> {
  const { network, nodeName = tools.nodeName, mode } = readNodeRequest('GC', request);
  const valid = readValidAttachments(request.configuration, network);
  const since = queue.positionAt(startedAtMs(request));
  const collection: Collection = { network, nodeName, mode, tools, queue, since, failures: [] };

  await replayJournal(collection);
  if (mode.kind === 'delegated-ipam') await collectOfDelegate(mode.delegate, valid, collection);
  else if (valid) await collect(valid, collection);
  else await releaseOfEarlierBoots(collection);

  const { failures } = collection;
  const [first] = failures;
  if (!first) return;
  const messages = [...new Set(failures.map(({ message }) => message))];
  throw new Failure(first.code, `GC is incomplete: ${messages.join('; ')}; repeat it`, {
    details: first.details,
    cause: first,
  });
}

/**
 * Pending releases are proven garbage. They get half of the time, and each service call a DEL's timeout: an unresponsive
 * service, which the journal retries anyway, must not block the rest of the collection.
 */
async function replayJournal({ network, tools, queue, failures }: Collection): Promise<void> {
  const { journal, clock, limits, delServiceTimeoutMs } = tools;
  const untilMs = (clock.nowMs() + limits.deadlineMs) / 2;
  const unresponsive = new Set<string>();
  for (const entry of journal.entries()) {
    if (entry.attachment.network !== network) continue;
    const limitsOf = () => ({ ...limits, deadlineMs: Math.min(untilMs, clock.nowMs() + delServiceTimeoutMs) });
    const failed = await replayEntry(entry, tools, { queue, limitsOf, skip: unresponsive });
    if (!failed) continue;
    failures.push(failed.failure);
    if (failed.failure.retryable) unresponsive.add(failed.service);
  }
}

/** Collects Podwire's wires, then passes GC to the delegate for its addresses. */
async function collectOfDelegate(
  delegate: Delegate,
  listed: readonly Attachment[] | undefined,
  collection: Collection,
): Promise<void> {
  const { tools } = collection;
  // Addresses are released only after their wires are removed.
  if (
    listed &&
    !(await attempt(() => collectWires(() => attachmentsToKeep(listed, collection), collection), collection))
  )
    return;
  await attempt(async () => {
    await callDelegate(delegate, 'GC', tools);
  }, collection);
  // Addresses that podwire-ipam allocated before the configuration named a delegate.
  if (listed && tools.providerHistory.hasIpamAllocated(collection.network)) {
    await attempt(() => collectAddresses(() => attachmentsToKeep(listed, collection), collection), collection);
  }
}

async function collect(listed: readonly Attachment[], collection: Collection): Promise<void> {
  const { mode } = collection;
  const keep = () => attachmentsToKeep(listed, collection);
  // In ipam-only mode the main plugin creates the interfaces and collects them before it calls its IPAM plugin.
  const hasWires = mode.kind !== 'ipam-only';
  if (hasWires && !(await attempt(() => collectWires(keep, collection), collection))) return;
  await attempt(() => collectAddresses(keep, collection), collection);
}

async function collectAddresses(keep: AttachmentsToKeep, collection: Collection): Promise<void> {
  const { network, nodeName, mode, tools } = collection;
  // Read the kernel last: an attachment absent then, with no ADD in flight, has no wire.
  const endpoints = await tools.upkeep.ipam.endpointsOf({ nodeName, network }, tools.limits);
  const wires = mode.kind === 'ipam-only' ? [] : await tools.upkeep.dataplane.wires(tools.limits);
  const attached = new Set(wires.map(({ attachment }) => formatAttachment(attachment)));
  // Calico's plugin wires a pod under another attachment than its address has.
  const routed = new Set(wires.flatMap(({ addresses }) => addresses));
  for (const endpoint of endpoints) {
    const key = formatAttachment(endpoint.attachment);
    const isWired = attached.has(key) || endpoint.held.some(({ address }) => routed.has(address));
    if (isWired || keep().has(key) || isGatewayHolder(endpoint.attachment)) continue;
    await attempt(() => releaseQueued(endpoint, keep, collection), collection);
  }
}

function attachmentsToKeep(
  listed: readonly Attachment[],
  { queue, since }: Collection,
): ReadonlyMap<string, Attachment> {
  return new Map([...listed, ...queue.addedSince(since)].map((each) => [formatAttachment(each), each]));
}

/** Called again before each step, as ADDs may arrive meanwhile. */
type AttachmentsToKeep = () => ReadonlyMap<string, Attachment>;

async function collectWires(keep: AttachmentsToKeep, collection: Collection): Promise<void> {
  const { network, tools, failures } = collection;
  try {
    const valid = [...keep().values()].filter((attachment) => attachment.network === network);
    for (const { attachment, message } of await tools.upkeep.dataplane.collectGarbage(
      { network, valid },
      tools.limits,
    )) {
      failures.push(
        new Failure('KERNEL_REFUSED', `${formatAttachment(attachment)}: its wire was not removed: ${message}`),
      );
    }
  } catch (failure) {
    if (!(failure instanceof Failure && failure.code === 'UNIMPLEMENTED')) throw failure;
    await detachEach(keep, collection);
  }
}

/** For a dataplane of an earlier release, which lacks CollectGarbage. */
async function detachEach(keep: AttachmentsToKeep, collection: Collection): Promise<void> {
  const { network, tools } = collection;
  for (const { attachment } of await tools.upkeep.dataplane.wires(tools.limits)) {
    if (attachment.network !== network) continue;
    const detach = async () => {
      if (!keep().has(formatAttachment(attachment))) await tools.dataplane.detachPod({ attachment }, tools.limits);
    };
    await attempt(() => runQueued(attachment, detach, collection), collection);
  }
}

function releaseQueued(endpoint: NodeEndpoint, keep: AttachmentsToKeep, collection: Collection): Promise<void> {
  const { attachment, held } = endpoint;
  const { ipam, upkeep, limits } = collection.tools;
  const release = async () => {
    if (keep().has(formatAttachment(attachment))) return;
    if (held.length === 0) await ipam.release(attachment, limits);
    else await upkeep.ipam.releaseHeld(attachment, held, limits);
  };
  return runQueued(attachment, release, collection);
}

/**
 * Releases allocations of earlier boots, as no network namespace survives a reboot. Skips an allocation that is younger than
 * this boot: it belongs to another node with the same name.
 */
async function releaseOfEarlierBoots(collection: Collection): Promise<void> {
  const { network, nodeName, tools } = collection;
  await attempt(async () => {
    const { id, startedAtMs } = tools.netns.boot;
    const endpoints = await tools.upkeep.ipam.endpointsOf({ nodeName, network }, tools.limits);
    for (const endpoint of endpoints) {
      const { bootId, createdAtMs } = endpoint;
      const isOfEarlierBoot =
        bootId !== undefined && bootId !== id && createdAtMs !== undefined && createdAtMs < startedAtMs;
      const keep = () => attachmentsToKeep([], collection);
      if (isOfEarlierBoot) await attempt(() => releaseQueued(endpoint, keep, collection), collection);
    }
  }, collection);
}

function runQueued(attachment: Attachment, work: () => Promise<void>, { queue, tools }: Collection): Promise<void> {
  const { deadlineMs } = tools.limits;
  const queued = {
    command: 'GC',
    attachment,
    startedNs: undefined,
    deadlineMs,
    cancel: new AbortController(),
  } as const;
  return queue.run(queued, work);
}

/** Adds a failure to the collection's. @returns whether the work succeeded */
async function attempt(work: () => Promise<void>, { tools, failures }: Collection): Promise<boolean> {
  const failure = await failureOf(work, { log: tools.log, what: 'GC' });
  if (failure) failures.push(failure);
  return failure === undefined;
}

/**
 * The keys of GC's list. The second is the name in an earlier text of the specification; libcni writes both
 * (containernetworking/cni#1101).
 */
const KEYS = ['cni.dev/valid-attachments', 'cni.dev/attachments'] as const;

const ATTACHMENT = z.object({
  containerID: z
    .string({ error: 'is missing' })
    .superRefine((id, context) => report(identifierFault(id, MAX_CONTAINER_ID_BYTES), context)),
  ifname: z
    .string({ error: 'is missing' })
    .superRefine((name, context) => report(podInterfaceNameFault(name), context)),
});

const LIST = z.array(ATTACHMENT, { error: 'must be a list' }).nullable();

/**
 * Reads the attachments that GC has to keep. A missing list differs from an empty one: libcni omits the key when the
 * runtime passed no list, and GC would remove running pods.
 * @param text - the network configuration, a JSON object
 * @returns undefined when no list is given; an empty one for `[]` and `null`
 * @throws Failure INVALID_CONFIG that lists every malformed attachment
 */
function readValidAttachments(text: string, network: string): readonly Attachment[] | undefined {
  const keys = z.record(z.string(), z.unknown()).parse(JSON.parse(text));
  const key = KEYS.find((known) => Object.hasOwn(keys, known));
  if (key === undefined) return undefined;
  const parsed = LIST.safeParse(keys[key]);
  if (parsed.success) {
    return (parsed.data ?? []).map(({ containerID, ifname }) => ({
      network,
      containerId: containerID,
      interfaceName: ifname,
    }));
  }
  const violations = parsed.error.issues.map(({ path, message }) => ({
    field: [key, ...path].join('.'),
    reason: message,
  }));
  throw violationsFailure('INVALID_CONFIG', 'network configuration refused', violations);
}

function report(reason: string | undefined, context: z.RefinementCtx): void {
  if (reason !== undefined) context.addIssue({ code: 'custom', message: reason });
}
