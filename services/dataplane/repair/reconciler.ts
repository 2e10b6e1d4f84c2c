import { setMaxListeners } from 'node:events';

import { formatAttachment, parseAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { forEachConcurrently } from '@podwire/shared/reconcile/concurrently';
import { WorkQueue, type NextRun } from '@podwire/shared/reconcile/work-queue';
import type { Clock } from '@podwire/shared/runtime/clock';
import { Failure } from '@podwire/shared/failure/failure';

import type { Condition } from '../conditions/conditions.js';
import { ConditionReporter } from '../conditions/reporter.js';
import { addressConflicts } from '../pods/conflicts.js';
import type { AttachmentEvents } from '../pods/events.js';
import type { Kernel } from '../pods/kernel.js';
import type { PodWiring } from '../pods/pods.js';
import type { AttachmentRecord } from '../records/record.js';
import type { AttachmentRegistry } from '../records/registry.js';
import { LostWireQueue, type EndpointLookup } from './lost-wires.js';
import { OrphanCollector } from './orphans.js';
import { recover, type RecoveryScope, type RepairOutcome } from './recovery.js';

/** Mean time between two checks for dead namespaces: both observations fit well within a minute. */
const SWEEP_INTERVAL_MS = 15_000;

/** Mean time between two full checks of all recorded pods. */
const CHECK_INTERVAL_MS = 90_000;

/** Kernel events within this time after a wiring may be caused by the wiring. */
const WIRING_EVENTS_MS = 2000;

/**
 * Events later than this may be an operator's change, and are checked when WIRING_EVENTS_MS ends: the kernel reports a wiring
 * within 10 ms.
 */
const WIRING_REPORTED_MS = 500;

/**
 * A requested check of all pods waits this many times the duration of the last one, so checks take at most a tenth of the time.
 */
const CHECK_PAUSE_FACTOR = 9;

/** Largest relative deviation of an interval from its mean, so that nodes that start together drift apart. */
const JITTER = 0.2;

/** Work for all pods; `lost-wires` waits for IPAM, which may answer late or not at all. */
type Task = 'recover' | 'check' | 'sweep' | 'lost-wires';

/** Late checks at the end of an interface's wiring time; `all` includes `mac`. */
type LateCheck = 'mac' | 'all';

/** Task name for the log. */
const RECOVERY = 'recovery of attachments from the previous process';

/** Concurrent checks of pods: leaves the other threads of the service to calls. */
const CHECKS_AT_ONCE = 2;

/** Additional concurrent repairs triggered by kernel events: all pods of a node may be changed at once. */
const REPAIRS_AT_ONCE = 4;

interface Unreadable {
  readonly attachment: Attachment;
  readonly failure: Failure;
}

interface ReconcilerOptions {
  readonly kernel: Kernel;
  readonly dataplane: PodWiring;
  readonly registry: AttachmentRegistry;
  readonly endpoint: EndpointLookup;
  readonly events: AttachmentEvents;
  readonly clock: Clock;
  /** Uniform in [0, 1). */
  readonly random: () => number;
  /** Called when the addresses of a record have to be returned to podwire-ipam. Must not throw. */
  readonly onUnsettled?: ((record: AttachmentRecord) => void) | undefined;
}

/**
 * Repairs and recovers the attachments of a node outside of calls, from start to stop. A call waits only for work on its own pod.
 */
export class AttachmentReconciler {
  readonly #options: ReconcilerOptions;
  readonly #orphans: OrphanCollector;
  readonly #lostWires: LostWireQueue;
  readonly #reporter: ConditionReporter;
  readonly #stopped = new AbortController();
  /** Attachments whose last repair could not read the pod. */
  readonly #unreadable = new Map<string, Unreadable>();
  readonly #tasks: WorkQueue<Task>;
  /** Repairs that kernel events cause, by attachment. */
  readonly #repairs: WorkQueue<string>;
  /** Runs of {@link #lateChecks}, by host interface. */
  readonly #lateQueue: WorkQueue<string>;
  readonly #lateChecks = new Map<string, LateCheck>();
  /** The scope of a recovery that is still incomplete. */
  #pendingRecovery: RecoveryScope | undefined;
  /** End and duration of the last check of all pods. */
  #lastCheck = { atMs: 0, tookMs: 0 };
  #isStarted = false;

  constructor(options: ReconcilerOptions) {
    this.#options = options;
    this.#orphans = new OrphanCollector(options);
    const restore = (record: AttachmentRecord) => this.#repair(record.network.attachment, record);
    this.#lostWires = new LostWireQueue({ restore, ...options });
    this.#reporter = new ConditionReporter(options);
    this.#tasks = this.#queue((task: Task) => this.#run(task));
    this.#repairs = this.#queue((key: string) => this.#repairChanged(key), REPAIRS_AT_ONCE);
    this.#lateQueue = this.#queue((name: string) => this.#runLateCheck(name));
    // Every concurrent check adds a listener; Node warns of a leak above ten.
    setMaxListeners(0, this.#stopped.signal);
  }

  /** Starts the work; returns at once. */
  start(): void {
    this.#isStarted = true;
    this.#tasks.request('recover');
    this.#tasks.request('sweep', this.#jittered(SWEEP_INTERVAL_MS));
    this.#tasks.request('lost-wires');
  }

  async #run(task: Task): Promise<NextRun | undefined> {
    switch (task) {
      case 'recover':
        await this.#try(RECOVERY, () => this.recover());
        this.#tasks.request('check', this.#jittered(CHECK_INTERVAL_MS));
        return undefined;
      case 'check': {
        const { atMs, tookMs } = this.#lastCheck;
        const pauseMs = Math.min(CHECK_PAUSE_FACTOR * tookMs, CHECK_INTERVAL_MS);
        const leftMs = pauseMs - (this.#options.clock.monotonicMs() - atMs);
        if (leftMs > 0) return { inMs: leftMs };
        await this.#try('check of all pods', () => this.check());
        return { inMs: this.#jittered(CHECK_INTERVAL_MS) };
      }
      case 'sweep':
      case 'lost-wires': {
        const work = () => (task === 'sweep' ? this.sweep() : this.processLostWires());
        await this.#try('periodic check of attachments', work);
        return { inMs: this.#jittered(SWEEP_INTERVAL_MS) };
      }
    }
  }

  #queue<Key>(reconcile: (key: Key) => Promise<NextRun | undefined>, concurrency?: number): WorkQueue<Key> {
    const onFailure = (defect: unknown): void => {
      throw defect;
    };
    return new WorkQueue({
      reconcile,
      retryInMs: () => 0,
      onFailure,
      clock: this.#options.clock,
      ...(concurrency && { concurrency }),
    });
  }

  #jittered(meanMs: number): number {
    return meanMs * (1 + JITTER * (2 * this.#options.random() - 1));
  }

  /** Conditions of the attachments. */
  conditions(): readonly Condition[] {
    const { registry } = this.#options;
    for (const [key, { attachment }] of this.#unreadable)
      if (registry.get(attachment)?.state !== 'attached') this.#unreadable.delete(key);
    const unreadable = [...this.#unreadable].map(([key, { failure }]) => ({
      reason: 'PodUnreadable',
      message: `${key} is neither checked nor repaired: ${failure.message}`,
    }));
    return [...addressConflicts(registry.sharedAddresses()), ...unreadable];
  }

  /** Resolves when no work is in flight. Pods keep their networks. */
  async stop(): Promise<void> {
    this.#stopped.abort();
    await Promise.all([this.#tasks.stop(), this.#repairs.stop(), this.#lateQueue.stop()]);
  }

  /**
   * Queues a repair of the attachment with this host interface, if there is one. Called on kernel events; several events before
   * the repair starts cause one repair. Returns at once.
   */
  repairByHostInterface(name: string): void {
    const record = this.#options.registry.byHostInterface(name);
    if (!record || this.#stopped.signal.aborted) return;
    this.#repairs.request(formatAttachment(record.network.attachment));
  }

  async #repairChanged(key: string): Promise<undefined> {
    // A call that wires it causes these events.
    await new Promise((resolve) => setImmediate(resolve));
    const attachment = parseAttachment(key);
    if (attachment && !this.#isStopped() && !this.#options.dataplane.isWiring(attachment))
      await this.#repair(attachment);
  }

  /**
   * Handles the kernel's event of a changed link: repairs changes by operators and other programs at once. Events right after a
   * wiring count as the wiring's own, and cause only a later check of the MAC address. Events that are slightly later, or that no
   * wiring causes, lead to a full check when the wiring time is over. Returns at once.
   * @param name - undefined when events were lost: any pod may have changed
   * @param isForeignChange - whether the change cannot come from a wiring
   */
  handleLinkChange(name: string | undefined, isForeignChange = false): void {
    if (name === undefined) {
      this.checkSoon();
      return;
    }
    const { registry, clock } = this.#options;
    const record = registry.byHostInterface(name);
    if (!record) return;
    const sinceMs = clock.nowMs() - record.updatedAtMs;
    const leftMs = WIRING_EVENTS_MS - sinceMs;
    const isForeign = isForeignChange && !this.#options.dataplane.isWiring(record.network.attachment);
    // Negative after the clock was set back: the wiring time is unknown.
    if (leftMs <= 0 || sinceMs < 0 || isForeign) this.repairByHostInterface(name);
    else if (sinceMs >= WIRING_REPORTED_MS || isForeignChange || needsLateCheck(record))
      this.#checkLater(name, leftMs, 'all');
    else this.#checkLater(name, leftMs, 'mac');
  }

  /**
   * Checks the interface when its wiring time is over.
   * - `mac`: a later plugin of the chain (`tuning`) may change the pod's MAC address, without an event to the node.
   * - `all`: for example, systemd sets `rp_filter` of each new interface to 2 (50-default.conf) without a kernel event, which
   *   cuts a pod off from its additional IPv4 source prefixes.
   */
  #checkLater(name: string, afterMs: number, check: LateCheck): void {
    if (this.#lateChecks.get(name) !== 'all') this.#lateChecks.set(name, check);
    this.#lateQueue.request(name, afterMs);
  }

  async #runLateCheck(name: string): Promise<undefined> {
    const check = this.#lateChecks.get(name);
    this.#lateChecks.delete(name);
    // A rewiring meanwhile starts the wiring time again.
    if (check === 'all') this.handleLinkChange(name);
    const { registry, dataplane } = this.#options;
    const record = registry.byHostInterface(name);
    if (check !== 'mac' || !record) return;
    await this.#try(`MAC address check of the pod of ${name}`, async () => {
      const hasChanged = await dataplane.hasChangedMac(record.network.attachment, this.#stopped.signal);
      if (hasChanged) this.repairByHostInterface(name);
    });
  }

  /**
   * Runs once after the start; {@link check} repeats what failed. @throws Failure KERNEL_REFUSED when the kernel cannot be
   * queried
   */
  async recover(): Promise<void> {
    const scope = this.#pendingRecovery ?? 'all';
    this.#pendingRecovery = scope;
    this.#reporter.report(this.conditions());
    const repair = (attachment: Attachment) => this.#repairRecorded(attachment);
    const isClean = await recover({ repair, ...this.#options }, scope, this.#stopped.signal);
    this.#reporter.report(this.conditions());
    this.#pendingRecovery = isClean ? undefined : 'incomplete';
  }

  /**
   * Compares every recorded pod with the kernel, and repairs it. Retries pending work: storing records, finishing failed
   * detaches, and the rest of the recovery.
   */
  async check(): Promise<void> {
    const { clock } = this.#options;
    const sinceMs = clock.monotonicMs();
    try {
      await this.#checkAll();
    } finally {
      const atMs = clock.monotonicMs();
      this.#lastCheck = { atMs, tookMs: atMs - sinceMs };
    }
  }

  async #checkAll(): Promise<void> {
    const { registry } = this.#options;
    const { signal } = this.#stopped;
    await registry.flush();
    this.#reporter.report(this.conditions());
    if (this.#pendingRecovery) await this.#try(RECOVERY, () => this.recover());
    await forEachConcurrently(registry.all(), CHECKS_AT_ONCE, async ({ network: { attachment }, state }) => {
      if (signal.aborted) return;
      if (state === 'detaching') await this.#finishDetach(attachment);
      else await this.#repair(attachment);
    });
  }

  /**
   * Checks every recorded pod soon, because wanted or actual state may have changed for all. Repeated requests take at most a
   * tenth of the time. Returns at once.
   */
  checkSoon(): void {
    this.#tasks.request('check');
  }

  /** Checks for dead namespaces. @throws Failure KERNEL_REFUSED */
  sweep(): Promise<void> {
    return this.#orphans.sweep(this.#stopped.signal);
  }

  /** Asks IPAM about lost wires. Retries unanswered requests. */
  processLostWires(): Promise<void> {
    return this.#lostWires.process(this.#stopped.signal);
  }

  async #repair(attachment: Attachment, confirmed?: AttachmentRecord): Promise<void> {
    await this.#try(`repair of ${formatAttachment(attachment)}`, async () => {
      const { outcome } = await this.#repairRecorded(attachment, confirmed);
      if (outcome === 'unreadable') this.#reporter.report(this.conditions());
    });
  }

  /**
   * Repairs the differences from an attachment's record. Skips a pod that cannot be read until the next repair; queues a wire
   * that is lost.
   * @param confirmed - the record whose addresses IPAM has confirmed
   * @throws Failure as PodWiring.repairRecorded, but for POD_UNREADABLE
   */
  async #repairRecorded(attachment: Attachment, confirmed?: AttachmentRecord): Promise<RepairOutcome> {
    const key = formatAttachment(attachment);
    try {
      const result = await this.#options.dataplane.repairRecorded(attachment, this.#stopped.signal, confirmed);
      this.#unreadable.delete(key);
      if (result.outcome !== 'wire-lost') return result;
      this.#lostWires.add(result.record);
      if (this.#isStarted) this.#tasks.request('lost-wires');
      return result;
    } catch (failure) {
      if (!(failure instanceof Failure) || failure.code !== 'POD_UNREADABLE') throw failure;
      this.#unreadable.set(key, { attachment, failure });
      return { outcome: 'unreadable' };
    }
  }

  async #finishDetach(attachment: Attachment): Promise<void> {
    const { dataplane } = this.#options;
    await this.#try(`detach of ${formatAttachment(attachment)}`, () =>
      dataplane.finishDetach(attachment, this.#stopped.signal),
    );
  }

  #isStopped(): boolean {
    return this.#stopped.signal.aborted;
  }

  /** Failures are reported and retried. */
  async #try(task: string, work: () => Promise<unknown>): Promise<void> {
    try {
      await work();
    } catch (error) {
      if (!this.#stopped.signal.aborted) this.#options.events.taskFailed(task, error);
    }
  }
}

/** Whether its interface needs a setting that other programs change after the wiring. */
function needsLateCheck({ network }: AttachmentRecord): boolean {
  return network.sourcePrefixes.some(({ family }) => family === 4);
}
