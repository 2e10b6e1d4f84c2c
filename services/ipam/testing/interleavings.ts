import type { Clock } from '@podwire/shared/runtime/clock';

import type {
  CommitResult,
  Page,
  RevisionChanges,
  ScanRequest,
  Snapshot,
  Store,
  Transaction,
  WatchRequest,
} from '../engine/store.js';
import type { MemoryStore } from '../engine/testing/memory-store.js';

/**
 * Explores every order of concurrent operations. Work between two store calls is invisible to other operations, so an operation
 * runs up to its next call and is held there. The choice is which held operation continues next; all choices are
 * tried: one after another, each run from the beginning.
 *
 * Orders that differ only in independent steps are equivalent. One of them is tried
 * (Godefroid's sleep sets: a tried step is not tried after its alternatives before something touches it).
 */

/** A held call, a change in flight to a replica, or the begin of an operation. */
interface Step {
  /** The same in every run that reaches it by the same steps. */
  readonly label: string;
  readonly replica: number;
  readonly effect: Effect;
}

const OWN: Effect = { type: 'own' };
const READS: Effect = { type: 'reads' };

/** The begin of an operation: its effect depends on the knowledge of its replica. */
export function beginEffect(deliveries: Deliveries): Effect {
  return deliveries === 'prompt' ? READS : OWN;
}

/** The effect of a replica's step on other replicas. */
type Effect =
  /** Nothing: it begins an operation, or delivers a change to its own replica. */
  | { readonly type: 'own' }
  | { readonly type: 'reads' }
  | { readonly type: 'commits'; readonly keys: ReadonlySet<string> | 'all' };

/** Whether two steps have the same result in either order. */
function areIndependent(a: Step, b: Step): boolean {
  if (a.replica === b.replica) return false;
  if (a.effect.type === 'own' || b.effect.type === 'own') return true;
  if (a.effect.type === 'reads' || b.effect.type === 'reads') return a.effect.type === b.effect.type;
  const [mine, theirs] = [a.effect.keys, b.effect.keys];
  if (mine === 'all' || theirs === 'all') return false;
  return [...mine].every((key) => !theirs.has(key));
}

interface HeldStep {
  readonly step: Step;
  readonly release: () => void;
}

/** Holds steps until they are chosen. Before it is armed, everything passes. */
export class Controller {
  readonly #held = new Map<string, HeldStep>();
  readonly #counts = new Map<string, number>();
  #waits: (() => void)[] = [];
  #isArmed = false;
  /** Changes with everything that happens. */
  #activity = 0;
  #shortWaits = 0;

  /** Waits of 20 ms and more end when nothing else can happen; shorter ones, which only separate conflicts, at once. */
  readonly clock: Clock;

  constructor(nowMs: number) {
    this.clock = {
      nowMs: () => nowMs,
      monotonicMs: () => nowMs,
      sleep: (durationMs, signal) =>
        new Promise((resolve) => {
          if (signal.aborted) resolve('aborted');
          signal.addEventListener('abort', () => resolve('aborted'));
          if (durationMs >= 10_000) return;
          if (durationMs >= 20) this.#waits.push(() => resolve('elapsed'));
          else this.#waitShortly(() => resolve('elapsed'));
        }),
      after: () => () => undefined,
    };
  }

  arm(): void {
    this.#isArmed = true;
  }

  /** Lets everything pass, now and later. */
  disarm(): void {
    this.#isArmed = false;
    for (const { release } of this.#held.values()) release();
    for (const wake of this.#waits.splice(0)) wake();
    this.#held.clear();
  }

  /** Waits until the step is chosen. */
  hold(kind: string, replica: number, effect: Effect): Promise<void> {
    this.#activity++;
    if (!this.#isArmed) return Promise.resolve();
    const name = `${replica}:${kind}`;
    const count = (this.#counts.get(name) ?? 0) + 1;
    this.#counts.set(name, count);
    const label = `${name}#${count}`;
    return new Promise((release) => this.#held.set(label, { step: { label, replica, effect }, release }));
  }

  /** The steps that can be chosen now, in an order independent of their arrival. */
  async enabled(): Promise<Step[]> {
    await this.untilIdle();
    while (this.#held.size === 0 && this.#waits.length > 0) {
      for (const wake of this.#waits.splice(0)) wake();
      await this.untilIdle();
    }
    return [...this.#held.values()].map(({ step }) => step).sort((a, b) => (a.label < b.label ? -1 : 1));
  }

  /** Waits until nothing else can happen. */
  holdUntilIdle(): Promise<void> {
    this.#activity++;
    return this.#isArmed ? new Promise((wake) => this.#waits.push(wake)) : Promise.resolve();
  }

  choose({ label }: Step): void {
    const held = this.#held.get(label);
    if (!held) throw new Error(`step ${label} is not held: the runs differ without a choice`);
    this.#held.delete(label);
    held.release();
  }

  /** Runs everything until it is held. */
  async untilIdle(): Promise<void> {
    for (let before = -1; before !== this.#activity || this.#shortWaits > 0;) {
      before = this.#activity;
      await new Promise((resolve) => setImmediate(resolve));
      await new Promise((resolve) => setImmediate(resolve));
    }
  }

  #waitShortly(wake: () => void): void {
    this.#shortWaits++;
    setImmediate(() => {
      this.#shortWaits--;
      this.#activity++;
      wake();
    });
  }
}

/** When a replica receives committed changes from its watch. */
export type Deliveries =
  /** Delivery at any moment: each change is a step of its own, and so is the answer of each commit. */
  | 'anytime'
  /** Delivery at once, before anything else happens. */
  | 'prompt'
  /** When nothing else can happen. */
  | 'late';

export interface HeldStoreOptions {
  readonly store: MemoryStore;
  readonly controller: Controller;
  readonly replica: number;
  readonly deliveries: Deliveries;
}

/** A replica's connection to a store, whose calls are held. */
export class ControlledStore implements Store {
  readonly #store: MemoryStore;
  readonly #controller: Controller;
  readonly #replica: number;
  readonly #deliveries: Deliveries;

  constructor({ store, controller, replica, deliveries }: HeldStoreOptions) {
    this.#store = store;
    this.#controller = controller;
    this.#replica = replica;
    this.#deliveries = deliveries;
  }

  async list(prefix: string, signal: AbortSignal): Promise<Snapshot> {
    await this.#hold('list', READS);
    return this.#store.list(prefix, signal);
  }

  async read(keys: readonly string[], signal: AbortSignal): Promise<Snapshot> {
    await this.#hold('read', READS);
    return this.#store.read(keys, signal);
  }

  async scan(request: ScanRequest, signal: AbortSignal): Promise<Page> {
    await this.#hold('scan', READS);
    return this.#store.scan(request, signal);
  }

  async revision(signal: AbortSignal): Promise<number> {
    await this.#hold('revision', READS);
    return this.#store.revision(signal);
  }

  async commit(transaction: Transaction, signal: AbortSignal): Promise<CommitResult> {
    // Where all replicas receive it at once, it changes the next step of each.
    const keys = this.#deliveries === 'prompt' ? 'all' : keysOf(transaction);
    await this.#hold('commit', { type: 'commits', keys });
    const result = await this.#store.commit(transaction, signal);
    if (this.#deliveries === 'anytime') await this.#hold('answer', OWN);
    return result;
  }

  async *watch(watch: WatchRequest, signal: AbortSignal): AsyncGenerator<RevisionChanges, void, void> {
    for await (const item of this.#store.watch(watch, signal)) {
      if (this.#deliveries === 'anytime') await this.#hold('delivery', OWN);
      if (this.#deliveries === 'late') await this.#controller.holdUntilIdle();
      yield item;
    }
  }

  close(): Promise<void> {
    return Promise.resolve();
  }

  #hold(kind: string, effect: Effect): Promise<void> {
    return this.#controller.hold(kind, this.#replica, effect);
  }
}

function keysOf({ comparisons, puts, deletes }: Transaction): ReadonlySet<string> | 'all' {
  const keys = new Set([...puts.map(({ key }) => key), ...deletes]);
  for (const comparison of comparisons) {
    if (comparison.type === 'prefix') return 'all';
    keys.add(comparison.key);
  }
  return keys;
}

/** A run of concurrent operations that has begun, all of them held. */
export interface Run {
  readonly controller: Controller;
  /** Whether every operation has its answer. Undelivered changes no longer matter then. */
  readonly isDone: () => boolean;
  /** Checks the outcome, after everything has passed. */
  readonly check: (steps: readonly string[]) => Promise<void>;
  readonly end: () => Promise<void>;
}

/** A choice: the possible steps, the steps that need no try, the steps already tried, and this run's step. */
interface Choice {
  readonly enabled: readonly Step[];
  readonly sleeping: readonly Step[];
  readonly tried: Step[];
  chosen: Step;
}

interface Explored {
  /** Runs that came to their end. */
  readonly ordersCount: number;
  /** Runs that were abandoned, as another is equivalent. */
  readonly redundantCount: number;
}

/** Tries every order. */
export async function explore(begin: () => Promise<Run>): Promise<Explored> {
  const choices: Choice[] = [];
  let [ordersCount, redundantCount] = [0, 0];
  do {
    const run = await begin();
    try {
      if (await runOnce(run, choices)) ordersCount++;
      else redundantCount++;
    } finally {
      run.controller.disarm();
      await run.end();
    }
  } while (backtrack(choices));
  return { ordersCount, redundantCount };
}

/** Replays the choices made so far, then makes new ones. @returns false when another run is equivalent */
async function runOnce(run: Run, choices: Choice[]): Promise<boolean> {
  for (let depth = 0; ; depth++) {
    const enabled = await run.controller.enabled();
    if (run.isDone()) break;
    const choice = choices[depth] ?? nextChoice(enabled, choices.at(-1));
    if (!choice) return false;
    choices[depth] = choice;
    run.controller.choose(choice.chosen);
  }
  run.controller.disarm();
  await run.check(choices.map(({ chosen }) => chosen.label));
  return true;
}

function nextChoice(enabled: readonly Step[], before: Choice | undefined): Choice | undefined {
  if (enabled.length === 0) throw new Error('an operation waits for nothing that can happen');
  const sleeping = before
    ? [...before.sleeping, ...before.tried].filter((step) => areIndependent(step, before.chosen))
    : [];
  const chosen = enabled.find((step) => !isAmong(step, sleeping));
  return chosen && { enabled, sleeping, tried: [], chosen };
}

/** Goes back to the last choice that has something left to try. @returns false when there is none */
function backtrack(choices: Choice[]): boolean {
  for (let last = choices.at(-1); last; last = choices.at(-1)) {
    const { enabled, sleeping, tried } = last;
    tried.push(last.chosen);
    const next = enabled.find((step) => !isAmong(step, sleeping) && !isAmong(step, tried));
    if (next) {
      last.chosen = next;
      return true;
    }
    choices.pop();
  }
  return false;
}

function isAmong({ label }: Step, steps: readonly Step[]): boolean {
  return steps.some((step) => step.label === label);
}
