import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';
import { formatAddress } from '@podwire/shared/net/address';
import type { Clock } from '@podwire/shared/runtime/clock';
import { FakeClock } from '@podwire/shared/testing/clock';

import type { AddressBook, HeldEndpoint, ReleasedEndpoint } from '../attachments/address-book.js';
import { AttachmentEvents } from '../attachments/events.js';
import { BOOT, recordingLog } from '../dataplane.fixture.js';
import type { PodGuard } from '../kernel/pod-guard.js';
import type { PodNetwork } from '../plan/pod-network.js';
import { Events } from '../pods/events.js';
import { GarbageCollector } from '../pods/garbage.js';
import type { Kernel } from '../pods/kernel.js';
import { Dataplane } from '../pods/pods.js';
import { AttachmentKeeper } from '../pods/reconciler.js';
import type { RecordStore } from '../pods/record-store.js';
import { AttachmentRegistry } from '../pods/registry.js';
import { MemoryRecordStore } from './memory-record-store.js';

const NODE_NAME = 'node-1';

/** podwire-ipam as its contract describes it, with one address each, in memory; away when a test says so. */
export class FakeAddressBook implements AddressBook {
  readonly endpoints = new Map<string, HeldEndpoint>();
  readonly released: string[] = [];
  isAway = false;
  /** Attachments, formatted, whose requests fail by themselves: a record of theirs cannot be read. */
  readonly refused = new Set<string>();
  /** Called when a release arrives: where a test lets something else come first. */
  beforeRelease: () => void = () => undefined;
  #sequenceNumber = 100n;

  /** As Allocate does: what is held stays held by the same allocation, for the namespace that asked last. */
  allocate(network: PodNetwork, netns: HeldEndpoint['netns'], createdAtMs = 0): HeldEndpoint {
    const key = formatAttachment(network.attachment);
    const sequenceNumber = this.#sequenceNumber++;
    const addresses =
      this.endpoints.get(key)?.addresses ??
      network.addresses.map((address) => ({ address: formatAddress(address), sequenceNumber }));
    const endpoint = { attachment: network.attachment, addresses, netns, createdAtMs };
    this.endpoints.set(key, endpoint);
    return endpoint;
  }

  async endpoint(attachment: Attachment): Promise<HeldEndpoint | undefined> {
    await this.#answer(attachment);
    return this.endpoints.get(formatAttachment(attachment));
  }

  async endpointsOf(nodeName: string): Promise<readonly HeldEndpoint[]> {
    await this.#answer();
    return nodeName === NODE_NAME ? [...this.endpoints.values()] : [];
  }

  async release({ attachment, addresses, netns }: ReleasedEndpoint): Promise<readonly string[]> {
    this.beforeRelease();
    await this.#answer(attachment);
    const key = formatAttachment(attachment);
    const endpoint = this.endpoints.get(key);
    if (netns && (endpoint?.netns?.bootId !== netns.bootId || endpoint.netns.inode !== netns.inode)) return [];
    const held = endpoint?.addresses ?? [];
    const given = addresses.filter((each) =>
      held.some(({ address, sequenceNumber }) => address === each.address && sequenceNumber === each.sequenceNumber),
    );
    if (given.length > 0) this.endpoints.delete(key);
    this.released.push(...given.map(({ address }) => address));
    return given.map(({ address }) => address);
  }

  async #answer(attachment?: Attachment): Promise<void> {
    await Promise.resolve();
    if (this.isAway) throw new Failure('UNREACHABLE', 'podwire-ipam does not answer');
    if (attachment && this.refused.has(formatAttachment(attachment)))
      throw new Failure('STORE_CORRUPT', 'a record cannot be read');
  }
}

/** What stays when the process ends: kernel, records, IPAM, and time. */
interface Lasting {
  readonly kernel: Kernel;
  readonly store?: RecordStore;
  readonly addressBook?: FakeAddressBook;
  readonly clock?: Clock;
  /** What chance gives each time, from 0 (included) to 1 (excluded); default: the mean. */
  readonly chance?: number;
  readonly guard?: PodGuard;
}

/** The dataplane's process, without its socket: everything that is gone when it is killed. */
export async function startNode(lasting: Lasting) {
  const {
    kernel,
    store = new MemoryRecordStore(),
    addressBook = new FakeAddressBook(),
    clock = new FakeClock(),
    chance = 0.5,
    guard,
  } = lasting;
  const { log, lines } = recordingLog();
  const events = new AttachmentEvents(log);
  const registry = new AttachmentRegistry({
    store,
    bootId: BOOT.id,
    clock,
    onRefused: (attachment, failure) => events.recordRefused(attachment, failure),
  });
  const loaded = await registry.load();
  const dataplane = new Dataplane({ kernel, registry, events: new Events(log), ...(guard && { guard }) });
  const parts = { kernel, dataplane, registry, events, clock };
  const keeper = new AttachmentKeeper({ ...parts, addressBook, random: () => chance, nodeName: NODE_NAME, boot: BOOT });
  return { ...parts, keeper, garbage: new GarbageCollector(parts), addressBook, loaded, lines };
}
