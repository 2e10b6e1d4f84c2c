import { formatAttachment } from '@podwire/shared/attachment/attachment';
import type { FailureCode } from '@podwire/shared/failure/codes';
import { Failure } from '@podwire/shared/failure/failure';
import { formatAddress } from '@podwire/shared/net/address';
import { hostPrefix } from '@podwire/shared/net/prefix';
import { withAttachment } from '@podwire/shared/runtime/log';
import { formatCount } from '@podwire/shared/words/format-count';

import type { AddressReleaseResult } from '../addresses/release.js';
import { awaitedNodes, endWait } from '../blocks/epoch.js';
import { requestInventory } from '../blocks/node-requests.js';
import type { Events } from '../engine/events.js';
import { nodeLane, REGISTRATIONS_LANE, unknownNodes, type IpamOptions } from '../engine/updates/operation.js';
import type { Endpoint } from '../records/endpoint.js';
import type { View } from '../records/view.js';
import { bindAddresses, type Binding, type Bound } from './bindings.js';
import { reportInventory, type InventoryReport, type ReportInput } from './inventory.js';
import { leaseAddresses, type LeaseRequest, type LeaseStep } from './leases.js';
import {
  reportEndpoints,
  unrecorded,
  type EndpointReport,
  type ReportedEndpoint,
  type ReportedState,
} from './reported-endpoints.js';
import { recallLeases } from './recall.js';
import { continueReturn, type AddressReturn, type ReturnStep } from './returns.js';
import { openSession, type OpenedSession, type SessionName, type SessionRequest } from './session.js';

/** An inventory of a node. */
export type ReportRequest = Omit<ReportInput, 'nowMs'>;

/** The unbound leases of a node. */
export type LeaseList = Pick<LeaseStep, 'leases' | 'explanation' | 'limit' | 'coolDownMs' | 'sessionRevision'>;

/** Results of the parts of a request, in their order. */
export interface Results<Result> {
  readonly results: readonly Result[];
  readonly sessionRevision: number;
}

/** A node that calls, and its session. */
export interface NodeCaller {
  readonly nodeName: string;
  readonly session: SessionName;
}

/** The result of one binding. */
export type BindingResult =
  | { readonly ok: true; readonly endpoint: Endpoint; readonly sessionRevision: number }
  | { readonly ok: false; readonly refusal: Failure };

/** Failures of a single binding, which a repetition does not change. */
const REFUSALS: readonly FailureCode[] = ['ALLOCATION_MISMATCH', 'STORE_CORRUPT', 'ACCESS_DENIED'];

/** Reports changes of leases after the commit: log lines. */
class LeaseEvents {
  readonly #engine: Events;

  constructor(events: Events) {
    this.#engine = events;
  }

  opened({ nodeName, machineId, bootId }: SessionRequest, { generation, isRestored }: OpenedSession): void {
    const facts = { 'podwire.node': nodeName };
    this.#engine.log.info(
      facts,
      `node ${nodeName}: opened session ${generation} of boot ${bootId}, machine ${machineId}`,
    );
    if (isRestored)
      this.#engine.log.warn(
        facts,
        `the datastore was restored from a backup: node ${nodeName} has seen a later state; new addresses wait for the inventories of the nodes`,
      );
  }

  reported(nodeName: string, { conflicts, unknown }: InventoryReport): void {
    const facts = { 'podwire.node': nodeName };
    for (const { address, attachment, holder } of conflicts.slice(0, LOGGED_CONFLICTS)) {
      const text = formatAddress(address);
      this.#engine.log.error(facts, `address ${text} of ${attachment} on node ${nodeName} belongs to ${holder}`);
    }
    if (unknown.length > 0)
      this.#engine.log.info(
        facts,
        `node ${nodeName} does not have ${formatCount(unknown.length, 'of its allocations', 'of its allocations')}`,
      );
  }

  leased(nodeName: string, { newCount, freedCount, takenBackCount, claimed }: LeaseStep): void {
    this.#engine.blocksClaimed(claimed, nodeName);
    this.#count('taken_back', { nodeName, count: takenBackCount, text: 'took leases back that another tool released' });
    this.#count('freed', { nodeName, count: freedCount, text: 'freed leases of a former boot' });
    this.#count('leased', { nodeName, count: newCount, text: 'leased addresses' });
  }

  bound({ endpoint: { attachment, nodeName }, added }: Bound): void {
    if (added.length === 0) return;
    const texts = added.map(formatAddress);
    const facts = { 'podwire.node': nodeName, 'podwire.addresses': texts };
    this.#engine.log.info(facts, `bound ${texts.join(', ')} to ${formatAttachment(attachment)}`);
  }

  refused({ message }: Failure): void {
    this.#engine.log.warn(`refused a binding: ${message}`);
  }

  returned(nodeName: string, freed: readonly AddressReturn[]): void {
    const used = freed.filter(({ use }) => use);
    if (used.length > 0) this.#engine.addressesReleased(used.map(({ allocation }) => hostPrefix(allocation.address)));
    this.#count('freed', { nodeName, count: freed.length - used.length, text: 'freed unused leases' });
  }

  recalled(nodeName: string): void {
    this.#engine.log.info({ 'podwire.node': nodeName }, `node ${nodeName}: an operator recalled its unbound leases`);
  }

  #count(event: 'leased' | 'freed' | 'taken_back', { nodeName, count, text }: LeaseCount): void {
    if (count === 0) return;
    this.#engine.log.info({ 'podwire.node': nodeName }, `node ${nodeName}: ${text}: ${count}`);
  }
}

/** Nodes asked for their inventory after a restore: each request is sent to every node of the cluster. */
const ASKED_AT_ONCE = 256;

/** Maximum number of conflicts of one report in the log. */
const LOGGED_CONFLICTS = 16;

interface LeaseCount {
  readonly nodeName: string;
  readonly count: number;
  readonly text: string;
}

/** Lends addresses to nodes. All changes of a node's leases are in the node's lane. */
export class Leases {
  readonly #options: IpamOptions;
  readonly #events: LeaseEvents;

  constructor(options: IpamOptions) {
    this.#options = options;
    this.#events = new LeaseEvents(options.events);
  }

  /** Makes a process the owner of its node's name. @throws Failure like the decision `openSession` */
  async openSession(request: SessionRequest, signal: AbortSignal): Promise<OpenedSession> {
    const { updates, clock, newUid } = this.#options;
    const input = { request, nowMs: clock.nowMs(), epochId: newUid() };
    const opened = await updates.update(REGISTRATIONS_LANE, (view) => openSession(view, input), { signal });
    if (opened.isOpened) this.#events.opened(request, opened);
    if (opened.isRestored) await this.#requestInventories(signal);
    return opened;
  }

  /** Ends the wait for reports after a restore once it is over. Idempotent. */
  async endWait(signal: AbortSignal): Promise<void> {
    await this.#options.updates.update('epoch', endWait, { signal });
  }

  /** So that new addresses wait no longer than necessary. Without it, the nodes report by themselves, but later. */
  async #requestInventories(signal: AbortSignal): Promise<void> {
    const { updates } = this.#options;
    const names = await updates.peek((view) => awaitedNodes(view).slice(0, ASKED_AT_ONCE));
    const ask = (name: string) => updates.update(nodeLane(name), (view) => requestInventory(view, name), { signal });
    await Promise.allSettled(names.map(ask));
  }

  /** Compares a node's inventory with the datastore. @throws Failure like the decision `reportInventory` */
  async report(request: ReportRequest, signal: AbortSignal): Promise<InventoryReport> {
    const { updates, clock } = this.#options;
    const { nodeName } = request;
    const input = { ...request, nowMs: clock.nowMs() };
    // The comparison depends on records that the commit does not compare.
    const options = { signal, isFresh: true };
    const report = await updates.update(nodeLane(nodeName), (view) => reportInventory(view, input), options);
    this.#events.reported(nodeName, report);
    return report;
  }

  /**
   * Stores the reported endpoints of a node's pods with addresses of another IPAM plugin, in several
   * transactions if necessary.
   * @param check - throws a Failure for an endpoint that is left out
   * @throws Failure like the decision `reportEndpoints`
   */
  async reportEndpoints(
    request: Omit<EndpointReport, 'nowMs'>,
    signal: AbortSignal,
    check: (endpoint: ReportedEndpoint) => Promise<void>,
  ): Promise<ReportedState> {
    const { updates, clock, events } = this.#options;
    const report = { ...request, nowMs: clock.nowMs() };
    const refused = new Set<ReportedEndpoint>();
    const isNew = await updates.peek((view) => unrecorded(view, report));
    const checks = isNew.map(async ({ endpoint }) => {
      await check(endpoint).catch((error: unknown) => {
        if (!(error instanceof Failure) || error.code !== 'ACCESS_DENIED') throw error;
        refused.add(endpoint);
        events.log.warn(`left out an endpoint: ${error.message}`);
      });
    });
    await Promise.all(checks);
    const allowed = { ...report, endpoints: report.endpoints.filter((each) => !refused.has(each)) };
    const lane = nodeLane(report.nodeName);
    for (;;) {
      const step = await updates.update(lane, (view) => reportEndpoints(view, allowed), { signal });
      if (step.isDone) return { ...step, leftOutCount: step.leftOutCount + refused.size };
    }
  }

  /**
   * Makes a node hold a number of unbound leases, in several transactions if necessary. Idempotent.
   * @throws Failure like the decision `leaseAddresses`
   */
  async lease(request: LeaseRequest, signal: AbortSignal): Promise<LeaseList> {
    const { updates, clock } = this.#options;
    const { nodeName } = request;
    for (;;) {
      const input = { request, unknownNodes: unknownNodes(this.#options), nowMs: clock.nowMs() };
      const step = await updates.update(nodeLane(nodeName), (view) => leaseAddresses(view, input), { signal });
      this.#events.leased(nodeName, step);
      if (step.state === 'done') return step;
    }
  }

  /**
   * Binds leases of a node to attachments. Each binding is evaluated separately. Idempotent.
   * @param check - throws a Failure for a binding that is refused
   * @returns the result of each, in their order
   * @throws Failure of every operation; some bindings may be done
   */
  async bind(
    caller: NodeCaller,
    bindings: readonly Binding[],
    signal: AbortSignal,
    check: (binding: Binding) => Promise<void> = () => Promise.resolve(),
  ): Promise<Results<BindingResult>> {
    const bindOne = (binding: Binding): Promise<BindingResult> =>
      withAttachment(binding.attachment, () => this.#bindOne(caller, binding, signal, check));
    const settled = await Promise.allSettled(bindings.map(bindOne));
    const results = settled.map((each) => {
      if (each.status === 'fulfilled') return each.value;
      throw each.reason;
    });
    return { results, sessionRevision: Math.max(0, ...results.map((each) => (each.ok ? each.sessionRevision : 0))) };
  }

  /**
   * Frees addresses of a node, in several transactions if necessary. Each is evaluated separately. Idempotent.
   * @param returns - without duplicate addresses
   * @returns the result of each, in their order
   */
  async giveBack(
    { nodeName, session }: NodeCaller,
    returns: readonly AddressReturn[],
    signal: AbortSignal,
  ): Promise<Results<AddressReleaseResult> & Pick<ReturnStep, 'leaseNumbers'>> {
    const { updates, clock } = this.#options;
    const results: AddressReleaseResult[] = [];
    const leaseNumbers: bigint[] = [];
    let sessionRevision = 0;
    while (results.length < returns.length) {
      const left = returns.slice(results.length);
      const step = { nodeName, session, returns: left, nowMs: clock.nowMs() };
      // The commit does not compare an address that was found free: only a fresh view shows that it still is.
      const options = { signal, isFresh: left.length > 1 };
      const outcome = await updates.update(nodeLane(nodeName), (view) => continueReturn(view, step), options);
      const freed = left.filter((_, index) => outcome.results[index]?.state === 'released');
      this.#events.returned(nodeName, freed);
      results.push(...outcome.results);
      leaseNumbers.push(...outcome.leaseNumbers);
      ({ sessionRevision } = outcome);
    }
    return { results, leaseNumbers, sessionRevision };
  }

  /**
   * Asks a node to return its unbound leases.
   * @returns whether it has any, and is registered
   */
  async recall(nodeName: string, signal: AbortSignal): Promise<boolean> {
    const { updates } = this.#options;
    const isAsked = await updates.update(nodeLane(nodeName), (view) => recallLeases(view, nodeName), { signal });
    if (isAsked) this.#events.recalled(nodeName);
    return isAsked;
  }

  async #bindOne(
    caller: NodeCaller,
    binding: Binding,
    signal: AbortSignal,
    check: (binding: Binding) => Promise<void>,
  ): Promise<BindingResult> {
    const { updates, clock } = this.#options;
    const lane = nodeLane(caller.nodeName);
    const decide = (view: View) => bindAddresses(view, { ...caller, binding, nowMs: clock.nowMs() });
    try {
      await check(binding);
      const bound = await updates.update(lane, decide, { signal });
      this.#events.bound(bound);
      return { ok: true, endpoint: bound.endpoint, sessionRevision: bound.sessionRevision };
    } catch (error) {
      if (!(error instanceof Failure) || !REFUSALS.includes(error.code)) throw error;
      this.#events.refused(error);
      return { ok: false, refusal: error };
    }
  }
}
