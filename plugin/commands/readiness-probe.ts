import { Failure } from '@podwire/shared/failure/failure';
import { tracedMessage } from '@podwire/shared/failure/status';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { Providers } from '../addresses/providers.js';
import type { Dataplane, Limits } from '../clients/clients.js';
import type { NodeRequest } from '../requests/request.js';

/** Timeout of the services. A slow service must not make the node not ready while no STATUS waits for it. */
const PROBE_TIMEOUT_MS = 800;

/** The parts that an ADD needs; values of the metric's label `reason`. */
export const PARTS = ['addresses', 'ipam', 'ipam-plugin', 'dataplane', 'journal'] as const;

/** Why an ADD would fail. */
export interface Reason {
  readonly part: (typeof PARTS)[number];
  readonly text: string;
}

/** Concurrent queries of all services that an ADD needs. */
export interface ReadinessProbe {
  readonly result: Promise<readonly Reason[]>;
  /** The result so far; each service that has not answered yet is a reason. */
  readonly partialResult: (waitedMs: number) => readonly Reason[];
}

export interface ReadinessProbeOptions {
  readonly providers: Pick<Providers, 'of'>;
  readonly dataplane: Pick<Dataplane, 'isServing'>;
  /** Default for requests without a node name. */
  readonly nodeName: string;
  readonly clock: Clock;
}

/** Determines why an ADD would fail. Queries only the services that the ADD would need. */
export function probeServices(
  request: NodeRequest,
  { providers, dataplane, nodeName: defaultNodeName, clock }: ReadinessProbeOptions,
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
