import type { Failure } from '@podwire/shared/failure/failure';
import { backoffMs, type BackoffBounds } from '@podwire/shared/retry/schedule';
import type { Clock } from '@podwire/shared/runtime/clock';

import { diffDevices, diffFittings, diffRoutes, diffStrays, diffSurplus } from './diff.js';
import type { NodeKernel } from './kernel.js';
import { KnownNode } from './known-node.js';
import { equalRoutes } from './observed.js';
import { formatNodeStep, hasSideEffects, objectOf, stepKey, type NodeObject, type NodeStep } from './step.js';
import type { NodeRoute, WantedNode } from './wanted.js';

/** What may differ from the wanted state. */
interface Doubt {
  /** Destinations. */
  readonly routes: ReadonlySet<string> | 'all';
  /** Devices, objects on them, and settings. */
  readonly rest: boolean;
}

/** A difference that another program caused. */
interface Drift {
  readonly counts: ReadonlyMap<NodeObject, number>;
  /** One of the steps that repair it. */
  readonly example: NodeStep;
}

interface ConvergenceOptions {
  readonly kernel: NodeKernel;
  readonly attempts: Attempts;
  readonly wanted: WantedNode;
  readonly known: KnownNode;
  readonly doubt: Doubt;
  /** Whether another program caused the difference that a step repairs. */
  readonly isDrift: (step: NodeStep) => boolean;
}

export interface Converged {
  /** The kernel's known state afterwards. */
  readonly known: KnownNode;
  readonly done: number;
  readonly refused: number;
  /** Undefined: no changes by other programs. */
  readonly drift: Drift | undefined;
}

/** One round for devices, one for objects on them, one for new findings. Further rounds wait. */
const ROUNDS_MAX = 5;

/** The kernel's errors for deleting an object that does not exist. */
const NOT_THERE = ['ENODEV', 'ESRCH', 'ENOENT', 'EADDRNOTAVAIL'];

/**
 * Reconciles the kernel where it may differ from the wanted state: devices first, then, from the state after that, everything
 * else. A refused step does not stop the others.
 */
export class Convergence {
  readonly #options: ConvergenceOptions;
  #known: KnownNode;
  #doubt: Doubt;
  #done = 0;
  #refused = 0;
  readonly #drift = new Map<NodeObject, number>();
  #example: NodeStep | undefined;
  /** Whether the kernel was read again after Podwire's own changes, so that the cause of a difference is unknown. */
  #isReadAnew = false;

  constructor(options: ConvergenceOptions) {
    this.#options = options;
    this.#known = options.known;
    this.#doubt = options.doubt;
  }

  /** @throws Failure when the kernel cannot be read */
  async run(): Promise<Converged> {
    await this.#readUnknownSysctls();
    for (let round = 0; round < ROUNDS_MAX; round++) {
      const tried = this.#due(this.#steps());
      if (tried.length === 0) break;
      const surprises = await this.#apply(tried);
      if (!surprises) break;
      await this.#readAnew();
    }
    return { known: this.#known, done: this.#done, refused: this.#refused, drift: this.#told() };
  }

  /** The next steps: for the devices alone, while they differ. */
  #steps(): NodeStep[] {
    const { wanted, attempts } = this.#options;
    const known = this.#known;
    const { routes, rest } = this.#doubt;
    const devices = rest ? diffDevices(wanted, known) : [];
    if (devices.some((step) => !attempts.isHeld(step))) return devices;
    const { outOfTheWay, set, deleted } = diffRoutes(
      routes === 'all' ? allDestinations(wanted, known) : routes,
      wanted,
      known,
    );
    const strays = routes === 'all' ? diffStrays(known) : [];
    // An orphan route in the place of a route to be replaced must be deleted first.
    const steps = rest
      ? [
          ...devices,
          ...diffFittings(wanted, known),
          ...strays,
          ...outOfTheWay,
          ...set,
          ...deleted,
          ...diffSurplus(wanted, known),
        ]
      : [...strays, ...outOfTheWay, ...set, ...deleted];
    const keys = new Set(steps.map(stepKey));
    if (routes === 'all' && rest) attempts.keep(keys);
    else if (routes !== 'all') for (const destination of routes) settle(destination, { keys, attempts });
    return steps;
  }

  #due(steps: readonly NodeStep[]): NodeStep[] {
    const { attempts, isDrift } = this.#options;
    const due: NodeStep[] = [];
    for (const step of steps) {
      if (attempts.isHeld(step)) continue;
      if (!this.#isReadAnew && isDrift(step)) {
        this.#drift.set(objectOf(step), (this.#drift.get(objectOf(step)) ?? 0) + 1);
        this.#example ??= step;
        attempts.drifted(step);
        if (attempts.isHeld(step)) continue;
      }
      due.push(step);
    }
    return due;
  }

  /** @returns whether the kernel has to be read again */
  async #apply(steps: readonly NodeStep[]): Promise<boolean> {
    const { attempts, kernel } = this.#options;
    const refusals = await kernel.apply(steps);
    let hasSurprise = false;
    const failed = new Set<string>();
    for (const [position, step] of steps.entries()) {
      const refusal = refusals[position];
      const isAsMeant = !refusal || (step.type.endsWith('-delete') && NOT_THERE.includes(refusal.errno));
      const key = stepKey(step);
      if (isAsMeant) {
        this.#done++;
        this.#known.advance(step);
        if (!failed.has(key)) attempts.succeeded(key);
        hasSurprise ||= hasSideEffects(step);
        continue;
      }
      this.#refused++;
      const isFirst = !failed.has(key) && attempts.refused(step, refusal);
      failed.add(key);
      // The known state is outdated. Later refusals of the same kind add nothing.
      hasSurprise ||= isFirst;
    }
    return hasSurprise;
  }

  async #readAnew(): Promise<void> {
    const { kernel, wanted } = this.#options;
    this.#known = await observeNode(kernel, wanted);
    this.#doubt = { routes: 'all', rest: true };
    this.#isReadAnew = true;
  }

  /** Settings requested since the kernel was last read. */
  async #readUnknownSysctls(): Promise<void> {
    const { wanted } = this.#options;
    const isUnknown = wanted.sysctls.some(({ key }) => !this.#known.sysctls.has(key.join('/')));
    if (isUnknown) await this.#readAnew();
  }

  #told(): Drift | undefined {
    return this.#example && { counts: this.#drift, example: this.#example };
  }
}

/** Reads the kernel in full. @throws Failure when it cannot be read */
export async function observeNode(kernel: NodeKernel, wanted: WantedNode | undefined): Promise<KnownNode> {
  const routes = wanted?.routes ?? new Map<string, NodeRoute>();
  const sysctls = (wanted?.sysctls ?? []).map(({ key }) => key);
  return new KnownNode(await kernel.observe({ sysctls, isWanted: (destination) => routes.has(destination) }), routes);
}

/** Whether the route to a destination matches, including a wanted absence. */
export function isRouteReached(destination: string, wanted: WantedNode, known: KnownNode): boolean {
  const route = wanted.routes.get(destination);
  const found = known.routes.get(destination);
  return route && found ? equalRoutes(route, found) : route === found;
}

function* allDestinations({ routes }: WantedNode, known: KnownNode): Generator<string> {
  yield* routes.keys();
  for (const destination of known.routes.keys()) if (!routes.has(destination)) yield destination;
}

function settle(
  destination: string,
  { keys, attempts }: { readonly keys: ReadonlySet<string>; readonly attempts: Attempts },
): void {
  const key = `route ${destination}`;
  if (!keys.has(key)) attempts.succeeded(key);
}

const REFUSED: BackoffBounds = { baseMs: 500, maxMs: 30_000 };

/** Number of immediate repairs before a back-off: another program keeps reverting them. */
const REPAIRS_MAX = 5;

/** After this time without a difference, repairs are immediate again, in milliseconds. */
const FORGET_MS = 60_000;

/** Retry times are rounded up to this step, in milliseconds, so that many retries share one attempt. */
const GRAIN_MS = 100;

interface Refused {
  readonly step: NodeStep;
  readonly failure: Failure;
  readonly errno: string;
}

interface Attempt {
  count: number;
  dueMs: number;
  refused: Refused | undefined;
  repairs: number;
  repairedMs: number;
}

/** Refusals of one kind: the same type of step and errno. */
interface Refusals {
  readonly type: NodeStep['type'];
  readonly errno: string;
  readonly count: number;
  /** An example. */
  readonly example: string;
  readonly failure: Failure;
}

/** Back-off of refused steps and of too frequent repairs, by {@link stepKey}. */
export class Attempts {
  readonly #attempts = new Map<string, Attempt>();
  readonly #clock: Clock;
  readonly #random: () => number;

  constructor({ clock, random }: { readonly clock: Clock; readonly random: () => number }) {
    this.#clock = clock;
    this.#random = random;
  }

  /** Whether a step must wait. */
  isHeld(step: NodeStep): boolean {
    if (this.#attempts.size === 0) return false;
    const attempt = this.#attempts.get(stepKey(step));
    return attempt !== undefined && attempt.dueMs > this.#clock.nowMs();
  }

  /** @returns whether it was the first refusal in a row */
  refused(step: NodeStep, refusal: { readonly failure: Failure; readonly errno: string }): boolean {
    const attempt = this.#at(stepKey(step));
    const isFirst = attempt.refused === undefined;
    attempt.refused = { step, ...refusal };
    this.#postpone(attempt);
    return isFirst;
  }

  /** Records a new difference; its repair may have to wait. */
  drifted(step: NodeStep): void {
    const nowMs = this.#clock.nowMs();
    const attempt = this.#at(stepKey(step));
    const isForgotten = nowMs - attempt.repairedMs > FORGET_MS;
    if (isForgotten) attempt.count = 0;
    attempt.repairs = isForgotten ? 1 : attempt.repairs + 1;
    attempt.repairedMs = nowMs;
    if (attempt.repairs > REPAIRS_MAX) this.#postpone(attempt);
  }

  /** Records that there is no difference. */
  succeeded(key: string): void {
    const attempt = this.#attempts.get(key);
    if (!attempt) return;
    attempt.refused = undefined;
    attempt.dueMs = 0;
    if (this.#clock.nowMs() - attempt.repairedMs > FORGET_MS) this.#attempts.delete(key);
    else if (attempt.repairs <= REPAIRS_MAX) attempt.count = 0;
  }

  /** Ends all waits: refused steps may now succeed. */
  release(): void {
    for (const attempt of this.#attempts.values()) if (attempt.refused) attempt.dueMs = 0;
  }

  /** Ends all waits after the clock was set back. */
  clockSetBack(nowMs: number): void {
    for (const attempt of this.#attempts.values()) {
      attempt.dueMs = Math.min(attempt.dueMs, nowMs);
      attempt.repairedMs = Math.min(attempt.repairedMs, nowMs);
    }
  }

  /** Drops all keys but those of steps still to be applied. */
  keep(keys: ReadonlySet<string>): void {
    for (const key of [...this.#attempts.keys()]) if (!keys.has(key)) this.succeeded(key);
  }

  /** Time of the next retry; undefined when none waits. */
  nextDueMs(): number | undefined {
    let next: number | undefined;
    for (const { dueMs } of this.#attempts.values())
      if (dueMs > 0 && (next === undefined || dueMs < next)) next = dueMs;
    return next;
  }

  /** Keys whose wait is over; each is returned once. */
  takeDue(): string[] {
    const nowMs = this.#clock.nowMs();
    const due = [...this.#attempts.entries()].filter(([, { dueMs }]) => dueMs > 0 && dueMs <= nowMs);
    for (const [, attempt] of due) attempt.dueMs = 0;
    return due.map(([key]) => key);
  }

  /** Current refusals by kind. */
  refusals(): Refusals[] {
    const kinds = new Map<string, Refusals>();
    for (const { refused } of this.#attempts.values()) {
      if (!refused) continue;
      const { step, errno, failure } = refused;
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

  #at(key: string): Attempt {
    const attempt = this.#attempts.get(key) ?? { count: 0, dueMs: 0, refused: undefined, repairs: 0, repairedMs: 0 };
    this.#attempts.set(key, attempt);
    return attempt;
  }

  #postpone(attempt: Attempt): void {
    const delayMs = backoffMs(attempt.count++, REFUSED, this.#random());
    attempt.dueMs = Math.ceil((this.#clock.nowMs() + delayMs + 1) / GRAIN_MS) * GRAIN_MS;
  }
}
