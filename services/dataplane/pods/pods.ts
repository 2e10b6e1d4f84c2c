import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { hostInterfaceName as derivedName } from '@podwire/shared/attachment/names';
import { Failure } from '@podwire/shared/failure/failure';
import { withSpan } from '@podwire/shared/telemetry/span';

import { compareIdentities, filteredPod, type AttachmentRecord } from '../records/record.js';
import type { RecordedAllocation } from '@podwire/shared/attachment/allocation';
import type { AttachmentRegistry } from '../records/registry.js';
import { corrections, diff, differences, withoutLostRoutes, withPodChanges } from '../wiring/diff.js';
import type { Difference } from '@podwire/shared/attachment/pod-network';
import { wantedState, DEFAULT_MTU_BYTES, type Wanted } from '../wiring/network.js';
import type { PodNetwork } from '@podwire/shared/attachment/pod-network';
import type { Observed, ObservedLink } from '../wiring/observed.js';
import { withSourceRouting } from '../wiring/source-routing.js';
import { hostInterfaceTakenFailure, isMadeFor, emptyObservation, findObstacle, wireState } from '../wiring/wire.js';
import { rejectLostAddresses, type AttachResult, type DetachRequest, type RepairResult } from './conflicts.js';
import { isOfMissingLink } from './errno.js';
import type { Events } from './events.js';
import { renameDifference, wireDifferences, findCalicoLink, findHostLinks, findRenamedHostLink } from './host-links.js';
import type { AttachedLink, Kernel, PodFilter, PodSession } from './kernel.js';
import { OperationsInFlight, type LockKeys } from './operations-in-flight.js';
import {
  deleteMovedFlows,
  netnsToSearch,
  removeDetachedRules,
  removeSourceRules,
  removePodOrphanRules,
  type DetachedRulesOptions,
} from './source-rules.js';
import { transact, type Applied, type TransactionOptions } from './transaction.js';

interface PodWiringOptions {
  readonly kernel: Kernel;
  readonly registry: AttachmentRegistry;
  readonly events: Events;
  /** Default MTU of pods in bytes, read at each call. */
  readonly mtu?: () => number;
  /** Filters in the order of their installation. Default: none; the reverse-path filter then restricts pods to their IPv4 addresses. */
  readonly filters?: readonly PodFilter[];
  /** Announces the addresses of a pod to other nodes while it is wired. The pod's attach waits for it. Must not reject. */
  readonly announce?: (allocation: RecordedAllocation) => Promise<void>;
  /** Called when the addresses of a record have to be bound or returned in podwire-ipam. Must not throw. */
  readonly onUnsettled?: (record: AttachmentRecord) => void;
}

/**
 * Makes the kernel match the wanted state of pods: observe, plan, apply.
 *
 * Difficulties:
 * - Only the kernel knows the actual state: the service may have been killed between any two steps, and operators and other
 *   programs change interfaces too. The host interface's alias names the attachment and proves ownership; the registry holds only
 *   the wanted state, and nothing is removed on its word alone.
 * - Nearly every pod is new, and observing first would cost more than it finds. Creating the veth pair is exclusive: success
 *   proves that nothing was there, and only a refusal triggers an observation.
 * - Any step may fail, and the rollback must finish under the attachment's lock; otherwise another call would build on objects
 *   that are about to be removed.
 */
export class PodWiring {
  readonly #kernel: Kernel;
  readonly #registry: AttachmentRegistry;
  readonly #events: Events;
  readonly #mtu: () => number;
  readonly #filters: readonly PodFilter[];
  readonly #announce: PodWiringOptions['announce'];
  readonly #onUnsettled: (record: AttachmentRecord) => void;
  readonly #inFlight = new OperationsInFlight();
  #repairCount = 0;

  constructor({
    kernel,
    registry,
    events,
    mtu = () => DEFAULT_MTU_BYTES,
    filters = [],
    announce,
    onUnsettled,
  }: PodWiringOptions) {
    this.#kernel = kernel;
    this.#registry = registry;
    this.#events = events;
    this.#mtu = mtu;
    this.#filters = filters;
    this.#announce = announce;
    this.#onUnsettled = onUnsettled ?? (() => undefined);
  }

  /** Number of repairs of pods that differed from their record. */
  get repairCount(): number {
    return this.#repairCount;
  }

  /**
   * Wires a pod as wanted. Idempotent. A failed call changes nothing, or its message lists the leftovers.
   * @param allocation - the allocation of the addresses, for the record; undefined if they are not podwire-ipam's, or as before
   * @throws Failure INVALID_NETNS, INTERFACE_EXISTS, HOST_INTERFACE_TAKEN, ROUTE_TAKEN, KERNEL_REFUSED, KERNEL_UNSUPPORTED, or
   * the signal's
   */
  attach(network: PodNetwork, signal: AbortSignal, allocation?: RecordedAllocation): Promise<AttachResult> {
    return this.#inFlight.runWiring(network, signal, () =>
      this.#inPod(network.netns, signal, async (session) => {
        const wiring = { wanted: this.#wantedState(network), signal };
        const recorded = { network, allocation };
        const announced = allocation && this.#announce?.(allocation);
        const attached = await this.#withRecord(recorded, session, () => this.#wire(session, wiring));
        await announced;
        this.#events.podAttached(network.hostInterfaceName, attached.changes);
        const record = this.#registry.get(network.attachment);
        if (record?.allocation?.isBound === false || record?.network.otherIpam) this.#onUnsettled(record);
        return attached;
      }),
    );
  }

  /**
   * Removes an attachment's wire by its host end, so that it works when the pod's namespace is gone or replaced. Looks for the
   * end by the caller's name, the recorded name, the derived name, then the alias. The record goes last, and until then prevents
   * a repair of the wire; with an allocation it stays until podwire-ipam has freed the addresses. The caller's namespace is
   * inspected only when there is no record. Idempotent.
   * @returns whether there was one
   * @throws Failure HOST_INTERFACE_TAKEN when the interface of the caller's name was not made for the attachment, and no other
   * was: there is no wire, and the record is gone; KERNEL_REFUSED, or the signal's
   */
  detach(detachment: DetachRequest, signal: AbortSignal): Promise<boolean> {
    return this.#inFlight.runExclusive(detachment, signal, () => this.#unwire(detachment, signal));
  }

  /**
   * Finishes a detach that was interrupted or failed. Does nothing when the attachment was attached again before its turn.
   * @returns whether there was a detach to finish
   * @throws Failure as {@link detach}
   */
  finishDetach(attachment: Attachment, signal: AbortSignal): Promise<boolean> {
    const known = this.#registry.get(attachment);
    if (known?.state !== 'detaching') return Promise.resolve(false);
    const detachment = { attachment, hostInterfaceName: known.network.hostInterfaceName };
    return this.#inFlight.runExclusive(detachment, signal, async () => {
      if (this.#registry.get(attachment)?.state !== 'detaching') return false;
      await this.#unwire(detachment, signal);
      return true;
    });
  }

  /**
   * Compares the kernel with the wanted state, except for the pod's own changes ({@link withPodChanges}). Changes nothing.
   * @throws Failure INVALID_NETNS, KERNEL_REFUSED, or the signal's
   */
  check(network: PodNetwork, signal: AbortSignal): Promise<Difference[]> {
    return this.#inFlight.runExclusive(network, signal, () =>
      this.#inPod(network.netns, signal, async (session) => {
        const wanted = this.#wantedState(network);
        const observed = await this.#observe(session, wanted);
        const found = await wireDifferences(this.#kernel, wanted, observed);
        for (const filter of this.#filters)
          found.push(...((await filter.differences?.(filteredPod({ network }))) ?? []));
        this.#events.podChecked(network.attachment, found);
        return found;
      }),
    );
  }

  /**
   * Makes the kernel match the wanted state like {@link attach}, except for the pod's own changes ({@link withPodChanges}), and
   * returns what it repaired. Observes first, and sends nothing when there are no differences. Idempotent; rolled back on
   * failure.
   * @throws Failure as {@link attach}; ROUTE_TAKEN also when another attachment has received one of the addresses since
   */
  repair(network: PodNetwork, signal: AbortSignal): Promise<readonly Difference[]> {
    return this.#inFlight.runWiring(network, signal, () =>
      this.#inPod(network.netns, signal, (session) => {
        rejectLostAddresses(this.#registry.lostAddresses(network));
        const options: RepairOptions = { signal, skipsLostWire: false };
        return this.#withRecord(
          { network },
          session,
          async () => (await this.#repairDifferences(session, network, options)) ?? [],
        );
      }),
    );
  }

  /**
   * Repairs the differences from an attachment's record while its namespace is the recorded one. Skips the pod's own changes, and
   * the node's routes to addresses that another attachment has received since. Recreates a lost wire only when its addresses are
   * not from IPAM, or IPAM has confirmed them.
   * @param confirmed - the record whose addresses IPAM has confirmed
   * @throws Failure as {@link attach}, but for INVALID_NETNS
   */
  repairRecorded(attachment: Attachment, signal: AbortSignal, confirmed?: AttachmentRecord): Promise<RepairResult> {
    const known = this.#registry.get(attachment);
    if (!known) return Promise.resolve({ outcome: 'not-attached' });
    const { hostInterfaceName } = known.network;
    return this.#inFlight.runExclusive({ attachment, hostInterfaceName }, signal, async () => {
      const record = this.#registry.get(attachment);
      if (record?.state !== 'attached') return { outcome: 'not-attached' };
      const skipsLostWire = record.network.addressesFromIpam === true && record !== confirmed;
      const result = await this.#repairAttached(record, { signal, skipsLostWire });
      if (result.outcome === 'namespace-gone') await this.#releaseFilters(hostInterfaceName);
      return result;
    });
  }

  /**
   * Whether a recorded pod's MAC address differs from its network's request; false when the pod is gone. @throws Failure
   * KERNEL_REFUSED
   */
  async hasChangedMac(attachment: Attachment, signal: AbortSignal): Promise<boolean> {
    const network = this.#registry.get(attachment)?.network;
    if (!network) return false;
    try {
      const link = await this.#inPod(network.netns, signal, (session) => session.podLink(attachment.interfaceName));
      return link !== undefined && link.mac !== network.mac;
    } catch (error) {
      if (error instanceof Failure && error.code === 'INVALID_NETNS') return false;
      throw error;
    }
  }

  /**
   * Runs `work` exclusively for an attachment; without one, for the link of that name.
   * @throws Failure the signal's, and any error of `work`
   */
  runExclusive<Answer>(place: LockKeys, signal: AbortSignal, work: () => Promise<Answer>): Promise<Answer> {
    return this.#inFlight.runExclusive(place, signal, work);
  }

  /** Filters an interface for its current attachment, or no longer when there is none. Never rejects. */
  async updateFilters(hostInterfaceName: string): Promise<void> {
    for (const filter of this.#filters) {
      const holder = this.#registry.byHostInterface(hostInterfaceName);
      // The filter's next write retries a failure.
      await (holder ? filter.install(filteredPod(holder)) : filter.forget(hostInterfaceName)).catch(() => undefined);
    }
  }

  /** Filters an interface that is kept without a record. @throws Failure KERNEL_REFUSED or KERNEL_UNSUPPORTED; the filter retries */
  async adopt(hostInterfaceName: string): Promise<void> {
    for (const filter of this.#filters) await filter.adopt?.(hostInterfaceName);
  }

  /** Whether an operation for the attachment is running or queued: a call, or a repair. */
  isBusy(attachment: Attachment): boolean {
    return this.#inFlight.isBusy(attachment);
  }

  /** The formatted attachments whose wiring calls are running or queued. */
  wiringAttachments(): ReadonlySet<string> {
    return this.#inFlight.wiringAttachments();
  }

  /** Whether a wiring call for the attachment is running or queued. */
  isWiring(attachment: Attachment): boolean {
    return this.#inFlight.isWiring(attachment);
  }

  /** The attachment as the kernel holds it, under any name of its host interface; undefined when it has no wire. */
  async find(attachment: Attachment): Promise<AttachedLink | undefined> {
    const key = formatAttachment(attachment);
    return (await this.#kernel.attachedLinks()).find((each) => formatAttachment(each.attachment) === key);
  }

  /** The attachments that the kernel holds, in the order of their host interfaces' names. */
  list(): Promise<readonly AttachedLink[]> {
    return this.#kernel.attachedLinks();
  }

  /** Resolves when no call is in flight, rollbacks included: the kernel can then be closed. */
  idle(): Promise<void> {
    return this.#inFlight.idle();
  }

  #wantedState(network: PodNetwork): Wanted {
    return wantedState(network, { mtuBytes: this.#mtu() });
  }

  async #wire(session: PodSession, options: WiringOptions, attempts = WIRE_ATTEMPTS_MAX): Promise<AttachResult> {
    const { wanted } = options;
    // If the pod has another interface, a creation that expects an empty namespace would fail, or miss that interface's state.
    const isAlone = !this.#registry.hasOtherInterface(wanted.attachment, session.identity);
    const created = isAlone ? await this.#create(session, options) : undefined;
    if (created) return created;
    try {
      const { observed } = await this.#observeNamed(session, wanted);
      const obstacle = findObstacle(wanted, observed);
      if (obstacle) throw obstacle.failure;
      return await this.#applyChanges(observed, session, options);
    } catch (error) {
      // The conflicting object is gone, as an earlier wire goes with its namespace: try again as a new pod.
      if (attempts <= 1 || !isOfMissingLink(error)) throw error;
      return this.#wire(session, options, attempts - 1);
    }
  }

  /** @returns undefined when something already exists; nothing was changed */
  async #create(session: PodSession, { wanted, signal }: WiringOptions): Promise<AttachResult | undefined> {
    const fresh = diff(wanted, emptyObservation());
    const next: Plan = ({ round, links }) => (round === 0 ? fresh : corrections(wanted, links));
    const created = await transact({ session, signal, next });
    if (!created.applied && (created.errno !== 'EEXIST' || !created.isRolledBack)) throw created.failure;
    if (!created.applied) return undefined;
    this.#registry.noteRules(wanted.attachment, false);
    return this.#resultOf(created);
  }

  /** Observes the pod, and records whether it has, or will have, source routing. */
  async #observe(session: PodSession, wanted: Wanted): Promise<Observed> {
    const observed = await withSpan('podwire.kernel.observe', {}, () => session.observe(wanted));
    const { rules } = withSourceRouting(wanted, observed.pod).pod;
    this.#registry.noteRules(wanted.attachment, rules.length > 0);
    return observed;
  }

  /** Observes after restoring the name of a renamed host end; adds the rename to the differences. */
  async #observeNamed(session: PodSession, wanted: Wanted) {
    const observed = await this.#observe(session, wanted);
    const link = await findRenamedHostLink(this.#kernel, wanted, observed);
    if (!link) return { observed, renamed: [] };
    await this.#kernel.renameHostLink(link, wanted.host.link.name);
    return { observed: await this.#observe(session, wanted), renamed: [renameDifference(wanted, link)] };
  }

  async #unwire({ attachment, hostInterfaceName: name, netns }: DetachRequest, signal: AbortSignal): Promise<boolean> {
    const before = this.#registry.get(attachment);
    const names = [name, before?.network.hostInterfaceName ?? name, derivedName(attachment)];
    const ends = findHostLinks(this.#kernel, attachment, names);
    const [links] = await Promise.all([ends, this.#registry.setState(attachment, 'detaching')]);
    const foreign = links.find((link) => !isMadeFor(link, attachment));
    const made = links.filter((link) => isMadeFor(link, attachment));
    const isUnknown = made.length === 0 && !before && netns !== undefined;
    const own = isUnknown ? await this.#calicoLinks(attachment, netns, signal) : made;
    if (before) await this.#releaseFilters(before.network.hostInterfaceName);
    await this.#removeRules(before, signal);
    const removals = await Promise.all(own.map((link) => this.#delete(link)));
    // Also when the wire went with its namespace.
    const filteredNames = new Set([
      ...own.map(({ name }) => name),
      ...(before ? [before.network.hostInterfaceName] : []),
    ]);
    await Promise.all([...filteredNames].map((name) => this.updateFilters(name)));
    const searchedNetns = before && !this.#registry.mayHaveRules(attachment) ? undefined : netnsToSearch(before, netns);
    const dead = await this.#registry.end(attachment);
    const unsettled = dead ?? (before?.network.otherIpam && before);
    if (unsettled) this.#onUnsettled(unsettled);
    if (searchedNetns) await removeDetachedRules(attachment, this.#rulesIn(searchedNetns, signal));
    // This error must not restore the wire: there is none, and the caller may reuse its addresses.
    if (own.length === 0 && foreign?.name === name) throw hostInterfaceTakenFailure(foreign);
    const removed = removals.includes(true);
    this.#events.podDetached(name, removed);
    return removed;
  }

  /** @returns what Calico's plugin wired for an attachment without a wire of Podwire; empty if its namespace is gone */
  async #calicoLinks(attachment: Attachment, netns: string, signal: AbortSignal): Promise<ObservedLink[]> {
    try {
      const find = (session: PodSession) => findCalicoLink(this.#kernel, session, attachment);
      const link = await this.#inPod(netns, signal, find);
      return link ? [link] : [];
    } catch (error) {
      if (error instanceof Failure && error.code === 'INVALID_NETNS') return [];
      throw error;
    }
  }

  /** Runs before the wire is removed, because the rules refer to its addresses. Skips a pod that is known to have none. */
  async #removeRules(record: AttachmentRecord | undefined, signal: AbortSignal): Promise<void> {
    if (!record || !this.#registry.mayHaveRules(record.network.attachment)) return;
    await removeSourceRules(record, this.#rulesIn(record.network.netns, signal));
  }

  #rulesIn(netns: string, signal: AbortSignal): DetachedRulesOptions {
    return { inPod: (work) => this.#inPod(netns, signal, work), registry: this.#registry, events: this.#events };
  }

  async #applyChanges(
    observed: Observed,
    session: PodSession,
    { wanted, signal }: WiringOptions,
  ): Promise<AttachResult> {
    const steps = diff(wanted, observed);
    const next: Plan = ({ round, links }) => (round === 0 ? steps : corrections(wanted, links));
    const applied = await transact({ session, signal, next });
    if (!applied.applied) throw applied.failure;
    await deleteMovedFlows({ wanted, observed }, { kernel: this.#kernel, events: this.#events });
    return this.#resultOf(applied, observed);
  }

  /** @param observed - the state before; undefined when nothing was there */
  #resultOf({ changes, links, warnings }: Applied, observed?: Observed): AttachResult {
    for (const { step, failure } of warnings) this.#events.optionalStepFailed(step, failure);
    const host = links.host ?? observed?.host.link;
    const pod = links.pod ?? observed?.pod.link;
    if (!host || !pod) throw new Error('an applied plan must leave both links');
    return { host, pod, changes };
  }

  async #repairAttached(record: AttachmentRecord, options: RepairOptions): Promise<RepairResult> {
    try {
      const { netns } = record.network;
      return await this.#inPod(netns, options.signal, (session) => this.#repairIn(session, record, options));
    } catch (error) {
      if (error instanceof Failure && error.code === 'INVALID_NETNS') return { outcome: 'namespace-gone' };
      throw error;
    }
  }

  async #repairIn(session: PodSession, record: AttachmentRecord, options: RepairOptions): Promise<RepairResult> {
    const sameness = compareIdentities(record.identity, session.identity);
    if (sameness === 'other') return { outcome: 'namespace-gone' };
    // Its own wire proves that the namespace is the pod's, where the kernel reports no cookie.
    const isWired = async () => wireState(await this.#observe(session, this.#wantedState(record.network))) === 'paired';
    if (sameness === 'unknown' && !(await isWired())) return { outcome: 'namespace-gone' };
    const repaired = await this.#repairDifferences(session, record.network, options);
    if (!repaired) return { outcome: 'wire-lost', record };
    await removePodOrphanRules(session, { record, registry: this.#registry, events: this.#events });
    return { outcome: 'matches', differences: repaired };
  }

  /** @returns undefined when the whole wire is lost and must not be recreated */
  async #repairDifferences(
    session: PodSession,
    network: PodNetwork,
    options: RepairOptions,
  ): Promise<readonly Difference[] | undefined> {
    const { signal, skipsLostWire } = options;
    const full = this.#wantedState(network);
    const { observed: found, renamed } = await this.#observeNamed(session, full);
    const lost = this.#registry.lostAddresses(network);
    const { wanted: own, observed } = withoutLostRoutes(lost, { wanted: full, observed: found });
    const obstacle = findObstacle(own, observed);
    if (obstacle) throw obstacle.failure;
    if (skipsLostWire && wireState(observed) === 'absent') return undefined;
    const wanted = withPodChanges(own, observed);
    const repaired = [...renamed, ...differences(wanted, observed)];
    if (repaired.length === 0) return repaired;
    await this.#applyChanges(observed, session, { wanted, signal });
    this.#repairCount++;
    this.#events.driftRepaired(wanted.attachment, repaired);
    return repaired;
  }

  /** Stores the record while the kernel works. Restores the earlier record when the wiring fails. */
  async #withRecord<Answer>(
    {
      network,
      allocation,
    }: Pick<AttachmentRecord, 'network'> & { readonly allocation?: RecordedAllocation | undefined },
    session: PodSession,
    wire: () => Promise<Answer>,
  ): Promise<Answer> {
    const before = this.#registry.get(network.attachment);
    const known = allocation ?? before?.allocation;
    const wiring = this.#installFilters({ network, ...(known && { allocation: known }) }).then(wire);
    const recording = this.#registry.record(network, session.identity, allocation);
    try {
      return (await Promise.all([wiring, recording]))[0];
    } catch (error) {
      await recording;
      await this.#registry.restore(network.attachment, before);
      await this.updateFilters(network.hostInterfaceName);
      throw error;
    }
  }

  async #installFilters(record: Pick<AttachmentRecord, 'network' | 'allocation'>): Promise<void> {
    for (const filter of this.#filters) await filter.install(filteredPod(record));
  }

  /** Ends what leads packets to an interface. Never rejects: the filter's next write retries a failure. */
  async #releaseFilters(hostInterfaceName: string): Promise<void> {
    for (const filter of this.#filters) await filter.release?.(hostInterfaceName).catch(() => undefined);
  }

  #delete(link: ObservedLink): Promise<boolean> {
    const attributes = { 'podwire.kernel.namespace': 'host', 'podwire.kernel.requests': 1 };
    return withSpan('podwire.kernel.batch', attributes, () => this.#kernel.deleteHostLink(link));
  }

  async #inPod<Answer>(
    netns: string,
    signal: AbortSignal,
    work: (session: PodSession) => Promise<Answer>,
  ): Promise<Answer> {
    const session = await withSpan('podwire.kernel.open', {}, () => this.#kernel.open(netns));
    try {
      return await this.#inFlight.runInPod(session.identity, signal, () => work(session));
    } finally {
      // Runs in the background: it changes nothing, and cannot fail.
      this.#inFlight.track(session.close());
    }
  }
}

interface RepairOptions {
  readonly signal: AbortSignal;
  /** Reports a lost wire instead of recreating it. */
  readonly skipsLostWire: boolean;
}

type Plan = TransactionOptions['next'];

interface WiringOptions {
  readonly wanted: Wanted;
  readonly signal: AbortSignal;
}

/** Attempts; each follows a conflict that vanished while it was inspected. */
const WIRE_ATTEMPTS_MAX = 3;
