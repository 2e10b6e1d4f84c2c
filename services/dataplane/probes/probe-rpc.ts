import {
  ProbeServiceService,
  type AddProbePodRequest,
  type AddProbePodResponse,
  type RunProbesRequest,
  type RunProbesResponse,
  type TracePacketsRequest,
  type TracePacketsResponse,
} from '@podwire/proto/podwire/dataplane/v1/probe';
import { Failure } from '@podwire/shared/failure/failure';
import { formatAddress, parseAddress, type Address } from '@podwire/shared/net/address';
import type { RpcService } from '@podwire/shared/rpc/server';
import { unaryService, type Unary } from '@podwire/shared/rpc/unary';

import { routeTo, sendProbes } from '../kernel/probe-kernel.js';
import type { AttachmentRecord } from '../records/record.js';
import { counterChanges, readCounters } from './counters.js';
import { PROBE_NETWORK, type ProbePods } from './probe-pods.js';
import type { PacketTracer } from './packet-tracer.js';

export interface ProbeParts {
  readonly pods: ProbePods;
  readonly tracer: PacketTracer;
  readonly records: () => readonly AttachmentRecord[];
}

export function probeService(parts: ProbeParts, unary: Unary): RpcService {
  return unaryService(ProbeServiceService, unary, {
    addProbePod: (request) => addProbePod(parts, request),
    deleteProbePods: async ({ run }) => ({ count: await parts.pods.remove(run) }),
    runProbes: (request) => runProbes(parts, request),
    tracePackets: (request, { signal }) => tracePackets(parts, request, signal),
  });
}

const RUN = /^[a-z0-9-]{1,32}$/;
const MAX_WAIT_MS = 10_000;
const DEFAULT_WAIT_MS = 1000;
const MAX_PORT = 65_535;
const ICMP_BYTES = 8;
const IP_BYTES = { 4: 20, 6: 40 } as const;

async function addProbePod({ pods }: ProbeParts, request: AddProbePodRequest): Promise<AddProbePodResponse> {
  const { run, hostPort } = request;
  if (!RUN.test(run)) throw invalid(`run "${run}" must have 1 to 32 lower case letters, digits and dashes`);
  const families = ([4, 6] as const).filter((family) => request.families.includes(family));
  if (families.length === 0) throw invalid('families: must have 4 or 6');
  return pods.add({ run, families, hostPort });
}

async function runProbes({ pods, records }: ProbeParts, request: RunProbesRequest): Promise<RunProbesResponse> {
  const { containerId, probes, waitMs } = request;
  const record = records().find(({ network: { attachment } }) => attachment.containerId === containerId);
  if (containerId !== '' && !record)
    throw new Failure('ATTACHMENT_NOT_FOUND', `container "${containerId}" is not attached on this node`);
  const timeoutMs = Math.min(waitMs === 0 ? DEFAULT_WAIT_MS : waitMs, MAX_WAIT_MS);
  const sent = probes.map(({ address, port, udp, packetBytes }, at) => {
    if (port > MAX_PORT) throw invalid(`probes[${at}].port: must be at most ${MAX_PORT}`);
    const to = checkedAddress(`probes[${at}].address`, address);
    const payloadBytes = Math.min(65_000, Math.max(0, packetBytes - ICMP_BYTES - IP_BYTES[to.family]));
    return { address: formatAddress(to), ...(port > 0 && { port, udp }), payloadBytes };
  });
  pods.touch(containerId);
  const answers = await sendProbes(record?.network.netns, sent, timeoutMs);
  const results = answers.map(({ ms, error }, at) => {
    // A pod has no UDP server: its kernel refuses the datagram.
    const isAnswered = probes[at]?.udp && error?.code === 'ECONNREFUSED' && error.reporter === sent[at]?.address;
    const { code = '', meaning = '', reporter = '', mtuBytes = 0 } = (isAnswered ? undefined : error) ?? {};
    return { timeUs: Math.round(ms * 1000), error: code, message: meaning, reporter, mtuBytes };
  });
  return { results };
}

async function tracePackets(
  { tracer, records }: ProbeParts,
  { sourceAddress, destinationAddress, durationMs, anySource }: TracePacketsRequest,
  signal: AbortSignal,
): Promise<TracePacketsResponse> {
  const source = sourceAddress === '' ? undefined : checkedAddress('source_address', sourceAddress);
  const destination = checkedAddress('destination_address', destinationAddress);
  if (source && source.family !== destination.family)
    throw invalid('destination_address: must be of the family of the source');
  const ends = [source, destination].flatMap((end) => (end ? formatAddress(end) : []));
  const shown = records().filter(
    ({ network: { attachment, addresses } }) =>
      attachment.network === PROBE_NETWORK || addresses.some((address) => ends.includes(formatAddress(address))),
  );
  const interfaces = new Set(shown.map(({ network }) => network.hostInterfaceName));
  const route = await routeTo(destination);
  const routeBack = source ? await routeTo(source) : '';
  const before = await readCounters();
  const traced = { source: anySource ? undefined : source, destination };
  const steps = await tracer.trace(traced, Math.min(durationMs, MAX_WAIT_MS), signal);
  return { steps, route, routeBack, counters: counterChanges(before, await readCounters(), interfaces) };
}

function checkedAddress(field: string, text: string): Address {
  const address = parseAddress(text);
  if (!address) throw invalid(`${field}: must be an IP address`);
  return address;
}

function invalid(message: string): Failure {
  return new Failure('INVALID_REQUEST', message);
}
