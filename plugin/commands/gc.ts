import {
  formatAttachment,
  identifierFault,
  MAX_CONTAINER_ID_BYTES,
  podInterfaceNameFault,
  type Attachment,
} from '@podwire/shared/attachment/attachment';
import { Failure, violationsFailure } from '@podwire/shared/failure/failure';
import type { Boot } from '@podwire/shared/runtime/boot';
import type { Clock } from '@podwire/shared/runtime/clock';
import type { Logger } from '@podwire/shared/runtime/log';
import { z } from 'zod';

import type { AddressCollection, Mode } from '../addresses/address-provider.js';
import type { Providers } from '../addresses/providers.js';
import type { Dataplane, Limits, NodeAddresses, NodeEndpoint } from '../clients/clients.js';
import type { Journal } from '../journal/journal.js';
import type { QueuePosition, AttachmentQueue } from '../requests/attachment-queue.js';
import { startedAtMs, readNodeRequest, type CniRequest } from '../requests/request.js';
import { failureOf, type Releases } from './release.js';

export interface GcDeps {
  readonly dataplane: Pick<Dataplane, 'collectGarbage' | 'detachPod' | 'wires'>;
  readonly nodeAddresses: Pick<NodeAddresses, 'recorded'>;
  readonly providers: Providers;
  readonly releases: Releases;
  readonly journal: Journal;
  readonly queue: AttachmentQueue;
  /** Default for network configurations without a node name. */
  readonly nodeName: string;
  readonly boot: Boot;
  readonly clock: Clock;
  readonly log: Logger;
  /** Timeout of each call of a pending release, in milliseconds. */
  readonly delServiceTimeoutMs: number;
}

/** One GC call. */
interface Collection {
  readonly network: string;
  readonly nodeName: string;
  readonly mode: Mode;
  readonly limits: Limits;
  readonly deps: GcDeps;
  /** When the runtime started GC. The runtime made its list before. */
  readonly since: QueuePosition;
  /** Failures so far. */
  readonly failures: Failure[];
}

/**
 * GC: removes the wires and releases the addresses of this network on this node that the runtime does not list. Without a
 * list it collects only proven garbage: pending releases of the journal and allocations of earlier boots. An IPAM plugin gets
 * GC in both cases.
 *
 * Keeps attachments whose ADD is queued, in flight, or has ended since GC started. Releases an address in the attachment's
 * queue, only when no wire uses it, and never a later allocation. Idempotent; continues after errors.
 * @throws Failure that lists everything that failed
 */
export async function gc(request: CniRequest, limits: Limits, deps: GcDeps): Promise<undefined> {
  const { network, nodeName = deps.nodeName, mode } = readNodeRequest('GC', request);
  const valid = readValidAttachments(request.configuration, network);
  const since = deps.queue.positionAt(startedAtMs(request));
  const collection: Collection = { network, nodeName, mode, limits, deps, since, failures: [] };

  await replayJournal(collection);
  await collect(valid, collection);

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
async function replayJournal({ network, limits, deps, failures }: Collection): Promise<void> {
  const { journal, releases, clock, delServiceTimeoutMs } = deps;
  const untilMs = (clock.nowMs() + limits.deadlineMs) / 2;
  const unresponsive = new Set<string>();
  for (const entry of journal.entries()) {
    if (entry.attachment.network !== network) continue;
    const limitsOf = () => ({ ...limits, deadlineMs: Math.min(untilMs, clock.nowMs() + delServiceTimeoutMs) });
    const incomplete = await releases.replay(entry, { limitsOf, skip: unresponsive });
    if (!incomplete) continue;
    failures.push(incomplete.failure);
    if (incomplete.failure.retryable) unresponsive.add(incomplete.call.service);
  }
}

/** @param listed - undefined if the runtime passed no list */
async function collect(listed: readonly Attachment[] | undefined, collection: Collection): Promise<void> {
  const { network, nodeName, mode, limits, deps, since } = collection;
  const { dataplane, nodeAddresses, providers, queue } = deps;
  const keep: AttachmentsToKeep = () =>
    new Map([...(listed ?? []), ...queue.addedSince(since)].map((each) => [formatAttachment(each), each]));
  // The main plugin creates the interfaces in ipam-only mode, and collects them before it calls its IPAM plugin.
  const hasWires = listed !== undefined && mode.kind !== 'ipam-only';
  // Addresses are released only after their wires are removed.
  if (hasWires && !(await attempt(() => collectWires(keep, collection), collection))) return;
  const isKept = ({ attachment }: NodeEndpoint) => keep().has(formatAttachment(attachment));
  const releaseGarbage: AddressCollection['releaseGarbage'] = async (allocations, release) => {
    const isGarbage = listed ? await unwiredTest(collection) : earlierBootTest(deps);
    for (const allocation of allocations) {
      if (!isGarbage(allocation) || isKept(allocation)) continue;
      const { attachment } = allocation;
      const releaseUnlessKept = async () => {
        if (isKept(allocation)) return;
        // A record returns its addresses itself: the node's next pod may have them before podwire-ipam knows.
        if (nodeAddresses.recorded(attachment)?.allocation) await dataplane.detachPod({ attachment }, limits);
        else await release(allocation);
      };
      await attempt(() => runQueued(attachment, releaseUnlessKept, collection), collection);
    }
  };
  // podwire-ipam may have allocated addresses before the configuration named another provider.
  const isIpamFormer = listed !== undefined && providers.hasIpamAllocated(network);
  for (const provider of new Set([providers.of(mode), ...(isIpamFormer ? [providers.ipam] : [])])) {
    await attempt(() => provider.collect({ network, nodeName, releaseGarbage }, limits), collection);
  }
}

type GarbageTest = (allocation: NodeEndpoint) => boolean;

/**
 * Selects allocations without a wire. Reads the kernel last: an attachment absent then, with no ADD in flight, has none. The
 * node's inventory releases another boot's allocations: a machine that had the node's name may still run with them.
 */
async function unwiredTest({ nodeName, mode, limits, deps }: Collection): Promise<GarbageTest> {
  const wires = mode.kind === 'ipam-only' ? [] : await deps.dataplane.wires(limits);
  const attached = new Set(wires.map(({ attachment }) => formatAttachment(attachment)));
  // Calico's plugin wires a pod under another attachment than its address has.
  const routed = new Set(wires.flatMap(({ addresses }) => addresses));
  const isOfOtherBoot = ({ bootId }: NodeEndpoint): boolean =>
    nodeName === deps.nodeName && bootId !== undefined && bootId !== '' && bootId !== deps.boot.id;
  return (allocation) => {
    const { attachment, held } = allocation;
    const isWired = attached.has(formatAttachment(attachment)) || held.some(({ address }) => routed.has(address));
    return !isWired && !isOfOtherBoot(allocation);
  };
}

/**
 * Selects allocations of earlier boots, as no network namespace survives a reboot. Skips an allocation that is younger than this
 * boot: it belongs to another node with the same name.
 */
function earlierBootTest({ boot: { id, startedAtMs } }: GcDeps): GarbageTest {
  return ({ bootId, createdAtMs }) =>
    bootId !== undefined && bootId !== id && createdAtMs !== undefined && createdAtMs < startedAtMs;
}

/** Called again before each step, as ADDs may arrive meanwhile. */
type AttachmentsToKeep = () => ReadonlyMap<string, Attachment>;

async function collectWires(keep: AttachmentsToKeep, { network, limits, deps, failures }: Collection): Promise<void> {
  const valid = [...keep().values()].filter((attachment) => attachment.network === network);
  for (const { attachment, message } of await deps.dataplane.collectGarbage({ network, valid }, limits)) {
    failures.push(
      new Failure('KERNEL_REFUSED', `${formatAttachment(attachment)}: its wire was not removed: ${message}`),
    );
  }
}

function runQueued(attachment: Attachment, work: () => Promise<void>, { limits, deps }: Collection): Promise<void> {
  return deps.queue.run({ command: 'GC', attachment, deadlineMs: limits.deadlineMs }, work);
}

/** Adds a failure to the collection's. @returns whether the work succeeded */
async function attempt(work: () => Promise<void>, { deps, failures }: Collection): Promise<boolean> {
  try {
    await work();
    return true;
  } catch (error) {
    failures.push(failureOf(error, 'GC', deps.log));
    return false;
  }
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
