import { randomUUID } from 'node:crypto';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

import { AddressServiceService, AllocateRequest } from '@podwire/proto/podwire/ipam/v1/address';
import { HandleServiceService } from '@podwire/proto/podwire/ipam/v1/handle';
import { AddressBook } from '@podwire/node/addresses/address-book';
import { AddressEvents } from '@podwire/node/addresses/events';
import { ipamLeaseApi } from '@podwire/node/addresses/lease-api';
import { TmpfsLeaseFile } from '@podwire/node/addresses/lease-file';
import { ClusterWatch } from '@podwire/dataplane/node/cluster-watch';
import { ClusterEvents } from '@podwire/dataplane/node/events';
import type { AllocatedAddress } from '@podwire/dataplane/records/record';
import { AttachmentRegistry } from '@podwire/dataplane/records/registry';
import { MemoryRecordStore } from '@podwire/dataplane/testing/memory-record-store';
import { address, podNetwork } from '@podwire/dataplane/testing/pods';
import type { PluginAttachments } from '@podwire/plugin/clients/clients';
import { formatAttachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';
import type { Peer } from '@podwire/shared/rpc/client';
import { systemClock, type Clock } from '@podwire/shared/runtime/clock';
import { createLogger } from '@podwire/shared/runtime/log';

import { until } from '../support/until.js';
import type { History } from './model.js';
import type { Replica } from './replica.js';

const BOOT_ID = '2c1e5f3a-6a0d-4c53-9a3c-6f1f0a7c9b11';
const BOOT = { id: BOOT_ID, startedAtMs: 0 };
const IDENTITY = { device: 4n, inode: 4_026_532_178n, cookie: 7n };

/** Time limit of the calls that pods wait for: shorter than the faults last. */
const CALL_TIMEOUT_MS = 2_000;

const MARKS = { lowCount: 2, highCount: 6 };

export interface LeasingNodeOptions {
  readonly name: string;
  /** Of its lease file. */
  readonly folder: string;
  readonly replicas: readonly Replica[];
  readonly history: History;
  /** A number from 0 (included) to 1 (excluded), from a seed that the test prints. */
  readonly random: () => number;
}

/** The part of a client that one process of a node uses. */
type Calls = Pick<Peer, 'call' | 'stream' | 'description' | 'isConnected'>;

/** One process of the node. Once it is killed, nothing of it reaches what the next one sees. */
interface NodeProcess {
  readonly death: AbortSignal;
  readonly isDead: () => boolean;
  readonly kill: () => void;
  readonly calls: Calls;
  readonly registry: AttachmentRegistry;
  readonly book: AddressBook;
}

/**
 * A node that gives its pods leased addresses, with the dataplane's own code: it takes a lease, records the pod, and binds or
 * returns the address in the background. It is killed at any moment, and its wall clock jumps. Without a lease it allocates.
 */
export class LeasingNode {
  readonly name: string;
  readonly #options: LeasingNodeOptions;
  readonly #file: TmpfsLeaseFile;
  /** Outlives the processes, like a directory. */
  #store = new MemoryRecordStore();
  #process: NodeProcess | undefined;
  /** Containers whose ADD has taken a lease, and has not stored the record. */
  readonly #unrecorded = new Set<string>();
  readonly #machineId = randomUUID();
  /** Containers whose ADD or DEL is in progress. */
  readonly #busy = new Set<string>();
  readonly #lasting: string[] = [];
  #clockAheadMs = 0;
  #isStopping = false;
  #serial = 0;

  constructor(options: LeasingNodeOptions) {
    this.#options = options;
    this.name = options.name;
    const events = new AddressEvents(quietLog());
    const path = join(options.folder, `${options.name}.leases`);
    this.#file = new TmpfsLeaseFile({ path, nodeName: options.name, bootId: BOOT_ID, events });
  }

  async start(): Promise<void> {
    const { random } = this.#options;
    const dying = new AbortController();
    const calls = this.#callsUntil(dying.signal);
    const clock: Clock = { ...systemClock, nowMs: () => Date.now() + this.#clockAheadMs };
    const onStoreFailure = (_: unknown, failure: unknown): never => {
      throw failure;
    };
    const registry = new AttachmentRegistry({ store: this.#store, bootId: BOOT_ID, clock, onStoreFailure });
    await registry.load();
    const book = await AddressBook.open({
      registry,
      links: () => Promise.resolve([]),
      api: ipamLeaseApi(calls, clock),
      file: {
        load: () => this.#file.load(),
        save: (stored) => {
          if (!dying.signal.aborted) this.#file.save(stored);
        },
      },
      marks: MARKS,
      nodeName: this.name,
      machineId: this.#machineId,
      boot: BOOT,
      events: new AddressEvents(quietLog()),
      clock,
      random,
    });
    const events = new ClusterEvents(quietLog());
    const follower = { follow: book.follow.bind(book), stop: () => Promise.resolve() };
    const watch = new ClusterWatch({ self: this.name, ipam: calls, followers: [follower], events, clock, random });
    const kill = (): void => {
      dying.abort();
      void watch.stop();
    };
    const isDead = (): boolean => dying.signal.aborted;
    this.#process = { death: dying.signal, isDead, kill, calls, registry, book };
    book.start(this.#plugin());
    watch.start();
  }

  /** SIGKILL, and the next process. */
  async restart(): Promise<void> {
    const { history } = this.#options;
    this.#alive.kill();
    const left = new MemoryRecordStore();
    for (const [key, text] of this.#store.texts) left.texts.set(key, text);
    this.#store = left;
    for (const id of this.#unrecorded)
      if (!left.texts.has(formatAttachment(attachmentOf(id)))) history.unused(id, performance.now());
    this.#unrecorded.clear();
    history.count('node killed');
    await this.start();
  }

  /** Sets the wall clock to another time. */
  setClock(aheadMs: number): void {
    this.#clockAheadMs = aheadMs;
    this.#options.history.count('node clock set');
  }

  /** Pods come and go until {@link stop}; a few stay. */
  async run(count: number): Promise<void> {
    await Promise.all(Array.from({ length: count }, () => this.#live()));
  }

  /** Adds a pod that stays. */
  async addLasting(): Promise<void> {
    await until(
      () => this.tryLasting(),
      () => `${this.name} adds no pod: ${this.unsettled.join('; ')}`,
    );
  }

  /** An ADD of a pod that stays, or its DEL if it fails. @returns whether the pod got an address */
  async tryLasting(): Promise<boolean> {
    const id = this.#nextId();
    const isAdded = await this.#add(id);
    if (isAdded) this.#lasting.push(id);
    else await this.#del(id);
    return isAdded;
  }

  /** Deletes the pods that {@link addLasting} and {@link tryLasting} added. */
  async deleteLasting(): Promise<void> {
    await Promise.all(this.#lasting.splice(0).map((id) => this.#del(id)));
  }

  stop(): void {
    this.#isStopping = true;
  }

  kill(): void {
    this.#alive.kill();
  }

  /** Whether podwire-ipam knows the addresses of all pods, and of no deleted one. */
  get isSettled(): boolean {
    const records = this.#alive.registry.all();
    return records.every(({ state, allocation }) => state === 'attached' && allocation?.isBound === true);
  }

  /** Why it is not: its records, and the refusals of podwire-ipam. */
  get unsettled(): string[] {
    const { registry, book } = this.#alive;
    const records = registry.all().filter(({ state, allocation }) => state !== 'attached' || !allocation?.isBound);
    return [
      ...records.map(({ network, state }) => `${network.attachment.containerId} is ${state}`),
      ...book.conditions().map(({ message }) => message),
    ];
  }

  /** The unbound leases that the node would give to pods. */
  get leases(): string[] {
    return this.#file.load().leases.map(allocationKey).sort();
  }

  /** The unbound leases that podwire-ipam has for the node. */
  async leasesInIpam(): Promise<string[]> {
    const { addresses } = await this.#replica().peer.call(
      HandleServiceService.getHandle,
      { handleId: `podwire-lease.${this.name}`, pageSize: 1000, pageToken: '' },
      { deadlineMs: Date.now() + 10_000 },
    );
    return addresses.map(allocationKey).sort();
  }

  get #alive(): NodeProcess {
    if (!this.#process) throw new Error(`${this.name} has not started`);
    return this.#process;
  }

  #nextId(): string {
    return `${this.name}-${this.#serial++}`;
  }

  async #live(): Promise<void> {
    const { random } = this.#options;
    while (!this.#isStopping) {
      const id = this.#nextId();
      if (!(await this.#add(id))) await this.#del(id);
      else if (random() < 0.97) {
        await sleep(random() * 200);
        await this.#del(id);
        if (random() < 0.2) await this.#del(id);
      }
    }
  }

  #plugin(): PluginAttachments {
    return {
      runExclusive: (_, __, work) => work(),
      pendingAddresses: () => [],
      usageOf: ({ containerId }) => (this.#busy.has(containerId) ? 'pending' : 'wired'),
    };
  }

  async #whileBusy<Result>(id: string, work: () => Promise<Result>): Promise<Result> {
    this.#busy.add(id);
    try {
      return await work();
    } finally {
      this.#busy.delete(id);
    }
  }

  /** An ADD. @returns whether it was answered with success */
  #add(id: string): Promise<boolean> {
    return this.#whileBusy(id, () => this.#tryAdd(id));
  }

  async #tryAdd(id: string): Promise<boolean> {
    const node = this.#alive;
    const { history, random } = this.#options;
    const taken = await node.book.take(attachmentOf(id), [4], node.death);
    if (node.isDead()) return false;
    const [lease] = taken.leases ?? [];
    if (!lease) return this.#allocate(id, node);
    history.allocated(id, `${lease.address}/32`, performance.now());
    this.#unrecorded.add(id);
    if (random() < 0.2) await sleep(random() * 50);
    if (node.isDead()) return false;
    if (random() < 0.02) {
      this.#unrecorded.delete(id);
      history.unused(id, performance.now());
      node.book.giveBack([lease]);
      history.count('lease given back');
      return false;
    }
    await this.#record(id, node, { ...lease, isBound: false });
    if (node.isDead()) return false;
    this.#unrecorded.delete(id);
    history.count('added with a lease');
    const record = node.registry.get(attachmentOf(id));
    if (record) node.book.settle(record);
    return true;
  }

  async #allocate(id: string, node: NodeProcess): Promise<boolean> {
    const { history, random } = this.#options;
    try {
      const { endpoint } = await this.#replica().peer.call(
        AddressServiceService.allocate,
        AllocateRequest.fromPartial({
          attachment: attachmentOf(id),
          nodeName: this.name,
          netns: { bootId: BOOT_ID, inode: IDENTITY.inode },
        }),
        { deadlineMs: Date.now() + CALL_TIMEOUT_MS, signal: node.death },
      );
      const [given] = endpoint?.addresses ?? [];
      if (node.isDead() || !given) return false;
      history.allocated(id, given.address, performance.now());
      const allocated = { address: given.address.split('/')[0] ?? '', sequenceNumber: given.sequenceNumber };
      await this.#record(id, node, { ...allocated, isBound: true });
      history.count('added without a lease');
      return !node.isDead();
    } catch (error) {
      history.count(`add: ${codeOf(error)}`);
      await sleep(random() * 100);
      return false;
    }
  }

  async #record(
    id: string,
    { registry }: NodeProcess,
    { address: text, sequenceNumber, isBound }: AllocatedAddress & { readonly isBound: boolean },
  ): Promise<void> {
    const network = podNetwork(id, { addresses: [address(text)] });
    const addresses = [{ address: text, sequenceNumber }];
    await registry.record(network, IDENTITY, { addresses, nodeName: this.name, pod: undefined, isBound });
  }

  /** A DEL, which the runtime repeats until it succeeds. */
  #del(id: string): Promise<void> {
    return this.#whileBusy(id, () => this.#delete(id));
  }

  async #delete(id: string): Promise<void> {
    const { history, random } = this.#options;
    history.releasing(id, performance.now());
    for (;;) {
      const { registry, book, death, isDead } = this.#alive;
      const dead = await registry.setState(attachmentOf(id), 'dead');
      if (isDead()) {
        await sleep(5);
        continue;
      }
      if (dead) {
        book.settle(dead);
        return;
      }
      try {
        const limits = { deadlineMs: Date.now() + CALL_TIMEOUT_MS, signal: death };
        await this.#replica().peer.call(AddressServiceService.release, { attachment: attachmentOf(id) }, limits);
        return;
      } catch (error) {
        history.count(`del: ${codeOf(error)}`);
        await sleep(50 + random() * 200);
      }
    }
  }

  /** Calls to any replica. Those of a killed process are cancelled, as its connections are closed, and are never answered. */
  #callsUntil(death: AbortSignal): Calls {
    return {
      description: 'podwire-ipam',
      isConnected: true,
      call: async (method, request, { deadlineMs, signal }) => {
        const until = AbortSignal.any([death, ...(signal ? [signal] : [])]);
        const limits = { deadlineMs: deadlineMs - this.#clockAheadMs, signal: until };
        try {
          return await this.#replica().peer.call(method, request, limits);
        } finally {
          if (death.aborted) await new Promise(() => undefined);
        }
      },
      stream: (method, request, signal) =>
        this.#replica().peer.stream(method, request, AbortSignal.any([death, signal])),
    };
  }

  #replica(): Replica {
    const { replicas, random } = this.#options;
    const replica = replicas[Math.floor(random() * replicas.length)];
    if (!replica) throw new Error('no replica');
    return replica;
  }
}

function allocationKey({ address, sequenceNumber }: AllocatedAddress): string {
  return `${address}#${sequenceNumber}`;
}

function attachmentOf(id: string) {
  return podNetwork(id).attachment;
}

function quietLog() {
  return createLogger({ service: 'test', level: 'fatal' });
}

function codeOf(error: unknown): string {
  if (!(error instanceof Failure)) throw error;
  return error.code;
}
