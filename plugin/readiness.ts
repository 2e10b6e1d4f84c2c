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

/** Several runtimes and people may ask at once. */
const CACHED_MS = 1000;

/** Whether an ADD could succeed, asked of those who would carry it out, all at the same time. */
export class Readiness {
  readonly #options: ReadinessOptions;
  readonly #asked = new Map<string, { readonly atMs: number; readonly reasons: Promise<string[]> }>();

  constructor(options: ReadinessOptions) {
    this.#options = options;
  }

  /** @throws Failure NOT_READY or PODS_AT_RISK with every reason */
  async require(request: NodeRequest): Promise<void> {
    const { journal } = this.#options;
    const reasons = await this.#ask(request);
    const { fault } = journal;
    if (fault !== undefined) {
      const all = [`${fault}; a restart of the node would leak what it holds`, ...reasons];
      throw new Failure('PODS_AT_RISK', all.join('; '));
    }
    if (reasons.length > 0) throw new Failure('NOT_READY', reasons.join('; '));
  }

  /** Why an ADD would fail; asked anew when the last answer is older than a second. */
  #ask(request: NodeRequest): Promise<string[]> {
    const nowMs = this.#options.clock.nowMs();
    for (const [key, { atMs }] of this.#asked) if (nowMs - atMs >= CACHED_MS) this.#asked.delete(key);
    const key = JSON.stringify([request.share, request.network]);
    const fresh = this.#asked.get(key);
    if (fresh) return fresh.reasons;
    const reasons = this.#probe(request);
    this.#asked.set(key, { atMs: nowMs, reasons });
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
