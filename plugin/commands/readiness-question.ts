import { Failure } from '@podwire/shared/failure/failure';
import { tracedMessage } from '@podwire/shared/failure/status';
import type { Clock } from '@podwire/shared/runtime/clock';

import { callDelegate } from '../addresses/ipam-plugin.js';
import type { Delegate } from '../addresses/mode.js';
import type { Limits } from '../clients/clients.js';
import type { DataplaneUpkeep, IpamUpkeep } from '../clients/upkeep.js';
import type { NodeRequest } from '../requests/request.js';

/** Time that the services have. A slow service must not make the node not ready while no STATUS waits for it. */
const PROBE_TIMEOUT_MS = 800;

/** What a failed ADD would lack, as the metric names it. */
export const PARTS = ['addresses', 'ipam', 'ipam-plugin', 'dataplane', 'journal'] as const;

/** Why an ADD would fail. */
export interface Reason {
  readonly part: (typeof PARTS)[number];
  readonly text: string;
}

/** A question to all services at once. */
export interface Question {
  readonly answer: Promise<readonly Reason[]>;
  /** Why an ADD would fail as far as is known after that time: services that have not answered are reasons. */
  readonly soFar: (waitedMs: number) => readonly Reason[];
}

export interface QuestionOptions {
  readonly upkeep: { readonly ipam: IpamUpkeep; readonly dataplane: DataplaneUpkeep };
  /** Where the request names no node. */
  readonly nodeName: string;
  readonly clock: Clock;
}

/** Asks whether an ADD could succeed. Queries only the services that the ADD would need. */
export function askServices(request: NodeRequest, { upkeep, nodeName: usual, clock }: QuestionOptions): Question {
  const { network, nodeName = usual, wish, share } = request;
  const limits: Limits = { deadlineMs: clock.nowMs() + PROBE_TIMEOUT_MS, signal: new AbortController().signal };
  const found = new Findings();
  const ipam: Asked = { part: 'ipam', service: 'podwire-ipam', unreached: () => upkeep.ipam.unreached() };
  const askIpam = () => [
    found.of(ipam, async () => servingReason(ipam, await upkeep.ipam.isServing(limits))),
    found.of(ipam, async () => {
      const refusal = await upkeep.ipam.refusalOf({ nodeName, network, wish }, limits);
      if (refusal === undefined) return undefined;
      return { part: 'addresses', text: `podwire-ipam has no address for a pod: ${refusal}` };
    }),
  ];
  const askDelegate = (delegate: Delegate) => {
    const asked: Asked = {
      part: 'ipam-plugin',
      service: `IPAM plugin ${delegate.type}`,
      unreached: () => undefined,
    };
    return found.of(asked, async () => {
      await callDelegate(delegate, 'STATUS', { clock, limits });
      return undefined;
    });
  };
  const dataplane: Asked = {
    part: 'dataplane',
    service: 'podwire-dataplane',
    unreached: () => upkeep.dataplane.unreached(),
  };
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

interface Asked {
  readonly part: Reason['part'];
  readonly service: string;
  /** Name and address of a service to which there is no connection. */
  readonly unreached: () => string | undefined;
}

/** Why an ADD would fail, by what services have answered so far, in the order of the questions. Silence is a reason. */
class Findings {
  readonly #reasons: ((waitedMs: number) => Reason | undefined)[] = [];

  /** @param ask - gives the reason; undefined for none. @throws what it throws that is no Failure */
  async of(asked: Asked, ask: () => Promise<Reason | undefined>): Promise<void> {
    const place = this.#reasons.push((waitedMs) => silenceOf(asked, waitedMs)) - 1;
    const reason = await reasonOf(asked, ask);
    this.#reasons[place] = () => reason;
  }

  /** @param waitedMs - time that services had which have not answered */
  reasons(waitedMs: number): readonly Reason[] {
    const all = this.#reasons.flatMap((reason) => reason(waitedMs) ?? []);
    return [...new Map(all.map((reason) => [reason.text, reason])).values()];
  }
}

/** A service that is not running, or listens elsewhere, is distinguished from one that hangs. */
function silenceOf({ part, service, unreached }: Asked, waitedMs: number): Reason {
  const place = unreached();
  if (place === undefined) return { part, text: `${service} does not answer within ${waitedMs} ms` };
  return { part, text: `${place} is not reached within ${waitedMs} ms: check that it runs and listens there` };
}

function servingReason({ part, service }: Asked, isServing: boolean): Reason | undefined {
  return isServing ? undefined : { part, text: `${service} is not serving yet, or no longer: see its log` };
}

/** A question that a service of an earlier release does not know is no reason. */
async function reasonOf(asked: Asked, ask: () => Promise<Reason | undefined>): Promise<Reason | undefined> {
  try {
    return await ask();
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    if (error.code === 'UNIMPLEMENTED') return undefined;
    const isSilent = error.code === 'UNREACHABLE' || error.code === 'DEADLINE_EXCEEDED';
    if (isSilent) return silenceOf(asked, PROBE_TIMEOUT_MS);
    const text = tracedMessage(error);
    return { part: asked.part, text: text.startsWith(asked.service) ? text : `${asked.service}: ${text}` };
  }
}
