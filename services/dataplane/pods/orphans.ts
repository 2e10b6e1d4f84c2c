import { formatAttachment } from '@podwire/shared/attachment/attachment';
import { hostInterfaceName } from '@podwire/shared/attachment/names';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { AddressBook } from '../attachments/address-book.js';
import type { AttachmentEvents } from '../attachments/events.js';
import { addressesOfDead } from '../attachments/giving-back.js';
import { compareIdentities } from '../attachments/identity.js';
import { releaseEach } from '../attachments/release-each.js';
import type { ObservedLink } from '../wiring/observed.js';
import { isMadeFor } from '../wiring/wire.js';
import { hostEndsOf } from './host-ends.js';
import type { Kernel } from './kernel.js';
import type { Dataplane } from './pods.js';
import type { AttachmentRecord } from './record.js';
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
