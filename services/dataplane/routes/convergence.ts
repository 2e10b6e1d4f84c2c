import type { Attempts } from '../routing/reconcile-attempts.js';
import { diffDevices, diffFittings, diffRoutes, diffStrays, diffSurplus } from './diff.js';
import type { NodeKernel } from './kernel.js';
import { KnownNode } from './known-node.js';
import { equalRoutes } from './observed.js';
import { hasSideEffects, objectOf, stepKey, type NodeObject, type NodeStep } from './step.js';
import type { NodeRoute, WantedNode } from './wanted.js';

/** What may differ from what is wanted. */
interface Doubt {
  /** Destinations. */
  readonly routes: ReadonlySet<string> | 'all';
  /** Devices, what is on them, and settings. */
  readonly rest: boolean;
}

/** What was found to be changed by others. */
interface Drift {
  readonly counts: ReadonlyMap<NodeObject, number>;
  /** One of the steps that put it right. */
  readonly example: NodeStep;
}

interface ConvergenceOptions {
  readonly kernel: NodeKernel;
  readonly attempts: Attempts;
  readonly wanted: WantedNode;
  readonly known: KnownNode;
  readonly doubt: Doubt;
  /** Whether others have caused the difference that a step puts right. */
  readonly isDrift: (step: NodeStep) => boolean;
}

export interface Converged {
  /** What is known after it. */
  readonly known: KnownNode;
  readonly done: number;
  readonly refused: number;
  /** Undefined: others have changed nothing. */
  readonly drift: Drift | undefined;
}

/** Devices, then what is on them, then what a surprise has brought to light. A kernel that resists for longer has time. */
const ROUNDS_MAX = 5;

/** What the kernel answers to the deletion of what is not there. */
const NOT_THERE = ['ENODEV', 'ESRCH', 'ENOENT', 'EADDRNOTAVAIL'];

/**
 * Brings the kernel to what is wanted, as far as that is in doubt: devices first, then, from what the kernel is after that, all
 * else. A step that is refused stops no other.
 */
export class Convergence {
  readonly #options: ConvergenceOptions;
  #known: KnownNode;
  #doubt: Doubt;
  #done = 0;
  #refused = 0;
  readonly #drift = new Map<NodeObject, number>();
  #example: NodeStep | undefined;
  /** Whether the kernel was read anew after changes of our own, so that nothing says any more who caused a difference. */
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

  /** What is to be done next: the devices alone, while there is something to be done about them. */
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
    // Where a stray is in the way of the route that is to be replaced, it has to go first.
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

  /** @returns whether the kernel has to be read anew */
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
      // Something else is there than is known. Later refusals of the same tell nothing more.
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

  /** Settings that are wanted since the kernel was last read. */
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

/** Whether the route to a destination is as wanted, be that none. */
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
