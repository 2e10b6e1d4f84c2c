import type { Counter } from '@opentelemetry/api';
import type { FailureCode } from '@podwire/shared/failure/codes';
import { Failure } from '@podwire/shared/failure/failure';
import { failureOfSignal } from '@podwire/shared/failure/signal';
import type { Logger } from '@podwire/shared/runtime/log';

import type { Events } from '../engine/events.js';
import type { IpamOptions } from '../engine/updates/operation.js';
import type { View } from '../records/view.js';
import {
  auditSteps,
  distinctFindings,
  matchesQuery,
  recheckFinding,
  makeReport,
  type AuditQuery,
  type AuditReport,
} from './audit.js';
import { AuditContext } from './context.js';
import type { Finding, FindingKind } from './finding.js';
import { repair, type RepairedFinding, type RepairOptions, type RepairReport } from './repair.js';
import { usageOf, type Usage } from './usage.js';

/** How old an allocation has to be before it is called unused, unless said: as with Calico's garbage collector. */
const DEFAULT_GRACE_MS = 15 * 60 * 1000;

/** Leftovers of an older Calico, which are removed automatically. All of them are {@link Remedy} `safe`. */
const GARBAGE_KINDS: ReadonlySet<FindingKind> = new Set([
  'handleWithoutAddresses',
  'handleCountsWrong',
  'handleMissing',
  'affinityWithoutBlock',
  'affinityOfOthersBlock',
  'affinityUnconfirmed',
  'blockWithoutOwnerEmpty',
  'coolDownOver',
]);

/**
 * How long garbage has to lie there before it is removed, in milliseconds: Calico writes what belongs together one by one, so what
 * looks like garbage may be half of what is coming.
 */
const GARBAGE_AGE_MS = 60_000;

/** Repairs that are under way at once; the update loop commits them together. */
const BATCH_COUNT = 16;

/** How long an audit runs before it yields the event loop, in milliseconds, and in items. */
const SLICE_MS = 5;
const SLICE_STEPS_COUNT = 2000;

/** Of faults beyond it, the time of their first sight is not kept. */
const MAX_SIGHTINGS_COUNT = 100_000;

/** All repairs, so that those that arrive together are committed together. */
const LANE = 'maintenance';

/** Failures that affect only one repair: unreadable records, and records that change too often. */
const SINGLE_REPAIR_FAILURES: ReadonlySet<FailureCode> = new Set(['STORE_CORRUPT', 'CONFLICT']);

/** Reports repairs of the datastore, once they are durable. */
export class AuditEvents {
  readonly #log: Logger;
  readonly #repairs: Counter;

  constructor(events: Events) {
    this.#log = events.log;
    this.#repairs = events.counter('podwire.ipam.repairs', '{finding}', 'Findings of audits by what a repair came to');
  }

  /** A repair ran. Results of a dry run are not reported. */
  repaired(results: readonly RepairedFinding[]): void {
    for (const { finding, result } of results) {
      if (result.state === 'possible') continue;
      this.#repairs.add(1, { kind: finding.kind, result: result.state });
      const facts = { 'podwire.finding': finding.id };
      if (result.state === 'repaired') this.#log.info(facts, `repaired: ${finding.explanation}; ${result.effect}`);
    }
  }

  /** A garbage collection reached its limit. The next run continues. */
  garbageLimitReached(limit: number): void {
    this.#log.warn(`there was more garbage in the datastore than one run removes (${limit}); the next goes on`);
  }
}

/** Finds what is wrong in the datastore, and repairs what can be. */
export class Audits {
  readonly #options: IpamOptions;
  readonly #events: AuditEvents;
  /** When each fault was first seen by this process, in epoch milliseconds. Only those that the last audit saw as well. */
  #firstSeen: ReadonlyMap<string, number> = new Map();

  constructor(options: IpamOptions) {
    this.#options = options;
    this.#events = new AuditEvents(options.events);
  }

  /** Looks at everything. Pages are of different moments. */
  async audit(query: AuditQuery, signal: AbortSignal): Promise<AuditReport> {
    const findings = await this.#findAll(DEFAULT_GRACE_MS, signal);
    return makeReport(findings, await this.usage(), query);
  }

  /** How much is in use, per pool and node, as far as this replica knows by now. */
  usage(): Promise<Usage> {
    return this.#options.updates.peek(usageOf);
  }

  /**
   * Finds and repairs. Each repair is a transaction, so what was done before a failure stays done. Idempotent.
   * @returns the result of each requested finding
   */
  async repair(options: RepairOptions, signal: AbortSignal): Promise<RepairReport> {
    const findings = await this.#findAll(options.graceMs, signal);
    const matching = findings.filter((finding) => matchesQuery(finding, { kinds: options.kinds, information: true }));
    const results = await this.#repairAll(matching.slice(0, options.limit), options, signal);
    return { results, more: matching.length > options.limit };
  }

  /**
   * Removes garbage that has lain there since an earlier run.
   * @param limit - repairs at most
   */
  async collectGarbage(limit: number, signal: AbortSignal): Promise<RepairReport> {
    const nowMs = this.#options.clock.nowMs();
    const findings = await this.#findAll(DEFAULT_GRACE_MS, signal);
    const garbage = findings.filter(
      ({ id, kind, remedy }) =>
        GARBAGE_KINDS.has(kind) &&
        remedy.type === 'safe' &&
        (kind === 'coolDownOver' || nowMs - (this.#firstSeen.get(id) ?? nowMs) >= GARBAGE_AGE_MS),
    );
    const options = { kinds: [], dryRun: false, releases: false, graceMs: DEFAULT_GRACE_MS, limit };
    const results = await this.#repairAll(garbage.slice(0, limit), options, signal);
    return { results, more: garbage.length > limit };
  }

  /** Looks at everything a few milliseconds at a time, and then once more at what was found. */
  async #findAll(graceMs: number, signal: AbortSignal): Promise<Finding[]> {
    const { updates, clock } = this.#options;
    const context = await updates.read((view) => this.#context(view, graceMs), { signal });
    const candidates: Finding[] = [];
    await this.#runInSlices(auditSteps(context), (found) => candidates.push(...found), signal);
    const { view } = context;
    const latestContext = this.#context(view, graceMs);
    const findings: Finding[] = [];
    const rechecks = distinctFindings(candidates)[Symbol.iterator]();
    const recheck = (candidate: Finding): void => {
      const found = recheckFinding(latestContext, candidate);
      if (found) findings.push(found);
    };
    await this.#runInSlices(rechecks, recheck, signal);
    this.#recordFirstSeen(findings, clock.nowMs());
    return findings;
  }

  #context(view: View, graceMs: number): AuditContext {
    return new AuditContext(view, { nowMs: this.#options.clock.nowMs(), graceMs });
  }

  async #runInSlices<Step>(steps: Iterator<Step>, take: (step: Step) => void, signal: AbortSignal): Promise<void> {
    const { clock } = this.#options;
    let count = 0;
    let beganMs = clock.nowMs();
    for (let step = steps.next(); step.done !== true; step = steps.next()) {
      take(step.value);
      if (++count < SLICE_STEPS_COUNT && clock.nowMs() - beganMs < SLICE_MS) continue;
      await clock.sleep(0, signal);
      if (signal.aborted) throw failureOfSignal(signal);
      count = 0;
      beganMs = clock.nowMs();
    }
  }

  #recordFirstSeen(findings: readonly Finding[], nowMs: number): void {
    const known = this.#firstSeen;
    const kept = findings.slice(0, MAX_SIGHTINGS_COUNT);
    this.#firstSeen = new Map(kept.map(({ id }) => [id, known.get(id) ?? nowMs]));
  }

  async #repairAll(
    findings: readonly Finding[],
    options: RepairOptions,
    signal: AbortSignal,
  ): Promise<RepairedFinding[]> {
    const results: RepairedFinding[] = [];
    for (let start = 0; start < findings.length; start += BATCH_COUNT) {
      const batch = findings.slice(start, start + BATCH_COUNT);
      results.push(...(await Promise.all(batch.map((finding) => this.#repairOne(finding, options, signal)))));
    }
    this.#events.repaired(results);
    return results;
  }

  async #repairOne(finding: Finding, options: RepairOptions, signal: AbortSignal): Promise<RepairedFinding> {
    const { updates, clock } = this.#options;
    const nowMs = clock.nowMs();
    const { dryRun, releases, graceMs } = options;
    const firstSeenMs = this.#firstSeen.get(finding.id) ?? nowMs;
    const input = { finding, nowMs, dryRun, releases, graceMs, firstSeenMs };
    try {
      const result = await updates.update(LANE, (view) => repair(view, input), { signal, isFresh: true });
      return { finding, result };
    } catch (error) {
      if (!(error instanceof Failure) || !SINGLE_REPAIR_FAILURES.has(error.code)) throw error;
      return { finding, result: { state: 'refused', reason: error.message } };
    }
  }
}
