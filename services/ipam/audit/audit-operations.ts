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
import { sessionState, type SessionState } from './session-findings.js';
import { usageOf, type Usage } from './usage.js';

/** Default age before an allocation is reported as unused, as in Calico's garbage collector. */
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
 * Minimum age of garbage before its removal, in milliseconds. Calico writes related records one by one, so
 * apparent garbage may be an unfinished write.
 */
const GARBAGE_AGE_MS = 60_000;

/** Concurrent repairs; the update loop commits them together. */
const BATCH_COUNT = 16;

/** How long an audit runs before it yields the event loop, in milliseconds, and in items. */
const SLICE_MS = 5;
const SLICE_STEPS_COUNT = 2000;

/** Maximum faults whose first-seen time is kept. */
const MAX_SIGHTINGS_COUNT = 100_000;

/** One lane for all repairs, so that concurrent ones are committed together. */
const LANE = 'maintenance';

/** Failures that affect only one repair: unreadable records, and records that change too often. */
const SINGLE_REPAIR_FAILURES: ReadonlySet<FailureCode> = new Set(['STORE_CORRUPT', 'CONFLICT']);

/** Reports repairs of the datastore, once they are durable. */
export class AuditEvents {
  readonly #log: Logger;

  constructor(events: Events) {
    this.#log = events.log;
  }

  /** A repair ran. Results of a dry run are not reported. */
  repaired(results: readonly RepairedFinding[]): void {
    for (const { finding, result } of results) {
      if (result.state === 'possible') continue;
      const facts = { 'podwire.finding': finding.id };
      if (result.state === 'repaired') this.#log.info(facts, `repaired: ${finding.explanation}; ${result.effect}`);
    }
  }

  /** A garbage collection reached its limit. The next run continues. */
  garbageLimitReached(limit: number): void {
    this.#log.warn(`the datastore has more garbage than one run removes (${limit}); the next run continues`);
  }
}

/** Finds faults in the datastore and repairs them where possible. */
export class Audits {
  readonly #options: IpamOptions;
  readonly #events: AuditEvents;
  /** When each fault was first seen by this process, by the monotonic clock. Contains only faults of the last audit. */
  #firstSeen: ReadonlyMap<string, number> = new Map();
  #latest: readonly Finding[] | undefined;

  constructor(options: IpamOptions) {
    this.#options = options;
    this.#events = new AuditEvents(options.events);
  }

  /** Audits all records. Pages are of different moments. */
  async audit(query: AuditQuery, signal: AbortSignal): Promise<AuditReport> {
    const findings = await this.#findAll(DEFAULT_GRACE_MS, signal);
    return makeReport(findings, await this.usage(), query);
  }

  /** Findings of the last audit, repair or garbage collection of this process; undefined before. */
  get latestFindings(): readonly Finding[] | undefined {
    return this.#latest;
  }

  /** Usage per pool and node, as currently known to this replica. */
  usage(): Promise<Usage> {
    return this.#options.updates.peek(usageOf);
  }

  /** Disagreements between nodes and datastore, as currently known to this replica. */
  sessions(): Promise<SessionState> {
    return this.#options.updates.peek(sessionState);
  }

  /**
   * Finds and repairs. Each repair is a separate transaction, so repairs before a failure persist. Idempotent.
   * @returns the result of each requested finding
   */
  async repair(options: RepairOptions, signal: AbortSignal): Promise<RepairReport> {
    const findings = await this.#findAll(options.graceMs, signal);
    const matching = findings.filter((finding) => matchesQuery(finding, { kinds: options.kinds, information: true }));
    const results = await this.#repairAll(matching.slice(0, options.limit), options, signal);
    return { results, more: matching.length > options.limit };
  }

  /**
   * Removes garbage that an earlier run has already seen.
   * @param limit - maximum repairs
   */
  async collectGarbage(limit: number, signal: AbortSignal): Promise<RepairReport> {
    const startMs = this.#options.clock.monotonicMs();
    const findings = await this.#findAll(DEFAULT_GRACE_MS, signal);
    const garbage = findings.filter(
      ({ id, kind, remedy }) =>
        GARBAGE_KINDS.has(kind) &&
        remedy.type === 'safe' &&
        (kind === 'coolDownOver' || startMs - (this.#firstSeen.get(id) ?? startMs) >= GARBAGE_AGE_MS),
    );
    const options = { kinds: [], dryRun: false, releases: false, graceMs: DEFAULT_GRACE_MS, limit };
    const results = await this.#repairAll(garbage.slice(0, limit), options, signal);
    return { results, more: garbage.length > limit };
  }

  /** Audits all records in slices of a few milliseconds, and then rechecks the findings. */
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
    this.#recordFirstSeen(findings, clock.monotonicMs());
    this.#latest = findings;
    return findings;
  }

  #context(view: View, graceMs: number): AuditContext {
    return new AuditContext(view, { nowMs: this.#options.clock.nowMs(), graceMs });
  }

  async #runInSlices<Step>(steps: Iterator<Step>, take: (step: Step) => void, signal: AbortSignal): Promise<void> {
    const { clock } = this.#options;
    let count = 0;
    let beganMs = clock.monotonicMs();
    for (let step = steps.next(); step.done !== true; step = steps.next()) {
      take(step.value);
      if (++count < SLICE_STEPS_COUNT && clock.monotonicMs() - beganMs < SLICE_MS) continue;
      await clock.sleep(0, signal);
      if (signal.aborted) throw failureOfSignal(signal);
      count = 0;
      beganMs = clock.monotonicMs();
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
    const startMs = clock.monotonicMs();
    const seenMs = startMs - (this.#firstSeen.get(finding.id) ?? startMs);
    const input = { finding, nowMs, dryRun, releases, graceMs, seenMs };
    try {
      const result = await updates.update(LANE, (view) => repair(view, input), { signal, isFresh: true });
      return { finding, result };
    } catch (error) {
      if (!(error instanceof Failure) || !SINGLE_REPAIR_FAILURES.has(error.code)) throw error;
      return { finding, result: { state: 'refused', reason: error.message } };
    }
  }
}
