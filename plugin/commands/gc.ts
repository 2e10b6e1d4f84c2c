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
import type { Delegate, Share } from '../addresses/mode.js';
import type { NodeEndpoint } from '../clients/upkeep.js';
import type { Moment, Turns } from '../requests/attachment-queue.js';
import { begunAtMs, readNodeRequest, type CniRequest } from '../requests/request.js';
import type { CommandTools } from './context.js';
import { failureOf, settleEntry } from './release.js';

/** What a GC works on and with. */
interface Collection {
  readonly network: string;
  /** Of this node, at IPAM. */
  readonly nodeName: string;
  readonly share: Share;
  readonly tools: CommandTools;
  readonly turns: Turns;
  /** When the runtime began it: its list is no later than that. */
  readonly since: Moment;
  /** What went wrong so far. */
  readonly failures: Failure[];
}

/**
 * GC: removes the wires and releases the addresses of this network on this node that the runtime does not list. Without
 * a list it handles only proven garbage: the journal, and leftovers of an earlier boot.
 *
 * Attachments whose ADD started or ended after the GC started are kept. An address is released only when no wire uses
 * it, in the attachment's queue, and only if the allocation is unchanged. Idempotent; continues after errors.
 * @throws Failure that lists everything that failed
 */
export async function gc(request: CniRequest, tools: CommandTools, turns: Turns): Promise<undefined> {
  const { network, nodeName = tools.nodeName, share } = readNodeRequest('GC', request);
  const valid = readValidAttachments(request.configuration, network);
  const since = turns.momentOf(begunAtMs(request));
  const collection: Collection = { network, nodeName, share, tools, turns, since, failures: [] };

  await settleJournal(collection);
  if (share.kind === 'wire') await collectOfDelegate(share.delegate, valid, collection);
  else if (valid) await collect(valid, collection);
  else await releaseOfEarlierBoots(collection);

  const { failures } = collection;
  const [first] = failures;
  if (!first) return;
  const messages = [...new Set(failures.map(({ message }) => message))];
  throw new Failure(first.code, `GC is not done: ${messages.join('; ')}; repeat it`, {
    details: first.details,
    cause: first,
  });
}

/**
 * Pending releases of DELs are proven garbage. They get half of the time, and each service a DEL's deadline: a hanging
 * service, which the journal retries anyway, must not block the rest of the collection.
 */
async function settleJournal({ network, tools, turns, failures }: Collection): Promise<void> {
  const { journal, clock, limits, delServiceTimeoutMs } = tools;
  const untilMs = (clock.nowMs() + limits.deadlineMs) / 2;
  const silent = new Set<string>();
  for (const entry of journal.entries()) {
    if (entry.attachment.network !== network) continue;
    const limitsOf = () => ({ ...limits, deadlineMs: Math.min(untilMs, clock.nowMs() + delServiceTimeoutMs) });
    const unsettled = await settleEntry(entry, tools, { turns, limitsOf, skip: silent });
    if (!unsettled) continue;
    failures.push(unsettled.failure);
    if (unsettled.failure.retryable) silent.add(unsettled.service);
  }
}

/** The wires are Podwire's, and the addresses another's, which does with the list as it sees fit. */
async function collectOfDelegate(
  delegate: Delegate,
  listed: readonly Attachment[] | undefined,
  collection: Collection,
): Promise<void> {
  const { tools } = collection;
  // An address is given back only when no wire leads to it any more.
  if (listed && !(await attempt(() => collectWires(() => staying(listed, collection), collection), collection))) return;
  await attempt(async () => {
    await callDelegate(delegate, 'GC', tools);
  }, collection);
  // What podwire-ipam gave before the configuration named another.
  if (listed && tools.givers.wasIpam(collection.network)) {
    await attempt(() => collectAddresses(() => staying(listed, collection), collection), collection);
  }
}

async function collect(listed: readonly Attachment[], collection: Collection): Promise<void> {
  const { share } = collection;
  const stays = () => staying(listed, collection);
  // Where another plugin makes the interfaces, they are its to collect, and it has done so.
  const hasWires = share.kind !== 'addresses';
  if (hasWires && !(await attempt(() => collectWires(stays, collection), collection))) return;
  await attempt(() => collectAddresses(stays, collection), collection);
}

async function collectAddresses(stays: Staying, collection: Collection): Promise<void> {
  const { network, nodeName, share, tools } = collection;
  // Read the kernel last: an attachment absent then, with no ADD in flight, has no wire.
  const endpoints = await tools.upkeep.ipam.endpointsOf({ nodeName, network }, tools.limits);
  const wires = share.kind === 'addresses' ? [] : await tools.upkeep.dataplane.wires(tools.limits);
  const attached = new Set(wires.map(({ attachment }) => formatAttachment(attachment)));
  // A wire that Calico's plugin asked for has another attachment than the address that it leads to.
  const routed = new Set(wires.flatMap(({ addresses }) => addresses));
  for (const endpoint of endpoints) {
    const key = formatAttachment(endpoint.attachment);
    const isWired = attached.has(key) || endpoint.held.some(({ address }) => routed.has(address));
    if (isWired || stays().has(key) || isGatewayHolder(endpoint.attachment)) continue;
    await attempt(() => releaseInTurn(endpoint, stays, collection), collection);
  }
}

function staying(listed: readonly Attachment[], { turns, since }: Collection): ReadonlyMap<string, Attachment> {
  return new Map([...listed, ...turns.addedSince(since)].map((each) => [formatAttachment(each), each]));
}

type Staying = () => ReadonlyMap<string, Attachment>;

async function collectWires(stays: Staying, collection: Collection): Promise<void> {
  const { network, tools, failures } = collection;
  try {
    const valid = [...stays().values()].filter((attachment) => attachment.network === network);
    for (const { attachment, message } of await tools.upkeep.dataplane.collectGarbage(
      { network, valid },
      tools.limits,
    )) {
      failures.push(new Failure('KERNEL_REFUSED', `${formatAttachment(attachment)} stays: ${message}`));
    }
  } catch (failure) {
    if (!(failure instanceof Failure && failure.code === 'UNIMPLEMENTED')) throw failure;
    await detachEach(stays, collection);
  }
}

/** For a dataplane of an earlier release, which has no collect method. */
async function detachEach(stays: Staying, collection: Collection): Promise<void> {
  const { network, tools } = collection;
  for (const { attachment } of await tools.upkeep.dataplane.wires(tools.limits)) {
    if (attachment.network !== network) continue;
    const detach = async () => {
      if (!stays().has(formatAttachment(attachment))) await tools.dataplane.detachPod({ attachment }, tools.limits);
    };
    await attempt(() => inTurn(attachment, detach, collection), collection);
  }
}

function releaseInTurn(endpoint: NodeEndpoint, stays: Staying, collection: Collection): Promise<void> {
  const { attachment, held } = endpoint;
  const { ipam, upkeep, limits } = collection.tools;
  const release = async () => {
    if (stays().has(formatAttachment(attachment))) return;
    if (held.length === 0) await ipam.release(attachment, limits);
    else await upkeep.ipam.releaseHeld(attachment, held, limits);
  };
  return inTurn(attachment, release, collection);
}

/** Releases allocations of earlier boots: no network namespace survives a boot. A second node of the same name is left alone. */
async function releaseOfEarlierBoots(collection: Collection): Promise<void> {
  const { network, nodeName, tools } = collection;
  await attempt(async () => {
    const { id, startedAtMs } = tools.netns.boot;
    const endpoints = await tools.upkeep.ipam.endpointsOf({ nodeName, network }, tools.limits);
    for (const endpoint of endpoints) {
      const { bootId, createdAtMs } = endpoint;
      const isDead = bootId !== undefined && bootId !== id && createdAtMs !== undefined && createdAtMs < startedAtMs;
      const stays = () => staying([], collection);
      if (isDead) await attempt(() => releaseInTurn(endpoint, stays, collection), collection);
    }
  }, collection);
}

function inTurn(attachment: Attachment, work: () => Promise<void>, { turns, tools }: Collection): Promise<void> {
  const { deadlineMs } = tools.limits;
  const turn = { command: 'GC', attachment, startedNs: undefined, deadlineMs, cancel: new AbortController() } as const;
  return turns.take(turn, work);
}

/** @returns whether it went well; where not, why is noted */
async function attempt(work: () => Promise<void>, { tools, failures }: Collection): Promise<boolean> {
  const failure = await failureOf(work, { log: tools.log, what: 'GC' });
  if (failure) failures.push(failure);
  return failure === undefined;
}

/**
 * The keys of GC's list. The second is the name that an earlier text of the specification had; libcni writes both
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

const LIST = z.array(ATTACHMENT, { error: 'is no list' }).nullable();

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
