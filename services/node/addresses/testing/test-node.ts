import { EventEmitter } from 'node:events';

import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { parseAddress, type Address } from '@podwire/shared/net/address';
import { createLogger } from '@podwire/shared/runtime/log';
import type { ManualClock } from '@podwire/shared/testing/manual-clock';
import type { AttachedLink } from '@podwire/dataplane/pods/kernel';
import type { AllocatedAddress } from '@podwire/shared/attachment/allocation';
import { AttachmentRegistry } from '@podwire/dataplane/records/registry';
import { MemoryRecordStore } from '@podwire/dataplane/testing/memory-record-store';
import { podNetwork } from '@podwire/dataplane/testing/pods';
import type { PodNetwork } from '@podwire/shared/attachment/pod-network';
import type { PluginAttachments } from '@podwire/plugin/clients/clients';

import { AddressBook } from '../address-book.js';
import { AddressEvents } from '../events.js';
import type { LeaseApi } from '../lease-api.js';
import { NOTHING_STORED, type StoredLeases } from '../lease-file.js';
import type { MemoryIpam } from './memory-ipam.js';
import { hostLink, recallView } from './views.js';

const INODE = 4_026_532_178n;
const IDENTITY = { device: 4n, inode: INODE, cookie: 7n };

/** One node: its process, and the state that survives a kill. */
export class TestNode {
  readonly name: string;
  store = new MemoryRecordStore();
  /** Attachments without a record whose release waits for podwire-ipam, as in the plugin's journal. */
  readonly unreleased = new Map<string, Attachment>();
  /** Interfaces in the kernel: the pods that run, by formatted attachment. */
  readonly pods = new Map<string, { readonly network: PodNetwork; readonly address: string }>();
  saved: StoredLeases = NOTHING_STORED;
  registry!: AttachmentRegistry;
  book!: AddressBook;
  readonly #ipam: MemoryIpam;
  readonly #clock: ManualClock;
  #recallCount = 0n;
  #inventoryRequestCount = 0n;
  #bootCount = 0;
  #process = 0;
  #turns = new Map<string, Promise<unknown>>();
  /** Callers do not wait for a killed process. */
  readonly #killed = new EventEmitter().setMaxListeners(0);

  constructor(name: string, ipam: MemoryIpam, clock: ManualClock) {
    this.name = name;
    this.#ipam = ipam;
    this.#clock = clock;
  }

  async start(): Promise<void> {
    const started = ++this.#process;
    const isAlive = () => started === this.#process;
    const clock = this.#clock;
    this.#turns = new Map();
    this.#killed.emit('killed');
    this.#killed.removeAllListeners();
    this.registry = new AttachmentRegistry({
      store: this.store,
      bootId: this.#bootId,
      clock,
      onStoreFailure: () => undefined,
    });
    await this.registry.load();
    this.book = await AddressBook.open({
      registry: this.registry,
      links: () => Promise.resolve([...this.pods.values()].map(linkOf)),
      api: aliveApi(this.#ipam.api(), isAlive),
      file: {
        load: () => this.saved,
        save: (stored) => {
          if (isAlive()) this.saved = stored;
        },
      },
      marks: { lowCount: 1, highCount: 3 },
      nodeName: this.name,
      machineId: `machine-${this.name}`,
      boot: { id: this.#bootId, startedAtMs: 0 },
      events: new AddressEvents(createLogger({ service: 'test', level: 'fatal' })),
      clock,
      random: () => 0.5,
      bootMs: () => clock.monotonicMs(),
    });
    this.book.start(this.#plugin());
    this.recall(0n);
  }

  /** SIGKILL, and the next process. Late writes of the killed process do not reach the next one. */
  async restart(): Promise<void> {
    const left = new MemoryRecordStore();
    for (const [key, text] of this.store.texts) left.texts.set(key, text);
    this.store = left;
    await this.start();
  }

  /** The pods and the files on tmpfs end. */
  async reboot(): Promise<void> {
    this.#bootCount++;
    this.pods.clear();
    this.unreleased.clear();
    this.store = new MemoryRecordStore();
    this.saved = NOTHING_STORED;
    await this.start();
  }

  /** Someone empties the directory of records. */
  empty(withLeases: boolean): void {
    this.store.texts.clear();
    if (withLeases) this.saved = NOTHING_STORED;
  }

  /** Whether a pod has no record on disk. */
  get hasUnrecorded(): boolean {
    return [...this.pods.keys()].some((key) => !this.store.texts.has(key));
  }

  release(): void {
    for (const attachment of this.unreleased.values()) this.#ipam.release(attachment);
    this.unreleased.clear();
  }

  recall(by: bigint): void {
    this.#recallCount += by;
    this.#watch();
  }

  requestInventory(): void {
    this.#inventoryRequestCount++;
    this.#watch();
  }

  /** An ADD that is answered, or fails. @returns whether the pod has an address */
  async add(container: string): Promise<boolean> {
    const { attachment } = this.#network(container);
    const process = this.#process;
    const added = this.#inTurn(attachment, () =>
      process === this.#process ? this.#add(container) : Promise.resolve(false),
    );
    return this.#unlessKilled(added, false);
  }

  async del(container: string): Promise<void> {
    const { attachment } = this.#network(container);
    const process = this.#process;
    const deleted = this.#inTurn(attachment, async () => {
      if (process !== this.#process || !this.pods.delete(formatAttachment(attachment))) return;
      const dead = await this.registry.setState(attachment, 'dead');
      if (dead) {
        this.book.settle(dead);
        return;
      }
      // Its record was removed by hand: DEL releases what podwire-ipam has for the attachment.
      this.unreleased.set(formatAttachment(attachment), attachment);
      if (!this.#ipam.isDown) this.release();
    });
    await this.#unlessKilled(deleted, undefined);
  }

  /** The result of a command, or `killed` if the process is killed before: its wait may never end. */
  #unlessKilled<Result>(command: Promise<Result>, killed: Result): Promise<Result> {
    const atKill = new Promise<Result>((resolve) => this.#killed.once('killed', () => resolve(killed)));
    return Promise.race([command, atKill]);
  }

  get #bootId(): string {
    return `boot-${this.#bootCount}`;
  }

  #network(container: string): PodNetwork {
    return podNetwork(`${this.name}-${container}`);
  }

  async #add(container: string): Promise<boolean> {
    const network = this.#network(container);
    const { attachment } = network;
    const key = formatAttachment(attachment);
    if (this.pods.has(key) || this.unreleased.has(key) || this.registry.get(attachment)) return false;
    const process = this.#process;
    const taken = await this.book.take(attachment, [4], new AbortController().signal);
    if (process !== this.#process) return false;
    const lease = taken.leases?.[0];
    const isBound = lease === undefined;
    const netns = { bootId: this.#bootId, inode: INODE };
    const allocated = lease ?? (this.#ipam.isDown ? undefined : this.#ipam.allocate(this.name, attachment, netns));
    if (!allocated) return false;
    const { address, sequenceNumber }: AllocatedAddress = allocated;
    const wired = { ...network, addresses: [parse(address)] };
    const allocation = { addresses: [{ address, sequenceNumber }], nodeName: this.name, pod: undefined, isBound };
    this.pods.set(key, { network: wired, address });
    await this.registry.record(wired, IDENTITY, allocation);
    if (process !== this.#process) return true;
    const record = this.registry.get(attachment);
    if (record && !isBound) this.book.settle(record);
    return true;
  }

  #watch(): void {
    const view = recallView(this.name, this.#recallCount, new Map(), this.#inventoryRequestCount);
    this.book.follow(view, { blocks: new Set(), hasOtherChanges: true });
  }

  #plugin(): PluginAttachments {
    return {
      runExclusive: (attachment, _, work) => this.#inTurn(attachment, work),
      pendingAddresses: () => [],
      usageOf: (attachment) => (this.unreleased.has(formatAttachment(attachment)) ? 'pending' : 'wired'),
    };
  }

  #inTurn<Result>(attachment: Attachment, work: () => Promise<Result>): Promise<Result> {
    const key = formatAttachment(attachment);
    const done = (this.#turns.get(key) ?? Promise.resolve()).then(work);
    this.#turns.set(
      key,
      done.catch(() => undefined),
    );
    return done;
  }
}

/** A killed process sends nothing more. */
function aliveApi(api: LeaseApi, isAlive: () => boolean): LeaseApi {
  const whileAlive = async <Result>(call: () => Promise<Result>): Promise<Result> => {
    if (!isAlive()) return new Promise<Result>(() => undefined);
    try {
      return await call();
    } finally {
      if (!isAlive()) await new Promise(() => undefined);
    }
  };
  return {
    description: api.description,
    isConnected: () => api.isConnected(),
    openSession: (...args) => whileAlive(() => api.openSession(...args)),
    leaseAddresses: (...args) => whileAlive(() => api.leaseAddresses(...args)),
    bindAddresses: (...args) => whileAlive(() => api.bindAddresses(...args)),
    returnAddresses: (...args) => whileAlive(() => api.returnAddresses(...args)),
    reportEndpoints: (...args) => whileAlive(() => api.reportEndpoints(...args)),
    reportInventory: (...args) => whileAlive(() => api.reportInventory(...args)),
    endpoint: (...args) => whileAlive(() => api.endpoint(...args)),
  };
}

function parse(text: string): Address {
  const address = parseAddress(text);
  if (!address) throw new Error(text);
  return address;
}

function linkOf({ network, address }: { readonly network: PodNetwork; readonly address: string }): AttachedLink {
  return { attachment: network.attachment, link: hostLink(network.hostInterfaceName), addresses: [`${address}/32`] };
}
