import {
  ProbeServiceService,
  ProbeResult,
  type Counter,
  type TracePacketsResponse,
} from '@podwire/proto/podwire/dataplane/v1/probe';
import type { MethodDefinition } from '@grpc/grpc-js';
import { Failure } from '@podwire/shared/failure/failure';

import type { Context } from '../../clients/services.js';
import type { Check, CheckResult } from './checks.js';

/** Time of one call: a node that hangs must not take the time of the whole command. */
const NODE_TIMEOUT_MS = 15_000;

/** The contract's limit of one call. */
const MAX_PROBES = 512;
const ANSWER_MS = 1000;

const TRACE_MS = 3000;
/** Until the trace is ready on a busy node, and until a second packet, should it not have been. */
const TRACED_PACKETS_MS = [1000, 500] as const;

export const NO_RESULT = ProbeResult.fromPartial({ error: 'ETIMEDOUT' });

/** @throws Failure */
export async function callNode<Request, Response>(
  { onNode }: Context,
  node: string,
  method: MethodDefinition<Request, Response>,
  request: Request,
): Promise<Response> {
  return (await onNode(node, NODE_TIMEOUT_MS)).call(method, request);
}

/** The answer of a call, or its failure. */
export async function attempt<Answer>(call: () => Promise<Answer>): Promise<Answer | Failure> {
  try {
    return await call();
  } catch (error) {
    if (error instanceof Failure) return error;
    throw error;
  }
}

/** Sends the packets of checks that have the same source. @throws Failure */
export async function sendChecks(checks: readonly [Check, ...Check[]], context: Context): Promise<CheckResult[]> {
  const [{ node, containerId }] = checks;
  const results: ProbeResult[] = [];
  for (let at = 0; at < checks.length; at += MAX_PROBES) {
    const probes = checks
      .slice(at, at + MAX_PROBES)
      .map(({ target: { address, port, udp = false }, packetBytes }) => ({ address, port, udp, packetBytes }));
    const request = { containerId, probes, waitMs: ANSWER_MS };
    results.push(...(await callNode(context, node, ProbeServiceService.runProbes, request)).results);
  }
  return checks.map((check, at) => ({ check, result: results[at] ?? NO_RESULT }));
}

/** The packets of a check on the nodes of its ends. */
export interface Traces {
  /** Trace of the packet, and of its answer, on the node that sends it. Undefined: there is none. */
  readonly sourceTrace?: TracePacketsResponse | undefined;
  /** The same trace where the target is not a pod of another node. */
  readonly targetTrace?: TracePacketsResponse | undefined;
  readonly counters: readonly (Counter & { readonly node: string })[];
}

interface FollowOptions {
  /** Also follows packets from other addresses: the address of a node that sends itself may be that of a tunnel. */
  readonly anySource: boolean;
  readonly signal: AbortSignal;
}

/** Sends the packet of a check twice, and traces it meanwhile. */
export async function followCheck(
  check: Check,
  context: Context,
  { anySource, signal }: FollowOptions,
): Promise<Traces & { readonly sent: Failure | readonly CheckResult[] }> {
  const { node, address: sourceAddress, target } = check;
  const request = { sourceAddress, destinationAddress: target.address, durationMs: TRACE_MS, anySource };
  const trace = async (name: string) => {
    const answer = await attempt(() => callNode(context, name, ProbeServiceService.tracePackets, request));
    if (!(answer instanceof Failure)) return answer;
    context.note(`${name}: no trace: ${answer.message}`);
    return undefined;
  };
  const send = async () => {
    const sent: CheckResult[] = [];
    for (const pauseMs of TRACED_PACKETS_MS) {
      await context.clock.sleep(pauseMs, signal);
      sent.push(...(await sendChecks([check], context)));
    }
    return sent;
  };
  const other = target.kind === 'pod' && target.node !== node ? target.node : undefined;
  const [sourceTrace, otherTrace, sent] = await Promise.all([
    trace(node),
    other === undefined ? undefined : trace(other),
    attempt(send),
  ]);
  const counters = [
    ...(sourceTrace?.counters ?? []).map((counter) => ({ ...counter, node })),
    ...(otherTrace?.counters ?? []).map((counter) => ({ ...counter, node: other ?? '' })),
  ];
  return { sent, sourceTrace, targetTrace: other === undefined ? sourceTrace : otherTrace, counters };
}
