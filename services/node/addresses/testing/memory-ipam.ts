import { AddressReleaseResult, IpFamily } from '@podwire/proto/podwire/ipam/v1/address';
import { Endpoint } from '@podwire/proto/podwire/ipam/v1/endpoint';
import type {
  AddressReturn,
  BindingResult,
  InventoryFinding,
  NodeSession,
  OpenSessionRequest,
  OpenSessionResponse,
  ReportInventoryRequest,
  ReportInventoryResponse,
  UnknownAllocation,
} from '@podwire/proto/podwire/ipam/v1/lease';
import type { AllocatedAddress } from '@podwire/shared/attachment/allocation';
import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';
import type { Clock } from '@podwire/shared/runtime/clock';

import { inventoryOf } from '../reports/inventory.js';
import type { LeaseApi } from '../lease-api.js';
import type { SettlementInterval } from '../lease.js';

/** Record of podwire-ipam for an address. */
interface Holding {
  readonly sequenceNumber: bigint;
  /** Undefined: an unbound lease of the node. */
  readonly attachment: Attachment | undefined;
  readonly nodeName: string;
  readonly netns: { readonly bootId: string; readonly inode: bigint } | undefined;
}

interface StoredSession {
  readonly machineId: string;
  readonly bootId: string;
  readonly generation: bigint;
  readonly revision: bigint;
  readonly heardAtMs: number;
}

/** The datastore. */
export interface Store {
  readonly free: readonly string[];
  readonly holdings: ReadonlyMap<string, Holding>;
  readonly sessions: ReadonlyMap<string, StoredSession>;
  /** Addresses that a node's session lists, which are offered to no other node. */
  readonly listed: ReadonlyMap<string, string>;
  readonly sequenceNumber: bigint;
}

interface Reported {
  readonly nodeName: string;
  /** Attachment; undefined for a lease. */
  readonly attachment: Attachment | undefined;
  /** Reported attachments by address, formatted; undefined for a lease. */
  readonly owners: ReadonlyMap<string, readonly (string | undefined)[]>;
}

/** Fault of a call. */
export type CallFault =
  /** It is not executed. */
  | 'refused'
  /** It is executed, and its answer is lost. */
  | 'lost'
  /** Its answer is lost at once, and it is executed some turns later. */
  | 'late';

/** A node is alive for this time after its last call, in milliseconds. */
const ALIVE_MS = 240_000;

const VALID_FOR_S = 3600n;

/** Turns of the event loop until a late call is executed. */
const LATE_TURNS = 25;

/**
 * One pool of addresses of podwire-ipam in memory, for several nodes, as the contract of LeaseService describes it: sessions,
 * leases that a session lists, binding by address, inventories, and the time after a restore.
 */
export class MemoryIpam {
  free: string[];
  readonly holdings = new Map<string, Holding>();
  readonly sessions = new Map<string, StoredSession>();
  readonly listed = new Map<string, string>();
  /** Ended attachments that nodes returned, by address, in order. */
  readonly tenures = new Map<string, readonly string[]>();
  /** Faults of the next calls, in order; undefined: none. */
  readonly faults: (CallFault | undefined)[] = [];
  /** Delays of the next calls, in order: turns of the event loop until the execution, and from there until the answer. Default: 1. */
  readonly delays: number[] = [];
  isDown = false;
  /** Otherwise no session is opened. */
  isRegistered = true;
  /** Whether a pod without requests would no longer get this address. */
  readonly outdated = new Set<string>();
  callsCount = 0;
  /** Methods of the calls that were executed. */
  readonly executed: string[] = [];
  /** Addresses whose returns podwire-ipam refuses, as their block cannot be read. */
  readonly unreadable = new Set<string>();
  /** Reported endpoints, by node. */
  readonly endpoints = new Map<string, readonly Endpoint[]>();
  /** Number of endpoints left out of the next reports. */
  leftOut = 0;
  /** Number of these reports. */
  endpointReportsCount = 0;
  /** Attachments of pods that are scheduled to another node, formatted. */
  readonly ofOtherNodes = new Set<string>();
  coolDownSeconds = 0n;
  /** How long nodes collect bindings and returns; undefined: podwire-ipam is of a release that does not say. */
  settlement: SettlementInterval | undefined;
  limit = 256;
  /** Nodes whose inventories are awaited after a restore. */
  readonly awaited = new Set<string>();
  readonly #clock: Pick<Clock, 'nowMs'>;
  #sequenceNumber = 1n;
  #restoreCount = 0;

  constructor(addresses: readonly string[], clock: Pick<Clock, 'nowMs'>) {
    this.free = [...addresses];
    this.#clock = clock;
  }

  /** Allocate for an attachment, as for a pod that has requests. @returns undefined if there is none */
  allocate(nodeName: string, attachment: Attachment, netns?: Holding['netns']): AllocatedAddress | undefined {
    if (this.awaited.size > 0) return undefined;
    const address = this.#takeFree(nodeName, true);
    if (address === undefined) return undefined;
    return { address, sequenceNumber: this.#hold(address, { attachment, nodeName, netns }) };
  }

  /** Release of an attachment. */
  release(attachment: Attachment): void {
    const key = formatAttachment(attachment);
    for (const [address, held] of this.holdings)
      if (held.attachment && formatAttachment(held.attachment) === key) this.#end(address);
  }

  /** Another tool releases an address: the sessions do not learn of it. */
  releaseByTool(address: string): void {
    if (this.holdings.has(address)) this.#end(address);
  }

  holderOf(address: string): string | undefined {
    const attachment = this.holdings.get(address)?.attachment;
    return attachment && formatAttachment(attachment);
  }

  /** Unbound leases. */
  get leaseCount(): number {
    return [...this.holdings.values()].filter(({ attachment }) => attachment === undefined).length;
  }

  backup(): Store {
    const { free, holdings, sessions, listed } = this;
    const sequenceNumber = this.#sequenceNumber;
    const copies = { holdings: new Map(holdings), sessions: new Map(sessions), listed: new Map(listed) };
    return { free: [...free], ...copies, sequenceNumber };
  }

  /** Replaces the datastore by an earlier state. Until the nodes have reported, none gets new addresses. */
  restore({ free, holdings, sessions, listed, sequenceNumber }: Store): void {
    this.#restoreCount++;
    this.free = [...free];
    this.#sequenceNumber = sequenceNumber;
    replace(this.holdings, holdings);
    replace(this.sessions, sessions);
    replace(this.listed, listed);
    this.awaited.clear();
    for (const nodeName of sessions.keys()) this.awaited.add(nodeName);
  }

  api(): LeaseApi {
    return {
      description: 'podwire-ipam',
      isConnected: () => !this.isDown,
      openSession: (request) => this.#call('open', () => this.#open(request)),
      leaseAddresses: ({ nodeName, family, count, session }) =>
        this.#call('lease', () => {
          const sessionRevision = this.#heard(nodeName, session);
          const addresses = family === IpFamily.IP_FAMILY_IPV4 ? this.#lease(nodeName, count) : [];
          const explanation = addresses.length < count ? 'the pool has no free address' : '';
          const coolDown = { seconds: this.coolDownSeconds, nanos: 0 };
          const validFor = { seconds: VALID_FOR_S, nanos: 0 };
          const [settleAfter, settleWithin] = [this.settlement?.quietMs, this.settlement?.longestMs].map((ms) =>
            ms === undefined ? undefined : { seconds: BigInt(Math.floor(ms / 1000)), nanos: (ms % 1000) * 1e6 },
          );
          const rest = { limit: this.limit, validFor, coolDown, sessionRevision, settleAfter, settleWithin };
          return { addresses, explanation, ...rest };
        }),
      bindAddresses: ({ nodeName, bindings, session }) =>
        this.#call('bind', () => {
          const sessionRevision = this.#heard(nodeName, session);
          const results = bindings.map(({ attachment, addresses, netns }) =>
            this.#bind({ attachment, nodeName, netns }, addresses),
          );
          return { results, sessionRevision };
        }),
      returnAddresses: ({ nodeName, returns, session }) =>
        this.#call('return', () => {
          const names = returns.map(({ allocation }) => allocation?.address);
          if (new Set(names).size < names.length) throw new Failure('INVALID_REQUEST', 'an address is named twice');
          if (returns.some(({ attachment, detachTime }) => attachment && !detachTime))
            throw new Failure('INVALID_REQUEST', 'detach_time is missing');
          const sessionRevision = this.#heard(nodeName, session);
          const results = returns.map((each) => this.#return(nodeName, each));
          const leaseSequenceNumbers = returns.map(({ allocation, keepAsLease }) => {
            const held = this.holdings.get(allocation?.address ?? '');
            const isOwnLease = held !== undefined && held.attachment === undefined && held.nodeName === nodeName;
            return keepAsLease && isOwnLease ? held.sequenceNumber : 0n;
          });
          return { results, leaseSequenceNumbers, sessionRevision };
        }),
      // No faults here: no address depends on this call.
      reportEndpoints: ({ nodeName, endpoints, session }) => {
        this.endpointReportsCount++;
        if (!this.isDown) this.endpoints.set(nodeName, endpoints);
        return this.isDown
          ? Promise.reject(new Failure('UNREACHABLE', 'no connection'))
          : Promise.resolve({ sessionRevision: session?.revision ?? 0n, leftOut: this.leftOut });
      },
      reportInventory: (request) => this.#call('report', () => this.#report(request)),
      endpoint: () => Promise.resolve(undefined),
    };
  }

  #open(request: OpenSessionRequest): OpenSessionResponse {
    if (!this.isRegistered) throw new Failure('NODE_NOT_FOUND', 'the node is not registered');
    const { nodeName, machineId, bootId, expectedGeneration, last } = request;
    const before = this.sessions.get(nodeName);
    const nowMs = this.#clock.nowMs();
    if (before && before.machineId !== machineId && nowMs - before.heardAtMs < ALIVE_MS)
      throw new Failure('NODE_NAME_TAKEN', `${before.machineId} and ${machineId} have the name ${nodeName}`);
    const generation = before?.generation ?? 0n;
    if (generation !== expectedGeneration) return { opened: false, generation, revision: before?.revision ?? 0n };
    const next = (last && last.generation > generation ? last.generation : generation) + 1n;
    const revision = (before?.revision ?? 0n) + 1n;
    this.sessions.set(nodeName, { machineId, bootId, generation: next, revision, heardAtMs: nowMs });
    return { opened: true, generation: next, revision };
  }

  /** @returns the revision of the session. @throws Failure SESSION_SUPERSEDED */
  #heard(nodeName: string, named: NodeSession | undefined): bigint {
    const stored = this.sessions.get(nodeName);
    const isCurrent = stored && named?.generation === stored.generation && named.bootId === stored.bootId;
    if (!isCurrent || named.revision > stored.revision)
      throw new Failure('SESSION_SUPERSEDED', `${nodeName} has another session`);
    const revision = stored.revision + 1n;
    this.sessions.set(nodeName, { ...stored, revision, heardAtMs: this.#clock.nowMs() });
    return revision;
  }

  #lease(nodeName: string, count: number) {
    for (const [address, owner] of this.listed) {
      if (owner !== nodeName) continue;
      const held = this.holdings.get(address);
      // Another tool released it: it is taken back.
      if (!held) this.#hold(address, { attachment: undefined, nodeName, netns: undefined });
      else if (held.attachment !== undefined || held.nodeName !== nodeName) this.listed.delete(address);
    }
    if (this.awaited.size > 0) throw new Failure('STORE_RESTORED', `waits for ${[...this.awaited].join(', ')}`);
    const own = () =>
      [...this.holdings].filter(([, held]) => held.nodeName === nodeName && held.attachment === undefined);
    while (own().length < Math.min(count, this.limit)) {
      const address = this.#takeFree(nodeName, false);
      if (address === undefined) break;
      this.#hold(address, { attachment: undefined, nodeName, netns: undefined });
    }
    return own().map(([address, { sequenceNumber }]) => {
      this.listed.set(address, nodeName);
      return { address, sequenceNumber, poolName: 'pool', outdated: this.outdated.has(address) };
    });
  }

  #bind(
    { attachment, nodeName, netns }: Pick<Holding, 'attachment' | 'nodeName' | 'netns'>,
    addresses: readonly AllocatedAddress[],
  ): BindingResult {
    const key = attachment && formatAttachment(attachment);
    const taken = addresses.find(({ address }) => {
      const held = this.holdings.get(address);
      const listedBy = this.listed.get(address);
      if (held?.attachment) return formatAttachment(held.attachment) !== key;
      // No node gives out leases of a restored datastore: the pods that run decide.
      if (this.awaited.size > 0) return false;
      return held ? held.nodeName !== nodeName : listedBy !== undefined && listedBy !== nodeName;
    });
    if (taken) {
      const refusal = `${taken.address} is held by ${this.holderOf(taken.address) ?? 'a lease of another node'}`;
      return { endpoint: undefined, refusalCode: 'ALLOCATION_MISMATCH', refusal };
    }
    if (key !== undefined && this.ofOtherNodes.has(key))
      return { endpoint: undefined, refusalCode: 'ACCESS_DENIED', refusal: 'the pod is scheduled to node "node-2"' };
    const bound = addresses.map(({ address }) => {
      const held = this.holdings.get(address);
      this.listed.delete(address);
      this.free = this.free.filter((each) => each !== address);
      const sequenceNumber = held?.sequenceNumber ?? this.#sequenceNumber++;
      this.holdings.set(address, { sequenceNumber, attachment, nodeName, netns });
      return { address: `${address}/32`, sequenceNumber, poolName: 'pool' };
    });
    return { endpoint: Endpoint.fromPartial({ addresses: bound }), refusalCode: '', refusal: '' };
  }

  #return(nodeName: string, { allocation, attachment, keepAsLease }: AddressReturn): AddressReleaseResult {
    const address = allocation?.address ?? '';
    if (this.unreadable.has(address)) return AddressReleaseResult.ADDRESS_RELEASE_RESULT_UNREADABLE;
    const held = this.holdings.get(address);
    if (!held) {
      if (this.listed.get(address) === nodeName) this.listed.delete(address);
      return AddressReleaseResult.ADDRESS_RELEASE_RESULT_NOT_ALLOCATED;
    }
    const isOwnLease = held.attachment === undefined && held.nodeName === nodeName;
    const isOfAttachment =
      attachment && held.attachment && formatAttachment(held.attachment) === formatAttachment(attachment);
    if (held.sequenceNumber !== allocation?.sequenceNumber || !(isOwnLease || isOfAttachment))
      return AddressReleaseResult.ADDRESS_RELEASE_RESULT_MISMATCH;
    if (attachment) this.tenures.set(address, [...(this.tenures.get(address) ?? []), formatAttachment(attachment)]);
    if (keepAsLease) {
      this.#hold(address, { ...held, attachment: undefined, netns: undefined });
      this.listed.set(address, nodeName);
    } else {
      this.listed.delete(address);
      this.#end(address, attachment === undefined);
    }
    return AddressReleaseResult.ADDRESS_RELEASE_RESULT_RELEASED;
  }

  #report({ nodeName, session, digest, whole, attachments, leases }: ReportInventoryRequest): ReportInventoryResponse {
    const sessionRevision = this.#heard(nodeName, session);
    const own = [...this.holdings].filter(([, held]) => held.nodeName === nodeName);
    const kept = own.flatMap(([address, { attachment, sequenceNumber }]) =>
      attachment ? [{ address, sequenceNumber, attachment }] : [],
    );
    const unbound = own
      .filter(([, { attachment }]) => !attachment)
      .map(([address, { sequenceNumber }]) => ({ address, sequenceNumber }));
    const equal = inventoryOf({ records: [], leases: unbound, kept }).digest.equals(digest);
    if (!whole) {
      if (equal) this.awaited.delete(nodeName);
      return { equal, findings: [], unknown: [], sessionRevision };
    }
    const owners = new Map<string, (string | undefined)[]>();
    const note = (address: string, owner: string | undefined) =>
      owners.set(address, [...(owners.get(address) ?? []), owner]);
    for (const { attachment, addresses } of attachments)
      for (const { address } of addresses) note(address, attachment && formatAttachment(attachment));
    for (const { address } of leases) note(address, undefined);
    const findings = [
      ...attachments.flatMap(({ attachment, addresses, ended }) =>
        addresses.flatMap((each) => (ended ? [] : this.#finding({ nodeName, attachment, owners }, each))),
      ),
      ...leases.flatMap((each) => this.#finding({ nodeName, attachment: undefined, owners }, each)),
    ];
    // A free address of the inventory joins the session's list: no other node gets it before the node has bound or returned it.
    for (const { allocation, holder, currentSequenceNumber } of findings)
      if (allocation && (holder === '' || this.awaited.size > 0) && currentSequenceNumber === 0n)
        this.listed.set(allocation.address, nodeName);
    const ended = this.awaited.has(nodeName) ? attachments.filter((each) => each.ended) : [];
    for (const { address } of ended.flatMap(({ addresses }) => addresses))
      if (!this.holdings.has(address) && !this.listed.has(address)) this.listed.set(address, nodeName);
    if (findings.length === 0) this.awaited.delete(nodeName);
    const unknown = own
      .filter(([address, { attachment }]) => {
        const reported = owners.get(address);
        return !reported || (attachment && !reported.includes(formatAttachment(attachment)));
      })
      .map(([address, { sequenceNumber, attachment, netns }]): UnknownAllocation => {
        // The time is of podwire-ipam's clock, which may be ahead: younger than any boot.
        return { allocation: { address, sequenceNumber }, attachment, netns, allocateTime: new Date(8.64e15) };
      });
    return { equal: findings.length + unknown.length === 0, findings, unknown, sessionRevision };
  }

  #finding({ nodeName, attachment, owners }: Reported, allocation: AllocatedAddress): InventoryFinding[] {
    const { address } = allocation;
    const finding = { attachment, allocation, holder: '', currentSequenceNumber: 0n };
    const held = this.holdings.get(address);
    const lessee = this.listed.get(address);
    if (!held) return [{ ...finding, holder: lessee && lessee !== nodeName ? `a lease of ${lessee}` : '' }];
    const holder = this.holderOf(address);
    const isOwnLease = holder === undefined && held.nodeName === nodeName;
    const current = held.sequenceNumber;
    if (attachment ? holder === formatAttachment(attachment) : isOwnLease)
      return current === allocation.sequenceNumber ? [] : [{ ...finding, currentSequenceNumber: current }];
    if (isOwnLease) return [{ ...finding, currentSequenceNumber: current }];
    // The node has given the address of an ended pod to another one.
    if (holder !== undefined && owners.get(address)?.includes(holder)) return [];
    return [{ ...finding, holder: holder ?? `a lease of ${held.nodeName}` }];
  }

  #hold(address: string, rest: Omit<Holding, 'sequenceNumber'>): bigint {
    const sequenceNumber = this.#sequenceNumber++;
    this.free = this.free.filter((each) => each !== address);
    this.holdings.set(address, { ...rest, sequenceNumber });
    return sequenceNumber;
  }

  /** An address that no session lists, but for the node's own. */
  #takeFree(nodeName: string, isAllocation: boolean): string | undefined {
    return this.free.find((address) => {
      const owner = this.listed.get(address);
      return owner === undefined || (owner === nodeName && !isAllocation);
    });
  }

  /** @param isUnused - no pod had it: it is the next one */
  #end(address: string, isUnused = false): void {
    this.holdings.delete(address);
    if (isUnused) this.free.unshift(address);
    else this.free.push(address);
  }

  async #call<Result>(method: string, execute: () => Result): Promise<Result> {
    this.callsCount++;
    const restoreCount = this.#restoreCount;
    await this.#delay();
    const fault = this.isDown ? 'refused' : this.faults.shift();
    const lost = () => new Failure('UNREACHABLE', 'podwire-ipam did not answer');
    // No process of podwire-ipam outlives a restore, and the calls that it has not executed end with it.
    const isEnded = () => restoreCount !== this.#restoreCount;
    if (fault === 'refused' || isEnded()) throw lost();
    const run = () => {
      if (isEnded()) throw lost();
      this.executed.push(method);
      return execute();
    };
    if (fault === 'late') {
      void turns(LATE_TURNS)
        .then(run)
        .catch(() => undefined);
      throw lost();
    }
    const result = run();
    await this.#delay();
    if (fault === 'lost') throw lost();
    return result;
  }

  #delay(): Promise<void> {
    return turns(this.delays.shift() ?? 1);
  }
}

export async function turns(count: number): Promise<void> {
  for (let turn = 0; turn < count; turn++) await new Promise((resolve) => setImmediate(resolve));
}

function replace<Value>(target: Map<string, Value>, source: ReadonlyMap<string, Value>): void {
  target.clear();
  for (const [key, value] of source) target.set(key, value);
}
