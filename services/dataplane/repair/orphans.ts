import { readFileSync } from 'node:fs';

import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { hostInterfaceName } from '@podwire/shared/attachment/names';
import type { FailureCode } from '@podwire/shared/failure/codes';
import { Failure } from '@podwire/shared/failure/failure';
import { messageOf } from '@podwire/shared/failure/thrown';
import { formatAddress } from '@podwire/shared/net/address';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { AttachmentEvents } from '../pods/events.js';
import { findHostLinks } from '../pods/host-links.js';
import type { Kernel } from '../pods/kernel.js';
import type { Dataplane } from '../pods/pods.js';
import { compareIdentities, type AttachmentRecord } from '../records/record.js';
import type { AttachmentRegistry } from '../records/registry.js';
import type { ObservedLink } from '../wiring/observed.js';
import { isMadeFor } from '../wiring/wire.js';

/** Minimum time between the two observations that confirm a dead namespace, in milliseconds. */
const CONFIRMATION_MS = 10_000;

interface OrphanCollectorOptions {
  readonly kernel: Kernel;
  readonly dataplane: Dataplane;
  readonly registry: AttachmentRegistry;
  readonly addressBook: AddressBook;
  readonly events: AttachmentEvents;
  readonly clock: Clock;
  /** Called when the addresses of a record have to be returned to podwire-ipam. Must not throw. */
  readonly onUnsettled?: ((record: AttachmentRecord) => void) | undefined;
}

/**
 * Detects attachments whose network namespaces disappeared without a DetachPod, and releases their resources.
 *
 * What makes this hard:
 * - A live pod must never be taken for a dead one. A missing path proves nothing, as a process keeps a namespace alive; nor does
 *   an inode, as the kernel reuses it at once. Proof is that the wire is cut and that the path has no namespace or a different one;
 *   observed twice, with time in between for operations in flight.
 * - IPAM may give a dead pod's addresses to another pod while IPAM is unreachable or slow. The record stays until IPAM has
 *   answered, and names the exact allocations.
 */
export class OrphanCollector {
  readonly #options: OrphanCollectorOptions;
  /** When each record was first observed dead. A replaced record is a new object. */
  readonly #suspectedAtMs = new WeakMap<AttachmentRecord, number>();

  constructor(options: OrphanCollectorOptions) {
    this.#options = options;
  }

  /**
   * Checks every recorded attachment, and removes the remains of confirmed dead ones. Reports an attachment that the kernel
   * refuses, and continues with the rest.
   * @returns the number of dead attachments
   * @throws Failure KERNEL_REFUSED when the kernel cannot list its links
   */
  async sweep(signal: AbortSignal): Promise<number> {
    const { kernel, registry, events } = this.#options;
    const links = new Map((await kernel.veths()).map((link) => [link.name, link]));
    let deadCount = 0;
    for (const record of registry.all()) {
      if (signal.aborted) break;
      if (record.state !== 'attached') continue;
      const { attachment, hostInterfaceName: name } = record.network;
      try {
        if (await this.#checkRecord(record, links.get(name), signal)) deadCount++;
      } catch (error) {
        if (!isAborted(signal)) events.taskFailed(`orphan check of ${formatAttachment(attachment)}`, error);
      }
    }
    return deadCount;
  }

  /**
   * Releases the addresses of dead attachments whose records do not name the allocations. Never rejects: unanswered or refused
   * releases are retried.
   */
  async releaseAddresses(signal: AbortSignal): Promise<void> {
    const { registry, events } = this.#options;
    const dead = registry.all().filter(({ state, allocation }) => state === 'dead' && !allocation);
    const unreleased = await releaseEach(dead, (record) => this.#release(record, signal));
    if (unreleased && !signal.aborted) events.releasesDelayed(unreleased.count, unreleased.failure);
  }

  /** @returns whether the attachment was removed */
  async #checkRecord(record: AttachmentRecord, link: ObservedLink | undefined, signal: AbortSignal): Promise<boolean> {
    const { dataplane, clock } = this.#options;
    // A call replaces the record object. A mere read, such as the full check, is no sign of life.
    if (dataplane.isBusy(record.network.attachment)) return false;
    if (!(await this.#isDead(record, link))) {
      this.#suspectedAtMs.delete(record);
      return false;
    }
    const suspectedAtMs = this.#suspectedAtMs.get(record);
    const nowMs = clock.monotonicMs();
    if (suspectedAtMs === undefined) this.#suspectedAtMs.set(record, nowMs);
    else if (nowMs - suspectedAtMs >= CONFIRMATION_MS) return this.#removeDead(record, signal);
    return false;
  }

  async #isDead({ network, identity }: AttachmentRecord, link: ObservedLink | undefined): Promise<boolean> {
    // The peer of a veth is in a live namespace: a namespace deletes its links when it ends.
    if (link && isMadeFor(link, network.attachment) && link.peerIndex !== undefined) return false;
    const found = await this.#options.kernel.identify(network.netns);
    return found === undefined || compareIdentities(identity, found) === 'other';
  }

  /** Removes the remains on the node under the attachment's lock, unless the record was replaced meanwhile. */
  async #removeDead(record: AttachmentRecord, signal: AbortSignal): Promise<boolean> {
    const { kernel, dataplane, registry, events } = this.#options;
    const { attachment, hostInterfaceName: name, netns } = record.network;
    return dataplane.runExclusive({ attachment, hostInterfaceName: name }, signal, async () => {
      if (registry.get(attachment) !== record) return false;
      // An operator may have renamed the link; its peer lives as long as the pod.
      const ends = await findHostLinks(kernel, attachment, [name]);
      const link = ends.find((end) => isMadeFor(end, attachment)) ?? ends[0];
      if (!(await this.#isDead(record, link))) return false;
      if (link && isMadeFor(link, attachment)) await kernel.deleteHostLink(link);
      const dead = await registry.setState(attachment, 'dead');
      await dataplane.updateGuard(name);
      events.attachmentDied(attachment, netns);
      if (dead?.allocation) this.#options.onUnsettled?.(dead);
      return true;
    });
  }

  async #release(record: AttachmentRecord, signal: AbortSignal): Promise<void> {
    const { dataplane, registry, addressBook, events } = this.#options;
    const { attachment } = record.network;
    const isCurrent = (): boolean => registry.get(attachment) === record;
    const endpoint = await addressBook.endpoint(attachment, signal);
    const addresses = endpoint ? addressesToRelease(record, endpoint) : [];
    // An attach that ran meanwhile uses the addresses.
    if (!isCurrent()) return;
    if (addresses.length > 0) {
      const released = await addressBook.release({ attachment, addresses, netns: endpoint?.netns }, signal);
      events.addressesReleased(attachment, released, 'namespace');
      // The allocations changed since they were read; the next round reads them again.
      if (released.length < addresses.length) return;
    }
    const keys = { attachment, hostInterfaceName: hostInterfaceName(attachment) };
    await dataplane.runExclusive(keys, signal, async () => {
      if (isCurrent()) await registry.remove(attachment);
    });
  }
}

function isAborted(signal: AbortSignal): boolean {
  return signal.aborted;
}

/** An address that IPAM has assigned, with its allocation. */
interface HeldAddress {
  /** Without prefix length. */
  readonly address: string;
  readonly sequenceNumber: bigint;
}

/** IPAM's record of an attachment. */
export interface HeldEndpoint {
  readonly attachment: Attachment;
  readonly addresses: readonly HeldAddress[];
  /** The namespace that the addresses were requested for; undefined when the request named none. */
  readonly netns: { readonly bootId: string; readonly inode: bigint } | undefined;
  /** Epoch milliseconds; undefined where an earlier release made the endpoint. */
  readonly createdAtMs: number | undefined;
}

/** The allocations of an endpoint to release, as read from IPAM. */
export type EndpointRelease = Pick<HeldEndpoint, 'attachment' | 'addresses' | 'netns'>;

/**
 * The dataplane's interface to podwire-ipam. Methods throw the service's Failure, or UNREACHABLE, DEADLINE_EXCEEDED, CANCELLED.
 */
export interface AddressBook {
  /** @returns undefined when the attachment has no allocations */
  endpoint(attachment: Attachment, signal: AbortSignal): Promise<HeldEndpoint | undefined>;

  /** Every endpoint of a node. Complete, or a failure. */
  endpointsOf(nodeName: string, signal: AbortSignal): Promise<readonly HeldEndpoint[]>;

  /**
   * Releases exactly these allocations, if recorded for this namespace (when given). Keeps an address that the attachment's
   * container holds by a later allocation, or for another namespace after a new ADD. Idempotent.
   * @returns the addresses that this call released
   */
  release(endpoint: EndpointRelease, signal: AbortSignal): Promise<readonly string[]>;
}

/** Reads the boot ID of the machine (proc(5)). @throws Failure KERNEL_REFUSED when /proc cannot be read */
export function readBoot(): Boot {
  try {
    const id = readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim();
    const seconds = /^btime (\d+)$/m.exec(readFileSync('/proc/stat', 'utf8'))?.[1];
    if (id === '' || seconds === undefined) throw new Error('boot_id or btime is missing');
    return { id, startedAtMs: Number(seconds) * 1000 };
  } catch (cause) {
    const reason = messageOf(cause);
    throw new Failure('KERNEL_REFUSED', `cannot identify this boot (${reason}); mount /proc`, { cause });
  }
}

/** Pure decisions about allocations that a node releases at IPAM without a request. Each needs proof that no live pod uses them. */

/**
 * The addresses to release for a dead attachment, of those that IPAM has recorded for it. None when IPAM's record is for another
 * namespace: the attachment was added again. When IPAM has no namespace, those of the dead pod.
 */
function addressesToRelease(
  { network, identity, bootId }: AttachmentRecord,
  endpoint: HeldEndpoint,
): readonly HeldAddress[] {
  const { netns, addresses } = endpoint;
  if (netns) return netns.bootId === bootId && netns.inode === identity.inode ? addresses : [];
  const recorded = new Set(network.addresses.map(formatAddress));
  return addresses.filter(({ address }) => recorded.has(address));
}

/**
 * IPAM's state for a pod whose whole wire is gone: all its addresses for its namespace (held); all, but no endpoint that names
 * the namespace (endpoint-lost); other addresses or only some (differs); none (released).
 */
type LossState = 'held' | 'endpoint-lost' | 'differs' | 'released';

export function evaluateLoss(
  { network, identity, bootId }: AttachmentRecord,
  endpoint: HeldEndpoint | undefined,
): LossState {
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
  /** Start of the boot, in epoch milliseconds. */
  readonly startedAtMs: number;
}

/** Decision about an endpoint of this node after a start. */
interface EndpointDecision {
  readonly isDead: boolean;
  /** Why it is kept although it belongs to another boot. */
  readonly keepReason?: string;
}

/**
 * Whether an endpoint died with an earlier boot of the node. Two machines that share a node name by mistake also report different
 * boots: an endpoint made after this boot began does not belong to an earlier one.
 * @param isAttached - whether this boot has a wire for the attachment
 */
function evaluateEndpoint(endpoint: HeldEndpoint, boot: Boot, isAttached: boolean): EndpointDecision {
  const { netns, createdAtMs } = endpoint;
  if (!netns || netns.bootId === '' || netns.bootId === boot.id) return { isDead: false };
  if (isAttached) return { isDead: false, keepReason: 'the attachment is wired in this boot' };
  if (createdAtMs !== undefined && createdAtMs >= boot.startedAtMs) {
    return {
      isDead: false,
      keepReason: 'they were assigned since this boot began; check whether two machines share a node name',
    };
  }
  return { isDead: true };
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
 * Releases the addresses that IPAM still holds for pods of earlier boots of this node: the pods ended with their boot. Repeat until it succeeds; once is
 * enough, as an ended boot makes no new allocations. Idempotent.
 * @throws Failure when IPAM does not answer, or refuses one; completed releases stay
 */
export async function releaseEarlierBoots(options: RebootOptions, signal: AbortSignal): Promise<void> {
  const { addressBook, registry, events, nodeName, boot } = options;
  const endpoints = await addressBook.endpointsOf(nodeName, signal);
  const dead = endpoints.filter((endpoint) => {
    const isAttached = registry.get(endpoint.attachment) !== undefined;
    const decision = evaluateEndpoint(endpoint, boot, isAttached);
    if (decision.keepReason !== undefined) events.endpointKept(endpoint.attachment, decision.keepReason);
    return decision.isDead;
  });
  const unreleased = await releaseEach(dead, async (endpoint) => {
    const released = await addressBook.release(endpoint, signal);
    events.addressesReleased(endpoint.attachment, released, 'reboot');
  });
  if (unreleased) throw unreleased.failure;
}

/** Items that IPAM has not released. */
interface Unreleased {
  readonly count: number;
  /** The first failure. */
  readonly failure: unknown;
}

/** IPAM is unreachable, or the caller has gone: further releases would fail too. */
const UNANSWERED_CODES: ReadonlySet<FailureCode> = new Set(['UNREACHABLE', 'DEADLINE_EXCEEDED', 'CANCELLED']);

/**
 * Releases items one after another. Continues after one that IPAM refuses, such as an unreadable record; stops when IPAM does not
 * answer.
 * @returns undefined when nothing is left. Never rejects.
 */
export async function releaseEach<Item>(
  items: readonly Item[],
  release: (item: Item) => Promise<void>,
): Promise<Unreleased | undefined> {
  const failures: unknown[] = [];
  for (const [position, item] of items.entries()) {
    try {
      await release(item);
    } catch (failure) {
      failures.push(failure);
      const rest = items.length - position - 1;
      if (isUnanswered(failure)) return { count: failures.length + rest, failure: failures[0] };
    }
  }
  return failures.length > 0 ? { count: failures.length, failure: failures[0] } : undefined;
}

function isUnanswered(failure: unknown): boolean {
  return failure instanceof Failure && UNANSWERED_CODES.has(failure.code);
}
