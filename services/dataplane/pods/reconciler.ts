import { setMaxListeners } from 'node:events';

import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { Condition } from '../conditions/conditions.js';
import { ConditionTeller } from '../conditions/reporter.js';
import { addressConflicts } from './conflicts.js';
import type { AttachmentEvents } from './events.js';
import type { Kernel } from './kernel.js';
import { LostWires } from './lost-wires.js';
import { Mender } from './mender.js';
import { DeadNamespaces, releaseEarlierBoots, type AddressBook, type Boot } from './orphans.js';
import type { Dataplane } from './pods.js';
import type { AttachmentRecord } from './record.js';
import { forEachFew, recover, type RecoveryScope } from './recovery.js';
import type { AttachmentRegistry } from './registry.js';

/** Mean time between two looks for dead namespaces: two looks, and what they take, are well within a minute. */
const SWEEP_INTERVAL_MS = 15_000;

/** Mean time between two full checks of all recorded pods. */
const CHECK_INTERVAL_MS = 90_000;

/** For so long after a pod was wired the kernel may tell of that. */
const WIRING_TOLD_MS = 2000;

/** What it tells later than this may be somebody's doing, and is looked at when that time is over: a wiring is told within 10 ms of its end. */
const WIRING_ANSWERED_MS = 500;

/** A check of all pods that changes ask for waits for this many times what the last one took: a tenth of the time at most. */
const CHECK_PAUSE_FACTOR = 9;

/** How far times between repetitions are from their mean at most, as a part of it: nodes that start together drift apart. */
const JITTER = 0.2;

/** For the log. */
const RECOVERY = 'recovery of what the process before has left';

/** Pods that are checked at a time: the rest of the service's threads is for calls. */
const CHECKS_AT_ONCE = 2;

/** Pods that are repaired at a time because of what the kernel told, beside those: all of a node's may have been changed at once. */
const REPAIRS_AT_ONCE = 4;

interface KeeperOptions {
  readonly kernel: Kernel;
  readonly dataplane: Dataplane;
  readonly registry: AttachmentRegistry;
  readonly addressBook: AddressBook;
  readonly events: AttachmentEvents;
  readonly clock: Clock;
  /** From 0 (included) to 1 (excluded). */
  readonly random: () => number;
  readonly nodeName: string;
  readonly boot: Boot;
}

/** Looks after the attachments of a node outside of calls, from its start to its end. No call ever waits for it but for its own pod. */
export class AttachmentKeeper {
  readonly #options: KeeperOptions;
  readonly #dead: DeadNamespaces;
  readonly #mender: Mender;
  readonly #lostWires: LostWires;
  readonly #teller: ConditionTeller;
  readonly #stopped = new AbortController();
  readonly #work = new Set<Promise<void>>();
  /** Attachments whose repair was asked for, and has not begun, in that order. */
  readonly #waiting = new Map<string, Attachment>();
  #repairers = 0;
  /** Host interfaces that are looked at once more when their wiring is over. */
  readonly #watched = new Set<string>();
  /** Those whose pod's MAC address is looked at then. */
  readonly #macWatched = new Set<string>();
  /** What the recovery could not do. */
  #toRecover: RecoveryScope | undefined;
  #earlierBootsDone = false;
  #isCheckAsked = false;
  #checking: Promise<void> = Promise.resolve();
  /** When the last check of all pods ended, and what it took. */
  #checked = { atMs: 0, tookMs: 0 };
  /** Ends the pause before addresses are next given back. */
  #hurry = new AbortController();

  constructor(options: KeeperOptions) {
    this.#options = options;
    this.#dead = new DeadNamespaces(options);
    const restore = (record: AttachmentRecord) => this.#mend(record.network.attachment, record);
    this.#lostWires = new LostWires({ restore, ...options });
    const onLostWire = (record: AttachmentRecord): void => {
      this.#lostWires.add(record);
      this.#hurry.abort();
    };
    this.#mender = new Mender({ onLostWire, ...options });
    this.#teller = new ConditionTeller(options);
    // Each pod that is looked at later, or waits for a call, listens to it; Node would take more than ten for a leak, and say so.
    setMaxListeners(0, this.#stopped.signal);
  }

  /** Begins to work; returns at once. */
  start(): void {
    this.#spawn(async () => {
      await this.#attempt(RECOVERY, () => this.recover());
      await this.#repeat(CHECK_INTERVAL_MS, () => this.check());
    });
    this.#spawn(() => this.#repeat(SWEEP_INTERVAL_MS, () => this.sweep()));
    // By itself, as IPAM may take its time to answer, or not to.
    this.#spawn(async () => {
      await this.giveBack();
      await this.#repeat(
        SWEEP_INTERVAL_MS,
        () => this.giveBack(),
        () => this.#hurry.signal,
      );
    });
  }

  /** What an operator should know of the attachments. */
  conditions(): readonly Condition[] {
    return [...addressConflicts(this.#options.registry.sharedAddresses()), ...this.#mender.conditions()];
  }

  /** Resolves when nothing is under way any more. Pods keep what they have. */
  async stop(): Promise<void> {
    this.#stopped.abort();
    while (this.#work.size > 0) await Promise.allSettled(this.#work);
  }

  /**
   * Mends the attachment whose host interface has the name, if one has. For whoever hears of changes from the kernel: several that
   * come while one waits are one repair. Returns at once.
   */
  repairByHostInterface(name: string): void {
    const record = this.#options.registry.byHostInterface(name);
    if (!record || this.#stopped.signal.aborted) return;
    const { attachment } = record.network;
    const key = formatAttachment(attachment);
    if (this.#waiting.has(key)) return;
    this.#waiting.set(key, attachment);
    if (this.#repairers < REPAIRS_AT_ONCE) this.#spawn(() => this.#repairWaiting());
  }

  async #repairWaiting(): Promise<void> {
    this.#repairers++;
    for (const [key, attachment] of this.#waiting) {
      // A call that wires it makes changes of its own, and is told of them here.
      await new Promise((resolve) => setImmediate(resolve));
      // Another may have taken it meanwhile.
      if (!this.#waiting.delete(key)) continue;
      if (!this.#isStopped() && !this.#options.dataplane.isWiring(attachment)) await this.#mend(attachment);
    }
    this.#repairers--;
  }

  /**
   * The kernel told of a change of a link of the node: what was done to a pod by hand is mended at once. What is told right after the
   * pod was wired is its wiring, unless that does no such thing, and what is told a little later is looked at when that can be no more.
   * Returns at once.
   * @param name - undefined when changes were lost: any pod may be another than it was
   * @param isMeddledWith - whether no wiring does what was done
   */
  heardOf(name: string | undefined, isMeddledWith = false): void {
    if (name === undefined) {
      this.checkSoon();
      return;
    }
    const { registry, clock } = this.#options;
    const record = registry.byHostInterface(name);
    if (!record) return;
    const sinceMs = clock.nowMs() - record.updatedAtMs;
    const leftMs = WIRING_TOLD_MS - sinceMs;
    // A clock that was set back says nothing about the wiring.
    const isSomebodys = isMeddledWith && !this.#options.dataplane.isWiring(record.network.attachment);
    if (leftMs <= 0 || sinceMs < 0 || isSomebodys) this.repairByHostInterface(name);
    else if (sinceMs >= WIRING_ANSWERED_MS || isMeddledWith || isLoose(record)) this.#lookLater(name, leftMs);
    else this.#followMac(name, leftMs);
  }

  /** A later plugin of the chain may give the pod another MAC address after the wiring (`tuning`), of which the node is told nothing. */
  #followMac(name: string, afterMs: number): void {
    if (this.#watched.has(name) || this.#macWatched.has(name) || this.#stopped.signal.aborted) return;
    this.#macWatched.add(name);
    const { registry, dataplane, clock } = this.#options;
    const { signal } = this.#stopped;
    this.#spawn(async () => {
      await clock.sleep(afterMs, signal);
      // Otherwise all of it is looked at, or was.
      const isDue = this.#macWatched.delete(name);
      const record = registry.byHostInterface(name);
      if (!isDue || !record || signal.aborted) return;
      await this.#attempt(`look at the MAC address behind ${name}`, async () => {
        if (await dataplane.hasOwnMac(record.network.attachment, signal)) this.repairByHostInterface(name);
      });
    });
  }

  /**
   * Where systemd runs, it sets `rp_filter` of each interface that appears to 2 (its 50-default.conf), which the kernel tells nobody
   * of, and a pod that may send from further IPv4 prefixes is then cut off from them.
   */
  #lookLater(name: string, afterMs: number): void {
    if (this.#watched.has(name) || this.#stopped.signal.aborted) return;
    this.#watched.add(name);
    this.#macWatched.delete(name);
    this.#spawn(async () => {
      await this.#options.clock.sleep(afterMs, this.#stopped.signal);
      this.#watched.delete(name);
      // The interface may have been wired once more meanwhile, and has its two seconds then.
      this.heardOf(name);
    });
  }

  /** Once after the start; {@link check} repeats what fails of it. @throws Failure KERNEL_REFUSED when the kernel cannot be asked */
  async recover(): Promise<void> {
    const scope = this.#toRecover ?? 'all';
    this.#toRecover = scope;
    this.#teller.tell(this.conditions());
    const isClean = await recover({ mender: this.#mender, ...this.#options }, scope, this.#stopped.signal);
    this.#teller.tell(this.conditions());
    this.#toRecover = isClean ? undefined : 'half made';
  }

  /**
   * Compares every recorded pod with the kernel, and mends it; does what could not be done before: stores records, finishes detaches
   * that failed, and recovers what the kernel kept from it.
   */
  async check(): Promise<void> {
    const { clock } = this.#options;
    const sinceMs = clock.nowMs();
    this.#checking = this.#checkAll();
    try {
      await this.#checking;
    } finally {
      this.#checked = { atMs: clock.nowMs(), tookMs: clock.nowMs() - sinceMs };
    }
  }

  async #checkAll(): Promise<void> {
    const { registry } = this.#options;
    const { signal } = this.#stopped;
    await registry.flush();
    this.#teller.tell(this.conditions());
    if (this.#toRecover) await this.#attempt(RECOVERY, () => this.recover());
    await forEachFew(registry.all(), CHECKS_AT_ONCE, async ({ network: { attachment }, state }) => {
      if (signal.aborted) return;
      if (state === 'detaching') await this.#finishDetach(attachment);
      else await this.#mend(attachment);
    });
  }

  /**
   * Checks every recorded pod soon, as what is wanted of all of them may be something else, or what is there. Asked for again and again
   * it takes a tenth of the time at most. Returns at once.
   */
  checkSoon(): void {
    if (this.#isCheckAsked || this.#isStopped()) return;
    this.#isCheckAsked = true;
    this.#spawn(async () => {
      // One that is under way may have looked before.
      await this.#checking.catch(() => undefined);
      const { clock } = this.#options;
      const { atMs, tookMs } = this.#checked;
      const fullMs = Math.min(CHECK_PAUSE_FACTOR * tookMs, CHECK_INTERVAL_MS);
      const pauseMs = fullMs - Math.max(0, clock.nowMs() - atMs);
      if (pauseMs > 0) await clock.sleep(pauseMs, this.#stopped.signal);
      this.#isCheckAsked = false;
      if (!this.#isStopped()) await this.#attempt('check of all pods', () => this.check());
    });
  }

  /** Looks for the dead; those that are found give back what they had at once. @throws Failure KERNEL_REFUSED */
  async sweep(): Promise<void> {
    if ((await this.#dead.sweep(this.#stopped.signal)) > 0) this.#hurry.abort();
  }

  /**
   * Gives back to IPAM what the dead had, and the pods of earlier boots, and asks it about wires that are lost. What it does not answer is
   * repeated.
   */
  async giveBack(): Promise<void> {
    this.#hurry = new AbortController();
    await this.#releaseEarlierBoots();
    await this.#dead.giveBack(this.#stopped.signal);
    await this.#lostWires.settle(this.#stopped.signal);
  }

  async #releaseEarlierBoots(): Promise<void> {
    if (this.#earlierBootsDone) return;
    try {
      await releaseEarlierBoots(this.#options, this.#stopped.signal);
      this.#earlierBootsDone = true;
    } catch (failure) {
      if (!this.#stopped.signal.aborted) this.#options.events.releasesDelayed(1, failure);
    }
  }

  async #mend(attachment: Attachment, confirmed?: AttachmentRecord): Promise<void> {
    await this.#attempt(`repair of ${formatAttachment(attachment)}`, async () => {
      const { outcome } = await this.#mender.mend(attachment, this.#stopped.signal, confirmed);
      if (outcome === 'unreadable') this.#teller.tell(this.conditions());
    });
  }

  async #finishDetach(attachment: Attachment): Promise<void> {
    const { dataplane } = this.#options;
    await this.#attempt(`detach of ${formatAttachment(attachment)}`, () =>
      dataplane.finishDetach(attachment, this.#stopped.signal),
    );
  }

  /** @param hurry - ends the pause that is under way, where there is something to be done sooner */
  async #repeat(intervalMs: number, work: () => Promise<void>, hurry?: () => AbortSignal): Promise<void> {
    const { clock, random } = this.#options;
    const { signal: stopped } = this.#stopped;
    while (!this.#isStopped()) {
      const durationMs = intervalMs * (1 + JITTER * (2 * random() - 1));
      await clock.sleep(durationMs, hurry ? AbortSignal.any([stopped, hurry()]) : stopped);
      if (!this.#isStopped()) await this.#attempt('looking after attachments', work);
    }
  }

  #isStopped(): boolean {
    return this.#stopped.signal.aborted;
  }

  /** What fails is told and comes again. */
  async #attempt(what: string, work: () => Promise<unknown>): Promise<void> {
    try {
      await work();
    } catch (error) {
      if (!this.#stopped.signal.aborted) this.#options.events.failed(what, error);
    }
  }

  #spawn(work: () => Promise<void>): void {
    const running = work().finally(() => this.#work.delete(running));
    this.#work.add(running);
  }
}

/** Whether its interface needs a setting that others are known to change after the wiring. */
function isLoose({ network }: AttachmentRecord): boolean {
  return network.sourcePrefixes.some(({ family }) => family === 4);
}
