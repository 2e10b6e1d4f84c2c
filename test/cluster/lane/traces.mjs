// Checks the collector's spans against the dashboards' promises.
import { until } from './wait.mjs';

const SOON = 60;
const STATUS_ERROR = 2;

/** The spans of one pod's trace, from the kubelet to the kernel: the service, and what the span's name contains. */
const ONE_TRACE = [
  ['kubelet', /syncPod/i],
  ['containerd', /RunPodSandbox/],
  ['podwire-node', /^podwire\.shim$/],
  ['podwire-node', /^CNI ADD$/],
  ['podwire-ipam', /AddressService\/Allocate$/],
  ['podwire-ipam', /^podwire\.store\.commit$/],
  ['podwire-node', /^podwire\.dataplane\.attach$/],
  ['podwire-node', /^podwire\.kernel\.batch$/],
];

/** The spans of a trace as text, each below its parent: {service, name, offset and duration in milliseconds}. */
function waterfall(spans) {
  const sorted = spans.toSorted((a, b) => Number(BigInt(a.startTimeUnixNano) - BigInt(b.startTimeUnixNano)));
  const originNs = BigInt(sorted[0].startTimeUnixNano);
  const ms = (ns) => (Number(ns) / 1e6).toFixed(2).padStart(9);
  const ids = new Set(spans.map(({ spanId }) => spanId));
  const lines = (parent, depth) =>
    sorted.filter(parent).flatMap(({ spanId, service, name, startTimeUnixNano, endTimeUnixNano }) => {
      const [start, end] = [BigInt(startTimeUnixNano), BigInt(endTimeUnixNano)];
      const line = `${ms(start - originNs)} ${ms(end - start)}  ${'  '.repeat(depth)}${service}: ${name}`;
      return [line, ...lines(({ parentSpanId }) => parentSpanId === spanId, depth + 1)];
    });
  return `${lines(({ parentSpanId = '' }) => !ids.has(parentSpanId), 0).join('\n')}\n`;
}

function byTrace(spans) {
  const traces = new Map();
  for (const span of spans) traces.set(span.traceId, [...(traces.get(span.traceId) ?? []), span]);
  return [...traces.values()];
}

/** Some trace leads from the kubelet's sync of a pod to the batch of kernel requests. */
export async function expectOneTrace(observability) {
  let best = [];
  const partsOf = (spans) =>
    ONE_TRACE.filter(([service, name]) => spans.some((span) => span.service === service && name.test(span.name)));
  const isWhole = () => {
    const traces = byTrace(observability.spans());
    best = traces.map(partsOf).reduce((a, b) => (b.length > a.length ? b : a), []);
    const whole = traces.find((spans) => partsOf(spans).length === ONE_TRACE.length);
    if (whole !== undefined) observability.keep('one-trace.txt', waterfall(whole));
    return whole !== undefined;
  };
  await until('one trace from the kubelet to the kernel', isWhole, SOON, () => {
    const services = [...new Set(observability.spans().map(({ service }) => service))];
    return `the longest has ${best.map(([service, name]) => `${service} ${name}`).join(', ')}; spans came from ${services.join(', ')}`;
  });
}

/** The sampling keeps every failed ADD. */
export async function expectSamplingKeepsFailures(observability) {
  const failed = (spans) =>
    new Set(
      spans
        .filter(({ name, status }) => name === 'CNI ADD' && status?.code === STATUS_ERROR)
        .map(({ traceId }) => traceId),
    );
  const all = () => failed(observability.spans());
  await until('a failed ADD', () => all().size > 0, SOON);
  const kept = () => failed(observability.spans(`${observability.traces}.kept`));
  await until('the failed ADDs to be kept', () => [...all()].every((id) => kept().has(id)), SOON);
}

/** A point of the histogram of ADD spans leads to the trace of an ADD. */
export async function expectExemplars(observability) {
  const isTraceOfAdd = (id) => observability.spans().some((span) => span.traceId === id && span.name === 'CNI ADD');
  const series = 'podwire_span_duration_seconds_bucket{span_name="CNI ADD"}';
  const found = async () => (await observability.exemplarTraces(series)).some(isTraceOfAdd);
  await until('an exemplar of an ADD', found, SOON);
}
