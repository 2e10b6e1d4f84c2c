import { Failure } from '@podwire/shared/failure/failure';

import type { Journal } from '../journal/journal.js';
import type { NodeRequest } from '../requests/request.js';
import type { ReadinessEvents, ReadinessLevel } from './readiness-events.js';
import { askServices, type Question, type QuestionOptions, type Reason } from './readiness-question.js';
import type { ReadyMark } from './ready-mark.js';

interface ReadinessOptions extends QuestionOptions {
  readonly journal: Journal;
  readonly mark: ReadyMark;
  readonly events: ReadinessEvents;
  /** Whether STATUS fails whenever an ADD would. */
  readonly isStrict: boolean;
}

/** Runtimes ask under a lock, and a slow answer makes the node not ready: STATUS waits no longer for the services. */
const WAIT_MS = 300;

/** How long it is believed that a node is ready, in milliseconds from the question to the services: a hang is noticed within it. */
const READY_FOR_MS = 3000;

/** How long it is believed that it is not, from the answer: a service that is back is to be noticed soon. */
const UNREADY_FOR_MS = 1000;

/** Pause between the questions by which an answer is kept; with their own time it is less than {@link READY_FOR_MS}. */
const PAUSE_MS = 2000;

/** How long an unused answer is kept. Kubelet sends STATUS every 5 s. */
const KEPT_FOR_MS = 60_000;

/** How long podwire-dataplane may be unable to wire pods before STATUS fails on a node that was ready: restarts are shorter. */
const OUTAGE_MS = 30_000;

interface Latest {
  readonly reasons: readonly Reason[];
  /** In the future when the clock was set back. */
  readonly sinceMs: number;
  readonly untilMs: number;
}

interface Kept {
  readonly request: NodeRequest;
  /** When a runtime last asked. */
  wantedAtMs: number;
  /** Why an ADD would have failed when the services were asked last, and from when until when that is believed. */
  latest?: Latest;
  /** The question under way. */
  asking?: Question | undefined;
  /** The parts that the log last named. */
  logged: string;
}

/**
 * The answer to STATUS, from the services' own reports.
 *
 * - Runtimes mark a node not ready when STATUS fails, and Kubernetes then evicts its pods. STATUS therefore fails for
 *   any reason only until the node has been ready once since boot. Afterwards it fails only while podwire-dataplane has
 *   been unable to wire pods for longer than {@link OUTAGE_MS}. All other reasons appear as ADD errors and metrics.
 * - Runtimes call STATUS every few seconds under a lock. Podwire's services are polled every two seconds while a
 *   runtime calls, and STATUS returns their last report. Other IPAM plugins are programs, run only on STATUS.
 */
export class Readiness {
  readonly #options: ReadinessOptions;
  readonly #kept = new Map<string, Kept>();
  readonly #stopped = new AbortController();
  /** Since when each answer of podwire-dataplane, or its silence, says that it cannot wire pods. */
  #outageSinceMs: number | undefined;

  constructor(options: ReadinessOptions) {
    this.#options = options;
    options.events.observe(() => this.#level());
  }

  /**
   * Answers STATUS.
   * @throws Failure NOT_READY or PODS_AT_RISK with every reason
   */
  async require(request: NodeRequest): Promise<void> {
    const kept = this.#keep(request);
    if (this.#isStrict(kept)) return this.requireAdd(request);
    const reasons = await this.#wiringReasons(kept);
    if (reasons.length > 0) throw new Failure('NOT_READY', textOf(reasons));
  }

  /** Whether STATUS succeeds for the node, and may do so while this process restarts. */
  get isReadyWithoutUs(): boolean {
    const { isStrict, mark } = this.#options;
    return !isStrict && mark.isSet && !this.#isOutageLong();
  }

  /**
   * Whether an ADD could succeed, by the strict reading of the specification.
   * @throws Failure NOT_READY or PODS_AT_RISK with every reason
   */
  async requireAdd(request: NodeRequest): Promise<void> {
    const kept = this.#keep(request);
    const reasons = this.#believed(kept) ?? (await this.#waitFor(kept));
    const fault = this.#journalReason();
    if (fault) throw new Failure('PODS_AT_RISK', textOf([fault, ...reasons]));
    if (reasons.length > 0) throw new Failure('NOT_READY', textOf(reasons));
  }

  /** Keeps no answer any more. */
  async stop(): Promise<void> {
    this.#stopped.abort();
    await this.#options.mark.stored();
  }

  #isStrict({ request }: Kept): boolean {
    return this.#options.isStrict || !this.#options.mark.has(request.share.kind);
  }

  /** Why the node itself cannot wire pods: none until podwire-dataplane has been unable to for {@link OUTAGE_MS}. */
  async #wiringReasons(kept: Kept): Promise<readonly Reason[]> {
    const believed = this.#believed(kept);
    if (!this.#isOutageLong()) {
      // A defect is reported to the next strict question.
      if (!believed) this.#ask(kept).answer.catch(() => undefined);
      return [];
    }
    const reasons = believed ?? (await this.#waitFor(kept));
    return reasons.filter(({ part }) => part === 'dataplane');
  }

  #isOutageLong(): boolean {
    return this.#outageSinceMs !== undefined && this.#options.clock.nowMs() - this.#outageSinceMs > OUTAGE_MS;
  }

  #journalReason(): Reason | undefined {
    const { fault } = this.#options.journal;
    if (fault === undefined) return undefined;
    return { part: 'journal', text: `${fault}; a restart of the node would leak what it holds` };
  }

  #keep(request: NodeRequest): Kept {
    const nowMs = this.#options.clock.nowMs();
    const key = JSON.stringify(request);
    const known = this.#kept.get(key);
    if (known) {
      known.wantedAtMs = nowMs;
      return known;
    }
    const kept: Kept = { request, wantedAtMs: nowMs, logged: '' };
    this.#kept.set(key, kept);
    void this.#look(kept).finally(() => this.#kept.delete(key));
    return kept;
  }

  /** Renews an answer for as long as a runtime asks for it. */
  async #look(kept: Kept): Promise<void> {
    const { clock } = this.#options;
    const isOurs = kept.request.share.kind !== 'wire';
    while ((await clock.sleep(PAUSE_MS, this.#stopped.signal)) === 'elapsed') {
      if (clock.nowMs() - kept.wantedAtMs >= KEPT_FOR_MS) return;
      // A defect is reported to the next strict question.
      if (isOurs) await this.#ask(kept).answer.catch(() => undefined);
    }
  }

  #believed({ latest }: Kept): readonly Reason[] | undefined {
    const nowMs = this.#options.clock.nowMs();
    return latest && latest.sinceMs <= nowMs && nowMs < latest.untilMs ? latest.reasons : undefined;
  }

  /** The answer, or the last known one after {@link WAIT_MS}. The query continues, and the next STATUS returns its answer. */
  async #waitFor(kept: Kept): Promise<readonly Reason[]> {
    const { clock } = this.#options;
    const question = this.#ask(kept);
    const over = new AbortController();
    const waited = clock.sleep(WAIT_MS, over.signal).then(() => undefined);
    try {
      const answer = await Promise.race([question.answer, waited]);
      if (answer) return answer;
    } finally {
      over.abort();
    }
    const reasons = question.soFar(WAIT_MS);
    const nowMs = clock.nowMs();
    kept.latest = { reasons, sinceMs: nowMs, untilMs: nowMs + UNREADY_FOR_MS };
    return reasons;
  }

  /** Asks once for all that ask meanwhile. */
  #ask(kept: Kept): Question {
    kept.asking ??= this.#newQuestion(kept);
    return kept.asking;
  }

  #newQuestion(kept: Kept): Question {
    const { clock } = this.#options;
    const askedAtMs = clock.nowMs();
    const question = askServices(kept.request, this.#options);
    const answer = question.answer
      .then((reasons) => {
        const sinceMs = reasons.length === 0 ? askedAtMs : clock.nowMs();
        const untilMs = sinceMs + (reasons.length === 0 ? READY_FOR_MS : UNREADY_FOR_MS);
        kept.latest = { reasons, sinceMs, untilMs };
        this.#answered(kept, reasons);
        return reasons;
      })
      .finally(() => (kept.asking = undefined));
    // STATUS may have stopped waiting by then.
    answer.catch((error: unknown) => this.#options.events.failed(kept.request.network, error));
    return { ...question, answer };
  }

  #answered(kept: Kept, reasons: readonly Reason[]): void {
    const { mark, clock, events, journal } = this.#options;
    const { network, share } = kept.request;
    if (share.kind !== 'addresses') {
      const isOut = reasons.some(({ part }) => part === 'dataplane');
      // A clock that was set back must not prolong an outage.
      this.#outageSinceMs = isOut ? Math.min(this.#outageSinceMs ?? Infinity, clock.nowMs()) : undefined;
    }
    if (reasons.length === 0 && journal.fault === undefined) mark.set(share.kind);
    const parts = reasons.map(({ part }) => part).join(' ');
    if (parts === kept.logged) return;
    kept.logged = parts;
    if (parts === '') events.unblocked(network);
    else events.blocked(network, reasons);
  }

  #level(): ReadinessLevel | undefined {
    const known = [...this.#kept.values()].filter(({ latest }) => latest);
    if (known.length === 0) return undefined;
    const fault = this.#journalReason();
    const withFault = (reasons: readonly Reason[]) => (fault ? [fault, ...reasons] : reasons);
    const isOut = this.#isOutageLong();
    return {
      isReady: known.every((kept) => {
        if (this.#isStrict(kept)) return withFault(kept.latest?.reasons ?? []).length === 0;
        return !(isOut && kept.request.share.kind !== 'addresses');
      }),
      reasons: withFault(known.flatMap(({ latest }) => latest?.reasons ?? [])),
    };
  }
}

function textOf(reasons: readonly Reason[]): string {
  return reasons.map(({ text }) => text).join('; ');
}
