import { readFileSync } from 'node:fs';

import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { hostInterfaceName } from '@podwire/shared/attachment/names';
import type { FailureCode } from '@podwire/shared/failure/codes';
import { Failure } from '@podwire/shared/failure/failure';
import { messageOf } from '@podwire/shared/failure/thrown';
import { formatAddress } from '@podwire/shared/net/address';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { ObservedLink } from '../wiring/observed.js';
import { isMadeFor } from '../wiring/wire.js';
import type { AttachmentEvents } from './events.js';
import { hostEndsOf } from './host-ends.js';
import type { Kernel } from './kernel.js';
import type { Dataplane } from './pods.js';
import { compareIdentities, type AttachmentRecord } from './record.js';
import type { AttachmentRegistry } from './registry.js';

/** Time between the two looks that prove a death, at least, in milliseconds. */
const CONFIRMATION_MS = 10_000;

interface DeadNamespacesOptions {
  readonly kernel: Kernel;
  readonly dataplane: Dataplane;
  readonly registry: AttachmentRegistry;
  readonly addressBook: AddressBook;
  readonly events: AttachmentEvents;
  readonly clock: Clock;
}

/**
 * Notices attachments whose network namespaces went without a DetachPod, and gives back what they had.
 *
 * What makes this hard:
 * - A pod that lives must never be taken for a dead one. A path that is gone proves nothing, as a process keeps a namespace alive;
 *   nor does an inode, as it is used again at once. Proof is that the wire is cut and that what is at the path, if anything, is
 *   another namespace; seen twice, with time between for whoever is just at work on either.
 * - What the dead had may be given to others while IPAM is away or slow. So the record stays until IPAM has answered, and says
 *   which allocations are meant.
 */
export class DeadNamespaces {
  readonly #options: DeadNamespacesOptions;
  /** When each record was first seen to be dead. A record that is replaced is another one. */
  readonly #suspectedAtMs = new WeakMap<AttachmentRecord, number>();

  constructor(options: DeadNamespacesOptions) {
    this.#options = options;
  }

  /**
   * Looks at every recorded attachment, and takes away what is left of those whose death is certain. One that the kernel refuses is told,
   * and holds up no other.
   * @returns how many those were
   * @throws Failure KERNEL_REFUSED when the kernel cannot be asked for its links
   */
  async sweep(signal: AbortSignal): Promise<number> {
    const { kernel, registry, events } = this.#options;
    const links = new Map((await kernel.veths()).map((link) => [link.name, link]));
    let buried = 0;
    for (const record of registry.all()) {
      if (signal.aborted) break;
      if (record.state !== 'attached') continue;
      const { attachment, hostInterfaceName: name } = record.network;
      try {
        if (await this.#look(record, links.get(name), signal)) buried++;
      } catch (error) {
        if (!isOver(signal)) events.failed(`look whether ${formatAttachment(attachment)} lives`, error);
      }
    }
    return buried;
  }

  /** Gives the addresses of the dead back. Never rejects: what IPAM does not answer, or refuses, is to be repeated. */
  async giveBack(signal: AbortSignal): Promise<void> {
    const { registry, events } = this.#options;
    const dead = registry.all().filter(({ state }) => state === 'dead');
    const left = await releaseEach(dead, (record) => this.#release(record, signal));
    if (left && !signal.aborted) events.releasesDelayed(left.count, left.failure);
  }

  /** @returns whether it was buried */
  async #look(record: AttachmentRecord, link: ObservedLink | undefined, signal: AbortSignal): Promise<boolean> {
    const { dataplane, clock } = this.#options;
    // What a call makes is another record. One that only looks, as the full check does, is no sign of life.
    if (dataplane.isBusy(record.network.attachment)) return false;
    if (!(await this.#isDead(record, link))) {
      this.#suspectedAtMs.delete(record);
      return false;
    }
    const suspectedAtMs = this.#suspectedAtMs.get(record);
    const nowMs = clock.nowMs();
    // Of a clock that was set back nobody knows how long ago it was.
    if (suspectedAtMs === undefined || nowMs < suspectedAtMs) this.#suspectedAtMs.set(record, nowMs);
    else if (nowMs - suspectedAtMs >= CONFIRMATION_MS) return this.#bury(record, signal);
    return false;
  }

  async #isDead({ network, identity }: AttachmentRecord, link: ObservedLink | undefined): Promise<boolean> {
    // The far end of a veth is in a namespace that lives: it takes its links along when it goes.
    if (link && isMadeFor(link, network.attachment) && link.peerIndex !== undefined) return false;
    const found = await this.#options.kernel.identify(network.netns);
    return found === undefined || compareIdentities(identity, found) === 'other';
  }

  /** Takes away what is left on the node, under the attachment's lock, where nobody has replaced it meanwhile. */
  async #bury(record: AttachmentRecord, signal: AbortSignal): Promise<boolean> {
    const { kernel, dataplane, registry, events } = this.#options;
    const { attachment, hostInterfaceName: name, netns } = record.network;
    return dataplane.exclusively({ attachment, hostInterfaceName: name }, signal, async () => {
      if (registry.get(attachment) !== record) return false;
      // Whatever name it was given by hand, its other end lives as long as the pod.
      const ends = await hostEndsOf(kernel, attachment, [name]);
      const link = ends.find((end) => isMadeFor(end, attachment)) ?? ends[0];
      if (!(await this.#isDead(record, link))) return false;
      if (link && isMadeFor(link, attachment)) await kernel.deleteHostLink(link);
      await registry.mark(attachment, 'dead');
      await dataplane.reguard(name);
      events.died(attachment, netns);
      return true;
    });
  }

  async #release(record: AttachmentRecord, signal: AbortSignal): Promise<void> {
    const { dataplane, registry, addressBook, events } = this.#options;
    const { attachment } = record.network;
    const isStill = (): boolean => registry.get(attachment) === record;
    const endpoint = await addressBook.endpoint(attachment, signal);
    const addresses = endpoint ? addressesOfDead(record, endpoint) : [];
    // An attach that came meanwhile lives on the addresses.
    if (!isStill()) return;
    if (addresses.length > 0) {
      const released = await addressBook.release({ attachment, addresses, netns: endpoint?.netns }, signal);
      events.addressesReleased(attachment, released, 'namespace');
      // Something else holds since it was read: what that is, is asked the next time.
      if (released.length < addresses.length) return;
    }
    const place = { attachment, hostInterfaceName: hostInterfaceName(attachment) };
    await dataplane.exclusively(place, signal, async () => {
      if (isStill()) await registry.remove(attachment);
    });
  }
}

function isOver(signal: AbortSignal): boolean {
  return signal.aborted;
}

/** An address that IPAM has given, and which of its allocations that was. */
interface HeldAddress {
  /** Without prefix length. */
  readonly address: string;
  readonly sequenceNumber: bigint;
}

/** What IPAM has recorded for an attachment. */
export interface HeldEndpoint {
  readonly attachment: Attachment;
  readonly addresses: readonly HeldAddress[];
  /** The namespace that the addresses were asked for; undefined when that was not told. */
  readonly netns: { readonly bootId: string; readonly inode: bigint } | undefined;
  /** Epoch milliseconds; undefined where an earlier release made the endpoint. */
  readonly createdAtMs: number | undefined;
}

/** What is to be given back of an endpoint, as it was read. */
export type ReleasedEndpoint = Pick<HeldEndpoint, 'attachment' | 'addresses' | 'netns'>;

/** What the dataplane wants from podwire-ipam. Methods throw the service's Failure, or UNREACHABLE, DEADLINE_EXCEEDED, CANCELLED. */
export interface AddressBook {
  /** @returns undefined when the attachment holds nothing */
  endpoint(attachment: Attachment, signal: AbortSignal): Promise<HeldEndpoint | undefined>;

  /** Every endpoint of a node. Complete, or a failure. */
  endpointsOf(nodeName: string, signal: AbortSignal): Promise<readonly HeldEndpoint[]>;

  /**
   * Gives back exactly these allocations, as long as they are recorded for this namespace, where one is told: an address that the
   * attachment's container holds by a later allocation, or for another namespace since it was added again, stays. Idempotent.
   * @returns the addresses that were given back by this call
   */
  release(endpoint: ReleasedEndpoint, signal: AbortSignal): Promise<readonly string[]>;
}

/** Reads which boot of the machine this is (proc(5)). @throws Failure KERNEL_REFUSED when /proc does not tell */
export function readBoot(): Boot {
  try {
    const id = readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim();
    const seconds = /^btime (\d+)$/m.exec(readFileSync('/proc/stat', 'utf8'))?.[1];
    if (id === '' || seconds === undefined) throw new Error('no boot_id, or no btime');
    return { id, startedAtMs: Number(seconds) * 1000 };
  } catch (cause) {
    const reason = messageOf(cause);
    throw new Failure('KERNEL_REFUSED', `cannot tell this boot from others (${reason}): mount /proc`, { cause });
  }
}

/** What a node gives back to IPAM without being asked: pure decisions, each of which needs a proof that nobody lives on it. */

/**
 * The addresses that a dead attachment gives back, of what IPAM has recorded for it. None when that is for another namespace: the
 * attachment was added again since. Where IPAM was not told the namespace, those that the dead pod had.
 */
function addressesOfDead(
  { network, identity, bootId }: AttachmentRecord,
  endpoint: HeldEndpoint,
): readonly HeldAddress[] {
  const { netns, addresses } = endpoint;
  if (netns) return netns.bootId === bootId && netns.inode === identity.inode ? addresses : [];
  const had = new Set(network.addresses.map(formatAddress));
  return addresses.filter(({ address }) => had.has(address));
}

/**
 * What IPAM has of a pod whose whole wire is gone: all of its addresses, for its namespace; all of them, without the endpoint that tells
 * the namespace; something else, or not all; or none of them any more.
 */
type LossVerdict = 'held' | 'endpoint-lost' | 'differs' | 'released';

export function judgeLoss(
  { network, identity, bootId }: AttachmentRecord,
  endpoint: HeldEndpoint | undefined,
): LossVerdict {
  const held = new Set(endpoint?.addresses.map(({ address }) => address));
  const missing = network.addresses.map(formatAddress).filter((address) => !held.has(address));
  if (missing.length === network.addresses.length) return 'released';
  if (missing.length > 0) return 'differs';
  if (!endpoint?.netns) return 'endpoint-lost';
  const { netns } = endpoint;
  return netns.bootId === bootId && netns.inode === identity.inode ? 'held' : 'differs';
}

export interface Boot {
  readonly id: string;
  /** When it was, in epoch milliseconds. */
  readonly startedAtMs: number;
}

/** What becomes of an endpoint of this node after a start. */
interface EndpointVerdict {
  readonly died: boolean;
  /** Why it stays although it is of another boot. */
  readonly spared?: string;
}

/**
 * Whether an endpoint died with an earlier boot of the node. Two machines that go by one node name by mistake tell different boots,
 * too: what was made since this one began is none of its past.
 * @param isAttached - whether this boot has a wire for the attachment
 */
function judgeEndpoint(endpoint: HeldEndpoint, boot: Boot, isAttached: boolean): EndpointVerdict {
  const { netns, createdAtMs } = endpoint;
  if (!netns || netns.bootId === '' || netns.bootId === boot.id) return { died: false };
  if (isAttached) return { died: false, spared: 'the attachment is wired in this boot' };
  if (createdAtMs !== undefined && createdAtMs >= boot.startedAtMs) {
    return { died: false, spared: 'they were given since this boot began; do two machines have one node name?' };
  }
  return { died: true };
}

interface RebootOptions {
  readonly addressBook: AddressBook;
  readonly registry: AttachmentRegistry;
  readonly events: AttachmentEvents;
  /** Name of this node at IPAM. */
  readonly nodeName: string;
  readonly boot: Boot;
}

/**
 * Gives back what the pods of earlier boots of this node hold at IPAM: they died with it. To be repeated until it succeeds, and not
 * any more then: what a boot has left is complete when it ends. Idempotent.
 * @throws Failure when IPAM does not answer, or refuses one; what was given back stays so
 */
export async function releaseEarlierBoots(options: RebootOptions, signal: AbortSignal): Promise<void> {
  const { addressBook, registry, events, nodeName, boot } = options;
  const endpoints = await addressBook.endpointsOf(nodeName, signal);
  const died = endpoints.filter((endpoint) => {
    const isAttached = registry.get(endpoint.attachment) !== undefined;
    const verdict = judgeEndpoint(endpoint, boot, isAttached);
    if (verdict.spared !== undefined) events.endpointSpared(endpoint.attachment, verdict.spared);
    return verdict.died;
  });
  const left = await releaseEach(died, async (endpoint) => {
    const released = await addressBook.release(endpoint, signal);
    events.addressesReleased(endpoint.attachment, released, 'reboot');
  });
  if (left) throw left.failure;
}

/** What IPAM has not taken back. */
interface Left {
  readonly count: number;
  /** The first one's. */
  readonly failure: unknown;
}

/** Nobody answers, or nobody waits any more: the others would fare no better. */
const SILENCE: ReadonlySet<FailureCode> = new Set(['UNREACHABLE', 'DEADLINE_EXCEEDED', 'CANCELLED']);

/**
 * Gives back one after the other. One that IPAM refuses, as with a record that cannot be read, holds up no other; with silence it is
 * over.
 * @returns undefined when nothing is left. Never rejects.
 */
export async function releaseEach<Item>(
  items: readonly Item[],
  release: (item: Item) => Promise<void>,
): Promise<Left | undefined> {
  const failures: unknown[] = [];
  for (const [position, item] of items.entries()) {
    try {
      await release(item);
    } catch (failure) {
      failures.push(failure);
      const rest = items.length - position - 1;
      if (isSilence(failure)) return { count: failures.length + rest, failure: failures[0] };
    }
  }
  return failures.length > 0 ? { count: failures.length, failure: failures[0] } : undefined;
}

function isSilence(failure: unknown): boolean {
  return failure instanceof Failure && SILENCE.has(failure.code);
}
