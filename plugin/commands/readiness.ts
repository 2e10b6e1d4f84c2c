import { Failure, tracedMessage } from '@podwire/shared/failure/failure';
import { WorkQueue, type NextRun } from '@podwire/shared/reconcile/work-queue';
import type { Clock } from '@podwire/shared/runtime/clock';
import type { Logger } from '@podwire/shared/runtime/log';
import { observeMetrics } from '@podwire/shared/telemetry/instruments';

import type { Providers } from '../addresses/providers.js';
import type { Dataplane, Limits } from '../clients/clients.js';
import type { Journal } from '../journal/journal.js';
import type { NodeRequest } from '../requests/request.js';
import type { ReadinessRecord } from './readiness-record.js';

interface ReadinessOptions extends ProbeOptions {
  readonly journal: Journal;
  readonly record: ReadinessRecord;
  readonly events: ReadinessEvents;
  /** Whether STATUS fails whenever an ADD would. */
  readonly isStrict: boolean;
}

/** STATUS waits this long for the services: runtimes call it under a lock, and a slow answer makes the node not ready. */
const WAIT_MS = 300;

/** How long the result "ready" is valid, in milliseconds from the start of the probe. A service that hangs is noticed within it. */
const READY_TTL_MS = 3000;

/** How long the result "not ready" is valid, from the end of the probe: short, to notice soon when a service is back. */
const UNREADY_TTL_MS = 1000;

/** Pause between the probes that refresh a result. With the probe's timeout it is shorter than {@link READY_TTL_MS}. */
const REFRESH_PAUSE_MS = 2000;

/** A result that no STATUS used for so long is not refreshed any more. Kubelet sends STATUS every 5 s. */
const UNUSED_TTL_MS = 60_000;

/** STATUS of a node that was ready fails after the dataplane could not wire pods for this long. Restarts are shorter. */
const OUTAGE_MS = 30_000;

interface ProbeResult {
  readonly reasons: readonly Reason[];
  readonly untilMs: number;
}

/** The readiness for one configuration of STATUS. */
interface CachedReadiness {
  readonly request: NodeRequest;
  /** When a runtime last called STATUS. */
  usedAtMs: number;
  latest?: ProbeResult;
  /** The probe in flight. */
  probe?: ReadinessProbe | undefined;
  /** The parts in the last log line. */
  loggedParts: string;
}

/**
 * Answers STATUS from the reports of the services.
 *
 * - Runtimes mark a node not ready when STATUS fails, and Kubernetes then evicts its pods. STATUS therefore fails for
 *   any reason only until the node has been ready once since boot. Afterwards it fails only while the dataplane has
 *   been unable to wire pods for longer than {@link OUTAGE_MS}. All other reasons appear as ADD errors and metrics.
 * - Runtimes call STATUS every few seconds under a lock. While runtimes call it, Podwire's services are probed about
 *   every two seconds, and STATUS returns the last result. An IPAM plugin is a program that has to be started: it
 *   is probed only by STATUS.
 */
export class Readiness {
  readonly #options: ReadinessOptions;
  readonly #cache = new Map<string, CachedReadiness>();
  readonly #refreshes: WorkQueue<CachedReadiness>;
  /** Since when the dataplane has failed every probe. */
  #outageSinceMs: number | undefined;

  constructor(options: ReadinessOptions) {
    this.#options = options;
    this.#refreshes = new WorkQueue({
      reconcile: (cached) => this.#refresh(cached),
      retryInMs: () => REFRESH_PAUSE_MS,
      onFailure: (defect) => {
        throw defect;
      },
      clock: options.clock,
    });
    options.events.observe(() => this.#level());
  }

  /**
   * Answers STATUS.
   * @throws Failure NOT_READY or PODS_AT_RISK with every reason
   */
  async require(request: NodeRequest): Promise<void> {
    const cached = this.#cached(request);
    if (this.#isStrict(cached)) return this.requireAdd(request);
    const reasons = await this.#wiringReasons(cached);
    if (reasons.length > 0) throw new Failure('NOT_READY', textOf(reasons));
  }

  /** Whether STATUS may succeed while this process restarts. */
  get isReadyDuringRestart(): boolean {
    const { isStrict, record } = this.#options;
    return !isStrict && record.hasAny && !this.#isOutageLong();
  }

  /**
   * Answers STATUS by the strict reading of the specification: succeeds only if an ADD could succeed.
   * @throws Failure NOT_READY or PODS_AT_RISK with every reason
   */
  async requireAdd(request: NodeRequest): Promise<void> {
    const cached = this.#cached(request);
    const reasons = this.#validReasons(cached) ?? (await this.#waitFor(cached));
    const fault = this.#journalReason();
    if (fault) throw new Failure('PODS_AT_RISK', textOf([fault, ...reasons]));
    if (reasons.length > 0) throw new Failure('NOT_READY', textOf(reasons));
  }

  /** Stops refreshing results. */
  async stop(): Promise<void> {
    // Not awaited: a probe in flight waits for services that may hang.
    void this.#refreshes.stop();
    await this.#options.record.stored();
  }

  #isStrict({ request }: CachedReadiness): boolean {
    return this.#options.isStrict || !this.#options.record.has(request.mode.kind);
  }

  /** Why the dataplane cannot wire pods; empty until it has failed for longer than {@link OUTAGE_MS}. */
  async #wiringReasons(cached: CachedReadiness): Promise<readonly Reason[]> {
    const validReasons = this.#validReasons(cached);
    if (!this.#isOutageLong()) {
      // A defect is logged by the probe, and reported to the next strict STATUS.
      if (!validReasons) this.#probe(cached).result.catch(() => undefined);
      return [];
    }
    const reasons = validReasons ?? (await this.#waitFor(cached));
    return reasons.filter(({ part }) => part === 'dataplane');
  }

  #isOutageLong(): boolean {
    return this.#outageSinceMs !== undefined && this.#options.clock.monotonicMs() - this.#outageSinceMs > OUTAGE_MS;
  }

  #journalReason(): Reason | undefined {
    const { fault } = this.#options.journal;
    if (fault === undefined) return undefined;
    return { part: 'journal', text: `${fault}; a restart of the node would leak addresses or interfaces` };
  }

  #cached(request: NodeRequest): CachedReadiness {
    const nowMs = this.#options.clock.monotonicMs();
    const key = JSON.stringify(request);
    const known = this.#cache.get(key);
    if (known) {
      known.usedAtMs = nowMs;
      return known;
    }
    const cached: CachedReadiness = { request, usedAtMs: nowMs, loggedParts: '' };
    this.#cache.set(key, cached);
    this.#refreshes.request(cached, REFRESH_PAUSE_MS);
    return cached;
  }

  /** Refreshes a result as long as runtimes call STATUS. */
  async #refresh(cached: CachedReadiness): Promise<NextRun | undefined> {
    const { request, usedAtMs } = cached;
    if (this.#options.clock.monotonicMs() - usedAtMs >= UNUSED_TTL_MS) {
      this.#cache.delete(JSON.stringify(request));
      return undefined;
    }
    // A defect is logged by the probe, and reported to the next strict STATUS.
    if (!request.mode.delegate) await this.#probe(cached).result.catch(() => undefined);
    return { inMs: REFRESH_PAUSE_MS };
  }

  #validReasons({ latest }: CachedReadiness): readonly Reason[] | undefined {
    const nowMs = this.#options.clock.monotonicMs();
    return latest && nowMs < latest.untilMs ? latest.reasons : undefined;
  }

  /** The result of a probe, or its partial result after {@link WAIT_MS}. The probe continues, for the next STATUS. */
  async #waitFor(cached: CachedReadiness): Promise<readonly Reason[]> {
    const { clock } = this.#options;
    const probe = this.#probe(cached);
    const done = new AbortController();
    const timeout = clock.sleep(WAIT_MS, done.signal).then(() => undefined);
    try {
      const result = await Promise.race([probe.result, timeout]);
      if (result) return result;
    } finally {
      done.abort();
    }
    const reasons = probe.partialResult(WAIT_MS);
    cached.latest = { reasons, untilMs: clock.monotonicMs() + UNREADY_TTL_MS };
    return reasons;
  }

  /** Joins the probe in flight, or starts one. */
  #probe(cached: CachedReadiness): ReadinessProbe {
    cached.probe ??= this.#startProbe(cached);
    return cached.probe;
  }

  #startProbe(cached: CachedReadiness): ReadinessProbe {
    const { clock } = this.#options;
    const startedAtMs = clock.monotonicMs();
    const probe = probeServices(cached.request, this.#options);
    const result = probe.result
      .then((reasons) => {
        const sinceMs = reasons.length === 0 ? startedAtMs : clock.monotonicMs();
        const untilMs = sinceMs + (reasons.length === 0 ? READY_TTL_MS : UNREADY_TTL_MS);
        cached.latest = { reasons, untilMs };
        this.#evaluate(cached, reasons);
        return reasons;
      })
      .finally(() => (cached.probe = undefined));
    // STATUS may have stopped waiting by then.
    result.catch((error: unknown) => this.#options.events.failed(cached.request.network, error));
    return { ...probe, result };
  }

  #evaluate(cached: CachedReadiness, reasons: readonly Reason[]): void {
    const { record, clock, events, journal } = this.#options;
    const { network, mode } = cached.request;
    if (mode.kind !== 'ipam-only') {
      const isUnavailable = reasons.some(({ part }) => part === 'dataplane');
      this.#outageSinceMs = isUnavailable ? (this.#outageSinceMs ?? clock.monotonicMs()) : undefined;
    }
    if (reasons.length === 0 && journal.fault === undefined) record.add(mode.kind);
    const parts = reasons.map(({ part }) => part).join(' ');
    if (parts === cached.loggedParts) return;
    cached.loggedParts = parts;
    if (parts === '') events.unblocked(network);
    else events.blocked(network, reasons);
  }

  #level(): ReadinessLevel | undefined {
    const known = [...this.#cache.values()].filter(({ latest }) => latest);
    if (known.length === 0) return undefined;
    const fault = this.#journalReason();
    const withFault = (reasons: readonly Reason[]) => (fault ? [fault, ...reasons] : reasons);
    const isOutageLong = this.#isOutageLong();
    return {
      isReady: known.every((cached) => {
        if (this.#isStrict(cached)) return withFault(cached.latest?.reasons ?? []).length === 0;
        return !(isOutageLong && cached.request.mode.kind !== 'ipam-only');
      }),
      reasons: withFault(known.flatMap(({ latest }) => latest?.reasons ?? [])),
    };
  }
}

function textOf(reasons: readonly Reason[]): string {
  return reasons.map(({ text }) => text).join('; ');
}

/** Timeout of the services. A slow service must not make the node not ready while no STATUS waits for it. */
const PROBE_TIMEOUT_MS = 800;

/** The parts that an ADD needs; values of the metric's label `reason`. */
const PARTS = ['addresses', 'ipam', 'ipam-plugin', 'dataplane', 'journal'] as const;

/** Why an ADD would fail. */
interface Reason {
  readonly part: (typeof PARTS)[number];
  readonly text: string;
}

/** Concurrent queries of all services that an ADD needs. */
interface ReadinessProbe {
  readonly result: Promise<readonly Reason[]>;
  /** The result so far; each service that has not answered yet is a reason. */
  readonly partialResult: (waitedMs: number) => readonly Reason[];
}

interface ProbeOptions {
  readonly providers: Pick<Providers, 'of'>;
  readonly dataplane: Pick<Dataplane, 'isServing'>;
  /** Default for requests without a node name. */
  readonly nodeName: string;
  readonly clock: Clock;
}

/** Determines why an ADD would fail. Queries only the services that the ADD would need. */
function probeServices(
  request: NodeRequest,
  { providers, dataplane, nodeName: defaultNodeName, clock }: ProbeOptions,
): ReadinessProbe {
  const { network, nodeName = defaultNodeName, podRequest, mode } = request;
  const limits: Limits = { deadlineMs: clock.nowMs() + PROBE_TIMEOUT_MS, signal: new AbortController().signal };
  const results = new ProbeResults();
  const provider = providers.of(mode);
  const pod = { nodeName, network, podRequest };
  const addresses: ProbedService = {
    part: provider.source.delegate ? 'ipam-plugin' : 'ipam',
    service: provider.name,
    unreachablePeer: () => provider.unreachablePeer?.(),
  };
  const hasAddresses = mode.kind === 'full' && provider.hasAddresses?.(pod) === true;
  const probeProvider = () => [
    results.add(addresses, async () => servingReason(addresses, await provider.isServing(limits))),
    results.add(addresses, async () => {
      const refusal = await provider.refusalOf?.(pod, limits);
      if (refusal === undefined) return undefined;
      return { part: 'addresses', text: `${provider.name} has no address for a pod: ${refusal}` };
    }),
  ];
  const probes = hasAddresses ? [] : probeProvider();
  if (mode.kind !== 'ipam-only') results.addKnown(dataplane.isServing() ? undefined : DATAPLANE_REASON);
  return {
    result: Promise.all(probes).then(() => results.reasons(0)),
    partialResult: (waitedMs) => results.reasons(waitedMs),
  };
}

const DATAPLANE_REASON: Reason = {
  part: 'dataplane',
  text: "the node's dataplane is not serving: see the log of podwire-node",
};

interface ProbedService {
  readonly part: Reason['part'];
  readonly service: string;
  /** Name and address of the service while there is no connection to it. */
  readonly unreachablePeer: () => string | undefined;
}

/** Reasons why an ADD would fail, in the order of the probes. A service that has not answered yet is a reason. */
class ProbeResults {
  readonly #reasons: ((waitedMs: number) => Reason | undefined)[] = [];

  /** @param probe - returns the reason; undefined for none. @throws errors of the probe that are not a Failure */
  async add(service: ProbedService, probe: () => Promise<Reason | undefined>): Promise<void> {
    const index = this.#reasons.push((waitedMs) => noAnswerReason(service, waitedMs)) - 1;
    const reason = await reasonOf(service, probe);
    this.#reasons[index] = () => reason;
  }

  addKnown(reason: Reason | undefined): void {
    this.#reasons.push(() => reason);
  }

  /** @param waitedMs - time since the probes started, for services that have not answered */
  reasons(waitedMs: number): readonly Reason[] {
    const all = this.#reasons.flatMap((reason) => reason(waitedMs) ?? []);
    return [...new Map(all.map((reason) => [reason.text, reason])).values()];
  }
}

/** Distinguishes a service without a connection from one that does not answer. */
function noAnswerReason({ part, service, unreachablePeer }: ProbedService, waitedMs: number): Reason {
  const peer = unreachablePeer();
  if (peer === undefined) return { part, text: `${service} does not answer within ${waitedMs} ms` };
  return { part, text: `${peer} is not reached within ${waitedMs} ms: check that it runs and listens there` };
}

function servingReason({ part, service }: ProbedService, isServing: boolean): Reason | undefined {
  return isServing ? undefined : { part, text: `${service} is not serving: see its log` };
}

/** A method that a service of an earlier release lacks is not a reason. */
async function reasonOf(probed: ProbedService, probe: () => Promise<Reason | undefined>): Promise<Reason | undefined> {
  try {
    return await probe();
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    if (error.code === 'UNIMPLEMENTED') return undefined;
    const hasNoAnswer = error.code === 'UNREACHABLE' || error.code === 'DEADLINE_EXCEEDED';
    if (hasNoAnswer) return noAnswerReason(probed, PROBE_TIMEOUT_MS);
    const text = tracedMessage(error);
    return { part: probed.part, text: text.startsWith(probed.service) ? text : `${probed.service}: ${text}` };
  }
}

/** State of the readiness, for the metrics. */
interface ReadinessLevel {
  /** Whether STATUS succeeds. */
  readonly isReady: boolean;
  /** Why an ADD would fail. */
  readonly reasons: readonly Reason[];
}

/** Publishes the readiness as metrics, and logs each change. */
export class ReadinessEvents {
  readonly #log: Logger;

  constructor(log: Logger) {
    this.#log = log;
  }

  /**
   * Publishes the gauges.
   * @param level - called at each export; returns undefined while no runtime calls STATUS
   */
  observe(level: () => ReadinessLevel | undefined): void {
    observeMetrics(['podwire.plugin.ready', 'podwire.plugin.add_blocked'], (observe) => {
      const known = level();
      if (!known) return;
      observe('podwire.plugin.ready', known.isReady ? 1 : 0);
      for (const reason of PARTS) {
        const isBlocked = known.reasons.some(({ part }) => part === reason);
        observe('podwire.plugin.add_blocked', isBlocked ? 1 : 0, { reason });
      }
    });
  }

  /** An ADD of the network would fail now, or fails for other reasons than before. */
  blocked(network: string, reasons: readonly Reason[]): void {
    const parts = reasons.map(({ part }) => part);
    this.#log.warn({ network, reasons: parts }, `network ${network}: an ADD would fail: ${textOf(reasons)}`);
  }

  /** A defect: the probe failed. */
  failed(network: string, error: unknown): void {
    this.#log.error({ err: error, network }, `network ${network}: cannot determine whether an ADD would succeed`);
  }

  /** An ADD of the network can succeed again. */
  unblocked(network: string): void {
    this.#log.info({ network }, `network ${network}: ADDs can succeed again`);
  }
}
