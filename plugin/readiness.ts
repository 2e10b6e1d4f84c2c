import { Failure } from '@podwire/shared/failure/failure';
import { tracedMessage } from '@podwire/shared/failure/status';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { Limits } from './clients/clients.js';
import type { DataplaneUpkeep, IpamUpkeep } from './clients/upkeep.js';
import { callDelegate } from './delegate/ipam-plugin.js';
import type { Delegate } from './delegate/share.js';
import type { Journal } from './journal/journal.js';
import type { NodeRequest } from './request.js';

export interface ReadinessOptions {
  readonly upkeep: { readonly ipam: IpamUpkeep; readonly dataplane: DataplaneUpkeep };
  readonly journal: Journal;
  readonly nodeName: string;
  readonly clock: Clock;
}

/**
 * Runtimes ask under a lock, and a slow answer makes the node not ready: nobody waits longer, from the start of the runtime's process on. It
 * leaves a machine under load 0.2 s of the half second for what comes after it.
 */
const WAIT_MS = 300;

/** What services have of it at least, when getting to the question took long: the first one of a process runs code that is cold. */
const MIN_WAIT_MS = 100;

/** Time that the services have. One that is slow, but alive, is not to make the node not ready, where nobody waits for it. */
const PROBE_TIMEOUT_MS = 800;

/** How long it is believed that a node is ready, in milliseconds from the question to the services: a hang is noticed within it. */
const READY_FOR_MS = 3000;

/** How long it is believed that it is not, from the answer: a service that is back is to be noticed soon. */
const UNREADY_FOR_MS = 1000;

/** Pause between the questions by which an answer is kept; with their own time it is less than {@link READY_FOR_MS}. */
const PAUSE_MS = 2000;

/** How long an answer is kept that nobody asks for. Kubelet asks every 5 s. */
const KEPT_FOR_MS = 60_000;

interface Latest {
  readonly reasons: readonly string[];
  /** Before it lies what a clock tells that was set back. */
  readonly sinceMs: number;
  readonly untilMs: number;
}

interface Kept {
  readonly request: NodeRequest;
  /** When somebody last wanted to know. */
  wantedAtMs: number;
  /** Why an ADD would have failed when the services were asked last, and from when until when that is believed. */
  latest?: Latest;
  /** The question under way. */
  asking?: Question | undefined;
}

/** A question to all services at once. */
interface Question {
  readonly answer: Promise<readonly string[]>;
  /** Why an ADD would fail as far as is known after that time: services that have not answered are reasons. */
  readonly soFar: (waitedMs: number) => readonly string[];
}

/**
 * Whether an ADD could succeed, asked of those who would carry it out, all at the same time.
 *
 * What a runtime asks for again and again is kept, so that it waits for nobody: Podwire's services are asked every two seconds for
 * as long as somebody wants to know. The answer is never older than {@link READY_FOR_MS}: else the services are asked there
 * and then. Other IPAM plugins are programs, and are run only when somebody wants to know.
 */
export class Readiness {
  readonly #options: ReadinessOptions;
  readonly #kept = new Map<string, Kept>();
  readonly #stopped = new AbortController();
  /** Who began before it waited for the process to come, which is not part of anybody's wait for the services. */
  readonly #madeAtMs: number;

  constructor(options: ReadinessOptions) {
    this.#options = options;
    this.#madeAtMs = options.clock.nowMs();
  }

  /**
   * @param begunAtMs - when the runtime began to ask, in epoch milliseconds
   * @throws Failure NOT_READY or PODS_AT_RISK with every reason
   */
  async require(request: NodeRequest, begunAtMs: number): Promise<void> {
    const { journal } = this.#options;
    const kept = this.#keep(request);
    const reasons = this.#believed(kept) ?? (await this.#waitFor(kept, Math.max(begunAtMs, this.#madeAtMs)));
    const { fault } = journal;
    if (fault !== undefined) {
      const all = [`${fault}; a restart of the node would leak what it holds`, ...reasons];
      throw new Failure('PODS_AT_RISK', all.join('; '));
    }
    if (reasons.length > 0) throw new Failure('NOT_READY', reasons.join('; '));
  }

  /** Keeps no answer any more. */
  stop(): void {
    this.#stopped.abort();
  }

  #keep(request: NodeRequest): Kept {
    const nowMs = this.#options.clock.nowMs();
    const key = JSON.stringify(request);
    const known = this.#kept.get(key);
    if (known) {
      known.wantedAtMs = nowMs;
      return known;
    }
    const kept: Kept = { request, wantedAtMs: nowMs };
    this.#kept.set(key, kept);
    void this.#look(kept).finally(() => this.#kept.delete(key));
    return kept;
  }

  /** Looks after an answer for as long as somebody wants it. */
  async #look(kept: Kept): Promise<void> {
    const { clock } = this.#options;
    const isOurs = kept.request.share.kind !== 'wire';
    while ((await clock.sleep(PAUSE_MS, this.#stopped.signal)) === 'elapsed') {
      if (clock.nowMs() - kept.wantedAtMs >= KEPT_FOR_MS) return;
      // A defect is told to whoever asks next.
      if (isOurs) await this.#ask(kept).answer.catch(() => undefined);
    }
  }

  #believed({ latest }: Kept): readonly string[] | undefined {
    const nowMs = this.#options.clock.nowMs();
    return latest && latest.sinceMs <= nowMs && nowMs < latest.untilMs ? latest.reasons : undefined;
  }

  /** The answer, or what is known of it when it has taken too long. It comes all the same, and is kept for who asks next. */
  async #waitFor(kept: Kept, sinceMs: number): Promise<readonly string[]> {
    const { clock } = this.#options;
    const question = this.#ask(kept);
    const over = new AbortController();
    // However the clock was set meanwhile.
    const waitMs = Math.min(WAIT_MS, Math.max(MIN_WAIT_MS, sinceMs + WAIT_MS - clock.nowMs()));
    const waited = clock.sleep(waitMs, over.signal).then(() => undefined);
    try {
      const answer = await Promise.race([question.answer, waited]);
      if (answer) return answer;
    } finally {
      over.abort();
    }
    const reasons = question.soFar(waitMs);
    const nowMs = clock.nowMs();
    kept.latest = { reasons, sinceMs: nowMs, untilMs: nowMs + UNREADY_FOR_MS };
    return reasons;
  }

  /** Asks once for all who want to know meanwhile. */
  #ask(kept: Kept): Question {
    kept.asking ??= this.#askAnew(kept);
    return kept.asking;
  }

  #askAnew(kept: Kept): Question {
    const { clock } = this.#options;
    const askedAtMs = clock.nowMs();
    const question = this.#probe(kept.request);
    const answer = question.answer
      .then((reasons) => {
        const sinceMs = reasons.length === 0 ? askedAtMs : clock.nowMs();
        const untilMs = sinceMs + (reasons.length === 0 ? READY_FOR_MS : UNREADY_FOR_MS);
        kept.latest = { reasons, sinceMs, untilMs };
        return reasons;
      })
      .finally(() => (kept.asking = undefined));
    // Whoever waits for it may have gone by then.
    answer.catch(() => undefined);
    return { ...question, answer };
  }

  /** Only those are asked whose work it would be. */
  #probe({ network, nodeName = this.#options.nodeName, wish, share }: NodeRequest): Question {
    const { upkeep, clock } = this.#options;
    const limits: Limits = { deadlineMs: clock.nowMs() + PROBE_TIMEOUT_MS, signal: new AbortController().signal };
    const found = new Findings();
    const ipam: Asked = { service: 'podwire-ipam', unreached: () => upkeep.ipam.unreached() };
    const dataplane: Asked = { service: 'podwire-dataplane', unreached: () => upkeep.dataplane.unreached() };
    const askIpam = () => [
      found.of(ipam, async () => servingReason(ipam, await upkeep.ipam.isServing(limits))),
      found.of(ipam, async () => {
        const refusal = await upkeep.ipam.refusalOf({ nodeName, network, wish }, limits);
        return refusal === undefined ? undefined : `podwire-ipam has no address for a pod: ${refusal}`;
      }),
    ];
    const askDelegate = (delegate: Delegate) =>
      found.of({ service: `IPAM plugin ${delegate.type}`, unreached: () => undefined }, async () => {
        await callDelegate(delegate, 'STATUS', { clock, limits });
        return undefined;
      });
    const askDataplane = () =>
      found.of(dataplane, async () => servingReason(dataplane, await upkeep.dataplane.isServing(limits)));
    const asked = [
      ...(share.kind === 'wire' ? [askDelegate(share.delegate)] : askIpam()),
      ...(share.kind === 'addresses' ? [] : [askDataplane()]),
    ];
    return {
      answer: Promise.all(asked).then(() => found.reasons(0)),
      soFar: (waitedMs) => found.reasons(waitedMs),
    };
  }
}

interface Asked {
  readonly service: string;
  /** Name and address of a service to which there is no connection. */
  readonly unreached: () => string | undefined;
}

/** Why an ADD would fail, by what services have answered so far, in the order of the questions. Silence is a reason. */
class Findings {
  readonly #reasons: ((waitedMs: number) => string | undefined)[] = [];

  /** @param ask - gives the reason; undefined for none. @throws what it throws that is no Failure */
  async of(asked: Asked, ask: () => Promise<string | undefined>): Promise<void> {
    const place = this.#reasons.push((waitedMs) => silenceOf(asked, waitedMs)) - 1;
    const reason = await reasonOf(asked, ask);
    this.#reasons[place] = () => reason;
  }

  /** @param waitedMs - time that services had which have not answered */
  reasons(waitedMs: number): readonly string[] {
    return [...new Set(this.#reasons.flatMap((reason) => reason(waitedMs) ?? []))];
  }
}

/** Who is not there, or listens elsewhere, is told from who hangs. */
function silenceOf({ service, unreached }: Asked, waitedMs: number): string {
  const place = unreached();
  return place === undefined
    ? `${service} does not answer within ${waitedMs} ms`
    : `${place} is not reached within ${waitedMs} ms: check that it runs and listens there`;
}

function servingReason({ service }: Asked, isServing: boolean): string | undefined {
  return isServing ? undefined : `${service} is not serving yet, or no longer: see its log`;
}

/** A question that a service of an earlier release does not know is no reason. */
async function reasonOf(asked: Asked, ask: () => Promise<string | undefined>): Promise<string | undefined> {
  try {
    return await ask();
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    if (error.code === 'UNIMPLEMENTED') return undefined;
    const isSilent = error.code === 'UNREACHABLE' || error.code === 'DEADLINE_EXCEEDED';
    if (isSilent) return silenceOf(asked, PROBE_TIMEOUT_MS);
    const reason = tracedMessage(error);
    return reason.startsWith(asked.service) ? reason : `${asked.service}: ${reason}`;
  }
}
