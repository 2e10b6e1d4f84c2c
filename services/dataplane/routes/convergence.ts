import type { Failure } from '@podwire/shared/failure/failure';
import { backoffMs, type BackoffBounds } from '@podwire/shared/reconcile/schedule';
import type { Clock } from '@podwire/shared/runtime/clock';

import { diffDevices, diffDeviceObjects, diffRoutes, diffOrphanRoutes, diffSurplus } from './diff.js';
import type { NodeKernel } from './kernel.js';
import { NodeStateCache } from './node-state-cache.js';
import { equalRoutes } from './observed.js';
import { formatNodeStep, hasSideEffects, objectOf, stepKey, type NodeObject, type NodeStep } from './step.js';
import type { NodeRoute, WantedNode } from './wanted.js';

/** The objects that may differ from the wanted state. */
export interface DiffScope {
  /** Destinations. */
  readonly routes: ReadonlySet<string> | 'all';
  /** Whether to compare devices, objects on them, and settings. */
  readonly hasDevices: boolean;
}

/** A difference that another program caused. */
interface Drift {
  readonly counts: ReadonlyMap<NodeObject, number>;
  /** One of the steps that repair it. */
  readonly example: NodeStep;
}

interface ConvergenceOptions {
  readonly kernel: NodeKernel;
  readonly backoff: StepBackoff;
  readonly wanted: WantedNode;
  readonly known: NodeStateCache;
  readonly scope: DiffScope;
  /** Whether another program caused the difference that a step repairs. */
  readonly isDrift: (step: NodeStep) => boolean;
}

export interface ConvergenceResult {
  /** The kernel's known state afterwards. */
  readonly known: NodeStateCache;
  readonly done: number;
  readonly refused: number;
  /** Undefined: no other program changed the kernel. */
  readonly drift: Drift | undefined;
}

/** One round for devices, one for objects on them, and more for differences found meanwhile. The next check does the rest. */
const ROUNDS_MAX = 5;

/** The kernel's errors for deleting an object that does not exist. */
const MISSING_ERRNOS = ['ENODEV', 'ESRCH', 'ENOENT', 'EADDRNOTAVAIL'];

/**
 * Reconciles the kernel where it may differ from the wanted state: devices first, then, from the state after that, everything
 * else. A refused step does not stop further steps.
 */
export class Convergence {
  readonly #options: ConvergenceOptions;
  #known: NodeStateCache;
  #scope: DiffScope;
  #done = 0;
  #refused = 0;
  readonly #drift = new Map<NodeObject, number>();
  #example: NodeStep | undefined;
  /** Whether the kernel was read again after Podwire's own changes. The cause of a difference is unknown then. */
  #isReread = false;

  constructor(options: ConvergenceOptions) {
    this.#options = options;
    this.#known = options.known;
    this.#scope = options.scope;
  }

  /** @throws Failure when the kernel cannot be read */
  async run(): Promise<ConvergenceResult> {
    await this.#readUnknownSysctls();
    for (let round = 0; round < ROUNDS_MAX; round++) {
      const due = this.#due(this.#steps());
      if (due.length === 0) break;
      const needsReread = await this.#apply(due);
      if (!needsReread) break;
      await this.#reread();
    }
    return { known: this.#known, done: this.#done, refused: this.#refused, drift: this.#driftResult() };
  }

  /** The next steps: for the devices alone, while they differ. */
  #steps(): NodeStep[] {
    const { wanted, backoff } = this.#options;
    const known = this.#known;
    const { routes, hasDevices } = this.#scope;
    const devices = hasDevices ? diffDevices(wanted, known) : [];
    if (devices.some((step) => !backoff.isHeld(step))) return devices;
    const { deletedFirst, set, deleted } = diffRoutes(
      routes === 'all' ? allDestinations(wanted, known) : routes,
      wanted,
      known,
    );
    const orphans = routes === 'all' ? diffOrphanRoutes(known) : [];
    // An orphan route in the place of a route to be replaced must be deleted first.
    const steps = hasDevices
      ? [
          ...devices,
          ...diffDeviceObjects(wanted, known),
          ...orphans,
          ...deletedFirst,
          ...set,
          ...deleted,
          ...diffSurplus(wanted, known),
        ]
      : [...orphans, ...deletedFirst, ...set, ...deleted];
    const keys = new Set(steps.map(stepKey));
    if (routes === 'all' && hasDevices) backoff.retain(keys);
    else if (routes !== 'all') for (const destination of routes) recordReached(destination, { keys, backoff });
    return steps;
  }

  #due(steps: readonly NodeStep[]): NodeStep[] {
    const { backoff, isDrift } = this.#options;
    const due: NodeStep[] = [];
    for (const step of steps) {
      if (backoff.isHeld(step)) continue;
      if (!this.#isReread && isDrift(step)) {
        this.#drift.set(objectOf(step), (this.#drift.get(objectOf(step)) ?? 0) + 1);
        this.#example ??= step;
        backoff.recordDrift(step);
        if (backoff.isHeld(step)) continue;
      }
      due.push(step);
    }
    return due;
  }

  /** @returns whether the kernel has to be read again */
  async #apply(steps: readonly NodeStep[]): Promise<boolean> {
    const { backoff, kernel } = this.#options;
    const refusals = await kernel.apply(steps);
    let needsReread = false;
    const failed = new Set<string>();
    for (const [position, step] of steps.entries()) {
      const refusal = refusals[position];
      const isApplied = !refusal || (step.type.endsWith('-delete') && MISSING_ERRNOS.includes(refusal.errno));
      const key = stepKey(step);
      if (isApplied) {
        this.#done++;
        this.#known.advance(step);
        if (!failed.has(key)) backoff.recordSuccess(key);
        needsReread ||= hasSideEffects(step);
        continue;
      }
      this.#refused++;
      const isFirst = !failed.has(key) && backoff.recordRefusal(step, refusal);
      failed.add(key);
      // The known state is outdated. A repeated refusal of the step shows nothing new.
      needsReread ||= isFirst;
    }
    return needsReread;
  }

  async #reread(): Promise<void> {
    const { kernel, wanted } = this.#options;
    this.#known = await observeNode(kernel, wanted);
    this.#scope = { routes: 'all', hasDevices: true };
    this.#isReread = true;
  }

  /** Reads the kernel when settings are wanted that the last reading did not include. */
  async #readUnknownSysctls(): Promise<void> {
    const { wanted } = this.#options;
    const isUnknown = wanted.sysctls.some(({ key }) => !this.#known.sysctls.has(key.join('/')));
    if (isUnknown) await this.#reread();
  }

  #driftResult(): Drift | undefined {
    return this.#example && { counts: this.#drift, example: this.#example };
  }
}

/** Reads the kernel in full. @throws Failure when it cannot be read */
export async function observeNode(kernel: NodeKernel, wanted: WantedNode | undefined): Promise<NodeStateCache> {
  const routes = wanted?.routes ?? new Map<string, NodeRoute>();
  const sysctls = (wanted?.sysctls ?? []).map(({ key }) => key);
  return new NodeStateCache(
    await kernel.observe({ sysctls, isWanted: (destination) => routes.has(destination) }),
    routes,
  );
}

/** Whether the route to a destination matches, including a wanted absence. */
export function isRouteAsWanted(destination: string, wanted: WantedNode, known: NodeStateCache): boolean {
  const route = wanted.routes.get(destination);
  const found = known.routes.get(destination);
  return equalRoutes(route, found);
}

function* allDestinations({ routes }: WantedNode, known: NodeStateCache): Generator<string> {
  yield* routes.keys();
  for (const destination of known.routes.keys()) if (!routes.has(destination)) yield destination;
}

function recordReached(
  destination: string,
  { keys, backoff }: { readonly keys: ReadonlySet<string>; readonly backoff: StepBackoff },
): void {
  const key = `route ${destination}`;
  if (!keys.has(key)) backoff.recordSuccess(key);
}

const REFUSAL_BACKOFF: BackoffBounds = { baseMs: 500, maxMs: 30_000 };

/** Immediate repairs of an object before a back-off: another program keeps reverting them. */
const REPAIRS_MAX = 5;

/** Time without a difference after which repairs are immediate again, in milliseconds. */
const REPAIR_RESET_MS = 60_000;

/** Retry times are rounded up to this step, in milliseconds, so that many retries share one attempt. */
const RETRY_GRANULARITY_MS = 100;

interface StepRefusal {
  readonly step: NodeStep;
  readonly failure: Failure;
  readonly errno: string;
}

interface BackoffEntry {
  count: number;
  dueMs: number;
  refusal: StepRefusal | undefined;
  repairs: number;
  repairedMs: number;
}

/** Refusals of one kind: the same type of step and errno. */
interface RefusalGroup {
  readonly type: NodeStep['type'];
  readonly errno: string;
  readonly count: number;
  /** An example. */
  readonly example: string;
  readonly failure: Failure;
}

/** Back-off of refused steps and of too frequent repairs, by {@link stepKey}. */
export class StepBackoff {
  readonly #entries = new Map<string, BackoffEntry>();
  readonly #clock: Clock;
  readonly #random: () => number;

  constructor({ clock, random }: { readonly clock: Clock; readonly random: () => number }) {
    this.#clock = clock;
    this.#random = random;
  }

  /** Whether a step must wait for its retry time. */
  isHeld(step: NodeStep): boolean {
    if (this.#entries.size === 0) return false;
    const entry = this.#entries.get(stepKey(step));
    return entry !== undefined && entry.dueMs > this.#clock.monotonicMs();
  }

  /** @returns whether it was the first refusal in a row */
  recordRefusal(step: NodeStep, refusal: { readonly failure: Failure; readonly errno: string }): boolean {
    const entry = this.#at(stepKey(step));
    const isFirst = entry.refusal === undefined;
    entry.refusal = { step, ...refusal };
    this.#postpone(entry);
    return isFirst;
  }

  /** Records a change by another program. After too many, the repair has to wait. */
  recordDrift(step: NodeStep): void {
    const nowMs = this.#clock.monotonicMs();
    const entry = this.#at(stepKey(step));
    const isReset = nowMs - entry.repairedMs > REPAIR_RESET_MS;
    if (isReset) entry.count = 0;
    entry.repairs = isReset ? 1 : entry.repairs + 1;
    entry.repairedMs = nowMs;
    if (entry.repairs > REPAIRS_MAX) this.#postpone(entry);
  }

  /** Records that there is no difference. */
  recordSuccess(key: string): void {
    const entry = this.#entries.get(key);
    if (!entry) return;
    entry.refusal = undefined;
    entry.dueMs = 0;
    if (this.#clock.monotonicMs() - entry.repairedMs > REPAIR_RESET_MS) this.#entries.delete(key);
    else if (entry.repairs <= REPAIRS_MAX) entry.count = 0;
  }

  /** Retries refused steps now: they may succeed after a change. */
  retryRefused(): void {
    for (const entry of this.#entries.values()) if (entry.refusal) entry.dueMs = 0;
  }

  /** Records success for all keys except these, of steps still to be applied. */
  retain(keys: ReadonlySet<string>): void {
    for (const key of [...this.#entries.keys()]) if (!keys.has(key)) this.recordSuccess(key);
  }

  /** Time of the next retry; undefined when none waits. */
  nextDueMs(): number | undefined {
    let next: number | undefined;
    for (const { dueMs } of this.#entries.values()) if (dueMs > 0 && (next === undefined || dueMs < next)) next = dueMs;
    return next;
  }

  /** Keys whose wait is over; each is returned once. */
  takeDue(): string[] {
    const nowMs = this.#clock.monotonicMs();
    const due = [...this.#entries.entries()].filter(([, { dueMs }]) => dueMs > 0 && dueMs <= nowMs);
    for (const [, entry] of due) entry.dueMs = 0;
    return due.map(([key]) => key);
  }

  /** Current refusals by kind. */
  refusals(): RefusalGroup[] {
    const kinds = new Map<string, RefusalGroup>();
    for (const { refusal } of this.#entries.values()) {
      if (!refusal) continue;
      const { step, errno, failure } = refusal;
      const kind = `${step.type} ${errno}`;
      const earlier = kinds.get(kind);
      kinds.set(kind, {
        type: step.type,
        errno,
        count: (earlier?.count ?? 0) + 1,
        example: earlier?.example ?? formatNodeStep(step),
        failure: earlier?.failure ?? failure,
      });
    }
    return [...kinds.values()];
  }

  #at(key: string): BackoffEntry {
    const entry = this.#entries.get(key) ?? {
      count: 0,
      dueMs: 0,
      refusal: undefined,
      repairs: 0,
      repairedMs: -Infinity,
    };
    this.#entries.set(key, entry);
    return entry;
  }

  #postpone(entry: BackoffEntry): void {
    const delayMs = backoffMs(entry.count++, REFUSAL_BACKOFF, this.#random());
    entry.dueMs = Math.ceil((this.#clock.monotonicMs() + delayMs + 1) / RETRY_GRANULARITY_MS) * RETRY_GRANULARITY_MS;
  }
}
