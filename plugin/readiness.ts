import { Failure } from '@podwire/shared/failure/failure';
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

/** Runtimes ask under a lock, and a slow answer makes the node not ready: the services have this long. */
const PROBE_TIMEOUT_MS = 400;

/** How long it is believed that a node is ready, in milliseconds from the question to the services: a hang is noticed within it. */
const READY_FOR_MS = 3000;

/** How long it is believed that it is not: a service that is back is to be noticed soon. */
const UNREADY_FOR_MS = 1000;

/** Pause between the questions by which an answer is kept; with their own time it is less than {@link READY_FOR_MS}. */
const PAUSE_MS = 2000;

/** How long an answer is kept that nobody asks for. Kubelet asks every 5 s. */
const KEPT_FOR_MS = 60_000;

interface Kept {
  readonly request: NodeRequest;
  /** When somebody last wanted to know. */
  wantedAtMs: number;
  /** When the services were asked last, and why an ADD would have failed then. */
  latest?: { readonly askedAtMs: number; readonly reasons: readonly string[] };
  /** The question under way. */
  asking?: Promise<readonly string[]> | undefined;
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

  constructor(options: ReadinessOptions) {
    this.#options = options;
  }

  /** @throws Failure NOT_READY or PODS_AT_RISK with every reason */
  async require(request: NodeRequest): Promise<void> {
    const { journal } = this.#options;
    const kept = this.#keep(request);
    const reasons = this.#believed(kept) ?? (await this.#ask(kept));
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
    const key = JSON.stringify([request.share, request.network]);
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
      if (isOurs) await this.#ask(kept).catch(() => undefined);
    }
  }

  #believed({ latest }: Kept): readonly string[] | undefined {
    if (!latest) return undefined;
    const ageMs = this.#options.clock.nowMs() - latest.askedAtMs;
    return ageMs < (latest.reasons.length === 0 ? READY_FOR_MS : UNREADY_FOR_MS) ? latest.reasons : undefined;
  }

  /** Asks once for all who want to know meanwhile. */
  #ask(kept: Kept): Promise<readonly string[]> {
    kept.asking ??= this.#askAnew(kept).finally(() => (kept.asking = undefined));
    return kept.asking;
  }

  async #askAnew(kept: Kept): Promise<readonly string[]> {
    const askedAtMs = this.#options.clock.nowMs();
    const reasons = await this.#probe(kept.request);
    kept.latest = { askedAtMs, reasons };
    return reasons;
  }

  /** Only those are asked whose work it would be. */
  async #probe({ network, share }: NodeRequest): Promise<string[]> {
    const { upkeep, nodeName, clock } = this.#options;
    const limits: Limits = { deadlineMs: clock.nowMs() + PROBE_TIMEOUT_MS, signal: new AbortController().signal };
    const askIpam = () => [
      reasonOf('podwire-ipam', async () => servingReason('podwire-ipam', await upkeep.ipam.isServing(limits))),
      reasonOf('podwire-ipam', async () => {
        const refusal = await upkeep.ipam.refusalOf({ nodeName, network }, limits);
        return refusal === undefined ? undefined : `podwire-ipam has no address for a pod: ${refusal}`;
      }),
    ];
    const askDelegate = (delegate: Delegate) =>
      reasonOf(`IPAM plugin ${delegate.type}`, async () => {
        await callDelegate(delegate, 'STATUS', { clock, limits });
        return undefined;
      });
    const askDataplane = () =>
      reasonOf('podwire-dataplane', async () =>
        servingReason('podwire-dataplane', await upkeep.dataplane.isServing(limits)),
      );
    const found = await Promise.all([
      ...(share.kind === 'wire' ? [askDelegate(share.delegate)] : askIpam()),
      ...(share.kind === 'addresses' ? [] : [askDataplane()]),
    ]);
    return [...new Set(found.flatMap((reason) => reason ?? []))];
  }
}

function servingReason(service: string, isServing: boolean): string | undefined {
  return isServing ? undefined : `${service} does not serve yet, or not any more: look at its log`;
}

/** A question that a service of an earlier release does not know is no reason. */
async function reasonOf(service: string, ask: () => Promise<string | undefined>): Promise<string | undefined> {
  try {
    return await ask();
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    if (error.code === 'UNIMPLEMENTED') return undefined;
    const isSilent = error.code === 'UNREACHABLE' || error.code === 'DEADLINE_EXCEEDED';
    return isSilent ? `${service} does not answer within ${PROBE_TIMEOUT_MS} ms` : `${service}: ${error.message}`;
  }
}
