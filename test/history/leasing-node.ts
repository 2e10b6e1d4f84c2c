import { randomUUID } from 'node:crypto';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

import { ClusterWatch } from '@podwire/dataplane/node/cluster-watch';
import { ClusterEvents } from '@podwire/dataplane/node/events';
import type { AttachedLink } from '@podwire/dataplane/pods/kernel';
import type { AllocatedAddress } from '@podwire/shared/attachment/allocation';
import { AttachmentRegistry } from '@podwire/dataplane/records/registry';
import { MemoryRecordStore } from '@podwire/dataplane/testing/memory-record-store';
import { address, podNetwork } from '@podwire/dataplane/testing/pods';
import { AddressBook } from '@podwire/node/addresses/address-book';
import { AddressEvents } from '@podwire/node/addresses/events';
import { ipamLeaseApi } from '@podwire/node/addresses/lease-api';
import { TmpfsLeaseFile } from '@podwire/node/addresses/lease-file';
import { hostLink } from '@podwire/node/addresses/testing/views';
import type { PluginAttachments } from '@podwire/plugin/clients/clients';
import { AddressServiceService, AllocateRequest } from '@podwire/proto/podwire/ipam/v1/address';
import { GetHandleRequest, HandleServiceService } from '@podwire/proto/podwire/ipam/v1/handle';
import { NodeServiceService, RegisterNodeRequest } from '@podwire/proto/podwire/ipam/v1/node';
import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';
import { untilAborted } from '@podwire/shared/failure/signal';
import type { Peer } from '@podwire/shared/rpc/client';
import { systemClock, type Clock } from '@podwire/shared/runtime/clock';
import { createLogger } from '@podwire/shared/runtime/log';

import { until } from '../support/until.js';
import type { History } from './model.js';
import type { ReplicaClient } from './replica.js';

const IDENTITY = { device: 4n, inode: 4_026_532_178n, cookie: 7n };

/** Time limit of the calls that pods wait for: shorter than the faults last. */
const CALL_TIMEOUT_MS = 2_000;

const MARKS = { lowCount: 2, highCount: 6 };

/** An interrupted deletion ends in a round of upkeep, in milliseconds. */
const REGISTRATION_PATIENCE_MS = 150_000;

/** Number of machines, each of which has an address. */
let machines = 0;

export interface LeasingNodeOptions {
  readonly name: string;
  /** Prefix of its containers' names: the node's, except for one of two machines with one name. */
  readonly prefix?: string;
  /** Folder of its lease file. */
  readonly folder: string;
  readonly replicas: readonly ReplicaClient[];
  readonly history: History;
  /** A number from 0 (included) to 1 (excluded), from a seed that the test prints. */
  readonly random: () => number;
}

/** The part of a client that one process of a node uses. */
type Calls = Pick<Peer, 'call' | 'stream' | 'description' | 'isConnected'>;

/** The namespaces and interfaces of one boot, and its files on tmpfs. */
interface Boot {
  readonly id: string;
  readonly startedAtMs: number;
  /** Outlives the processes, like a directory. */
  store: MemoryRecordStore;
  /** Interfaces in the kernel, by container. */
  readonly links: Map<string, AttachedLink>;
}

/** One process of the node. Once it is killed, nothing of it reaches what the next one sees. */
interface NodeProcess {
  readonly death: AbortSignal;
  readonly isDead: () => boolean;
  readonly kill: () => void;
  readonly calls: Calls;
  readonly registry: AttachmentRegistry;
  readonly book: AddressBook;
  /** Commands of one attachment follow each other. */
  readonly turns: Turns;
}

/**
 * A node that gives its pods leased addresses, with the code of podwire-node: it takes a lease, records the pod, and binds or
 * returns the address in the background. It is killed at any moment, it is rebooted, and its wall clock jumps. Without a lease it
 * allocates.
 */
export class LeasingNode {
  readonly name: string;
  readonly #options: LeasingNodeOptions;
  readonly #prefix: string;
  readonly #machineId = randomUUID();
  readonly #ipv4 = `192.0.2.${++machines}/24`;
  #isRegistered = false;
  #boot = newBoot();
  #process: NodeProcess | undefined;
  /** Containers whose ADD has an address, and has not stored the record: whether podwire-ipam knows the container as its holder. */
  readonly #unrecorded = new Map<string, boolean>();
  /** Containers that have an address. */
  readonly #held = new Set<string>();
  readonly #lasting = new Set<string>();
  #clockAheadMs = 0;
  #isStopping = false;
  #serial = 0;

  constructor(options: LeasingNodeOptions) {
    this.#options = options;
    this.name = options.name;
    this.#prefix = options.prefix ?? options.name;
  }

  async start(): Promise<void> {
    const { random } = this.#options;
    if (!this.#isRegistered) await this.register();
    const dying = new AbortController();
    const calls = this.#callsUntil(dying.signal);
    const clock: Clock = { ...systemClock, nowMs: () => Date.now() + this.#clockAheadMs };
    const { id: bootId, store, links } = this.#boot;
    const onStoreFailure = (_: unknown, failure: unknown): never => {
      throw failure;
    };
    const registry = new AttachmentRegistry({ store, bootId, clock, onStoreFailure });
    await registry.load();
    const file = this.#file;
    const book = await AddressBook.open({
      registry,
      links: () => Promise.resolve([...links.values()]),
      api: ipamLeaseApi(calls, clock),
      file: {
        load: () => file.load(),
        save: (stored) => {
          if (!dying.signal.aborted) file.save(stored);
        },
      },
      ...{ marks: MARKS, nodeName: this.name, machineId: this.#machineId, boot: this.#boot },
      ...{ events: new AddressEvents(quietLog()), clock, random },
    });
    const events = new ClusterEvents(quietLog());
    const watch = new ClusterWatch({ self: this.name, ipam: calls, followers: [book], events, clock, random });
    const kill = (): void => {
      dying.abort();
      void watch.stop();
    };
    const isDead = (): boolean => dying.signal.aborted;
    const turns = new Turns();
    this.#process = { death: dying.signal, isDead, kill, calls, registry, book, turns };
    book.start(this.#plugin(turns));
    watch.start();
  }

  /** Registers the node, as podwire-node does at its start and after its registration vanished. */
  async register(): Promise<void> {
    const request = RegisterNodeRequest.fromPartial({ name: this.name, ipv4Address: this.#ipv4 });
    let outcome = '';
    await until(
      async () => {
        try {
          await this.#replica().peer.call(NodeServiceService.registerNode, request, limits());
          this.#isRegistered = true;
          return true;
        } catch (error) {
          outcome = codeOf(error);
          this.#options.history.count(`register: ${outcome}`);
          return false;
        }
      },
      () => `${this.name} cannot be registered: ${outcome}`,
      REGISTRATION_PATIENCE_MS,
    );
  }

  /** SIGKILL, and the next process. */
  async restart(): Promise<void> {
    const { history } = this.#options;
    this.#alive.kill();
    const left = new MemoryRecordStore();
    for (const [key, text] of this.#boot.store.texts) left.texts.set(key, text);
    this.#boot.store = left;
    const nowMs = performance.now();
    for (const [id, isBound] of this.#unrecorded)
      if (!left.texts.has(formatAttachment(attachmentOf(id)))) {
        // The next process returns it, and what podwire-ipam allocated to the container cools down.
        if (isBound) history.releasing(id, nowMs);
        else history.unused(id, nowMs);
        this.#held.delete(id);
      }
    this.#unrecorded.clear();
    history.count('node killed');
    await this.start();
  }

  /** Power failure: the pods end, and records and leases are gone. */
  async reboot(): Promise<void> {
    const { history } = this.#options;
    this.#alive.kill();
    const nowMs = performance.now();
    for (const [id, isBound] of this.#unrecorded) if (!isBound) history.unused(id, nowMs);
    for (const id of this.#held) history.releasing(id, nowMs);
    for (const ids of [this.#unrecorded, this.#held, this.#lasting]) ids.clear();
    this.#boot = newBoot();
    history.count('node rebooted');
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
    if (isAdded) this.#lasting.add(id);
    else await this.#del(id);
    return isAdded;
  }

  /** Deletes the pods that {@link addLasting} and {@link tryLasting} added. */
  async deleteLasting(): Promise<void> {
    const ids = [...this.#lasting];
    this.#lasting.clear();
    await Promise.all(ids.map((id) => this.#del(id)));
  }

  stop(): void {
    this.#isStopping = true;
  }

  kill(): void {
    this.#alive.kill();
  }

  /** Number of pods that have an address. */
  get podCount(): number {
    return this.#held.size;
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

  /** Addresses of deleted pods that podwire-ipam was not able to release yet, by container. */
  get unreturned(): ReadonlyMap<string, readonly string[]> {
    const dead = this.#alive.registry.all().filter(({ state }) => state === 'dead');
    return new Map(
      dead.map(({ network, allocation }) => [
        network.attachment.containerId,
        (allocation?.addresses ?? []).map(({ address: text }) => `${text}/32`),
      ]),
    );
  }

  /** The unbound leases that the node would give to pods. */
  get leases(): AllocatedAddress[] {
    return [...this.#file.load().leases];
  }

  /** The unbound leases that podwire-ipam has for the node. */
  async leasesInIpam(): Promise<AllocatedAddress[]> {
    const handleId = `podwire-lease.${this.name}`;
    const request = GetHandleRequest.fromPartial({ handleId, pageSize: 1000 });
    try {
      const { addresses } = await this.#replica().peer.call(HandleServiceService.getHandle, request, limits());
      return addresses;
    } catch (error) {
      if (codeOf(error) === 'HANDLE_NOT_FOUND') return [];
      throw error;
    }
  }

  /** Addresses that podwire-ipam has for the node after an inventory without a pod; the failure if there was no inventory. */
  async leftovers(): Promise<string[]> {
    const { book, death } = this.#alive;
    const deadlineMs = limits().deadlineMs + this.#clockAheadMs;
    try {
      const kept = await book.unknownAllocations(attachmentOf('').network, { deadlineMs, signal: death });
      return kept.map(
        ({ attachment, held, bootId }) =>
          `${attachment.containerId} of boot ${bootId ?? 'unknown'} with ${held.map(({ address: each }) => each).join()}`,
      );
    } catch (error) {
      return [codeOf(error)];
    }
  }

  get #file(): TmpfsLeaseFile {
    const { folder } = this.#options;
    const owner = { nodeName: this.name, bootId: this.#boot.id };
    const path = join(folder, `${this.#prefix}.leases`);
    return new TmpfsLeaseFile({ ...owner, path, events: new AddressEvents(quietLog()) });
  }

  get #alive(): NodeProcess {
    if (!this.#process) throw new Error(`${this.name} has not started`);
    return this.#process;
  }

  #nextId(): string {
    return `${this.#prefix}-${this.#serial++}`;
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

  /** An ADD. @returns whether it was answered with success */
  async #add(id: string): Promise<boolean> {
    const node = this.#alive;
    const isAdded = await inTurn(id, node, () => this.#addInTurn(id, node));
    if (!isAdded) await sleep(this.#options.random() * 100);
    return isAdded;
  }

  async #addInTurn(id: string, node: NodeProcess): Promise<boolean> {
    const { history, random } = this.#options;
    if (node.isDead() || node.book.refusal) {
      history.count(`add: ${node.book.refusal?.code ?? 'killed'}`);
      return false;
    }
    const taken = await node.book.take(attachmentOf(id), [4], node.death);
    if (node.isDead()) return false;
    const [lease] = taken.leases ?? [];
    if (!lease) return this.#allocate(id, node);
    this.#allocated(id, `${lease.address}/32`);
    this.#unrecorded.set(id, false);
    if (random() < 0.2) await sleep(random() * 50);
    if (node.isDead()) return false;
    if (random() < 0.02) {
      this.#unrecorded.delete(id);
      this.#held.delete(id);
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
    const { history } = this.#options;
    const { id: bootId } = this.#boot;
    try {
      await node.book.requireName(node.death);
      const { endpoint } = await this.#replica().peer.call(
        AddressServiceService.allocate,
        AllocateRequest.fromPartial({
          attachment: attachmentOf(id),
          nodeName: this.name,
          netns: { bootId, inode: IDENTITY.inode },
        }),
        { deadlineMs: Date.now() + CALL_TIMEOUT_MS, signal: node.death },
      );
      const [given] = endpoint?.addresses ?? [];
      if (node.isDead() || !given) return false;
      this.#allocated(id, given.address);
      this.#unrecorded.set(id, true);
      const allocated = { address: given.address.split('/')[0] ?? '', sequenceNumber: given.sequenceNumber };
      await this.#record(id, node, { ...allocated, isBound: true });
      if (node.isDead()) return false;
      this.#unrecorded.delete(id);
      history.count('added without a lease');
      return true;
    } catch (error) {
      history.count(`add: ${codeOf(error)}`);
      return false;
    }
  }

  #allocated(id: string, cidr: string): void {
    this.#options.history.allocated(id, cidr, performance.now());
    this.#held.add(id);
  }

  async #record(
    id: string,
    { registry, isDead }: NodeProcess,
    { address: text, sequenceNumber, isBound }: AllocatedAddress & { readonly isBound: boolean },
  ): Promise<void> {
    const network = podNetwork(id, { addresses: [address(text)] });
    const { attachment, hostInterfaceName } = network;
    const addresses = [{ address: text, sequenceNumber }];
    const { links } = this.#boot;
    await registry.record(network, IDENTITY, { addresses, nodeName: this.name, pod: undefined, isBound });
    if (!isDead()) links.set(id, { attachment, link: hostLink(hostInterfaceName), addresses: [`${text}/32`] });
  }

  /** A DEL, which the runtime repeats until it succeeds. */
  async #del(id: string): Promise<void> {
    const { history, random } = this.#options;
    history.releasing(id, performance.now());
    this.#held.delete(id);
    for (;;) {
      const node = this.#alive;
      if (await inTurn(id, node, () => this.#delInTurn(id, node))) return;
      await sleep(node.isDead() ? 5 : 50 + random() * 200);
    }
  }

  /** @returns whether it was answered with success */
  async #delInTurn(id: string, { registry, book, death, isDead }: NodeProcess): Promise<boolean> {
    if (isDead()) return false;
    this.#boot.links.delete(id);
    const dead = await registry.end(attachmentOf(id));
    if (isDead()) return false;
    if (dead) {
      book.settle(dead);
      return true;
    }
    try {
      const within = { deadlineMs: Date.now() + CALL_TIMEOUT_MS, signal: death };
      await this.#replica().peer.call(AddressServiceService.release, { attachment: attachmentOf(id) }, within);
      return true;
    } catch (error) {
      this.#options.history.count(`del: ${codeOf(error)}`);
      return false;
    }
  }

  /** An address of podwire-ipam for an attachment without record and interface has no owner: all pods of the network are Podwire's. */
  #plugin(turns: Turns): PluginAttachments {
    return {
      runExclusive: (attachment, _, work) => turns.run(attachment, work),
      pendingAddresses: () => [],
      usageOf: () => 'wired',
    };
  }

  /** Calls to any replica. Calls of a killed process are cancelled, as its connections are closed, and are never answered. */
  #callsUntil(death: AbortSignal): Calls {
    return {
      description: 'podwire-ipam',
      isConnected: true,
      call: async (method, request, { deadlineMs, signal }) => {
        const aborted = AbortSignal.any([death, ...(signal ? [signal] : [])]);
        const within = { deadlineMs: deadlineMs - this.#clockAheadMs, signal: aborted };
        try {
          return await this.#replica().peer.call(method, request, within);
        } finally {
          if (death.aborted) await new Promise(() => undefined);
        }
      },
      stream: (method, request, signal) =>
        this.#replica().peer.stream(method, request, AbortSignal.any([death, signal])),
    };
  }

  #replica(): ReplicaClient {
    const { replicas, random } = this.#options;
    const replica = replicas[Math.floor(random() * replicas.length)];
    if (!replica) throw new Error('no replica');
    return replica;
  }
}

/** A command in its attachment's turn. @returns whether it was answered with success; not if the process is killed meanwhile */
async function inTurn(id: string, { turns, death }: NodeProcess, command: () => Promise<boolean>): Promise<boolean> {
  try {
    return await untilAborted(turns.run(attachmentOf(id), command), death);
  } catch (error) {
    if (death.aborted) return false;
    throw error;
  }
}

/** The commands of each attachment, one after another, as the plugin runs them. */
class Turns {
  readonly #last = new Map<string, Promise<unknown>>();

  async run<Result>(attachment: Attachment, work: () => Promise<Result>): Promise<Result> {
    const key = formatAttachment(attachment);
    const turn = (this.#last.get(key) ?? Promise.resolve()).then(work);
    const ended = turn.catch(() => undefined);
    this.#last.set(key, ended);
    try {
      return await turn;
    } finally {
      if (this.#last.get(key) === ended) this.#last.delete(key);
    }
  }
}

function newBoot(): Boot {
  return { id: randomUUID(), startedAtMs: Date.now(), store: new MemoryRecordStore(), links: new Map() };
}

function attachmentOf(id: string): Attachment {
  return podNetwork(id).attachment;
}

function limits() {
  return { deadlineMs: Date.now() + 10_000 };
}

function quietLog() {
  return createLogger({ service: 'test', level: 'fatal' });
}

function codeOf(error: unknown): string {
  if (!(error instanceof Failure)) throw error;
  return error.code;
}
