// What the collector received, against what the dashboards promise.
import { until } from './wait.mjs';

const SOON = 60;
const STATUS_ERROR = 2;

/** The spans of one pod's trace, from the kubelet to the kernel: the service, and what the span's name contains. */
const ONE_TRACE = [
  ['kubelet', /syncPod/i],
  ['containerd', /RunPodSandbox/],
  ['podwire-plugin', /^podwire\.shim$/],
  ['podwire-plugin', /^CNI ADD$/],
  ['podwire-ipam', /AddressService\/Allocate$/],
  ['podwire-ipam', /^podwire\.store\.commit$/],
  ['podwire-dataplane', /PodService\/AttachPod$/],
  ['podwire-dataplane', /^podwire\.kernel\.batch$/],
];

function byTrace(spans) {
  const traces = new Map();
  for (const span of spans) traces.set(span.traceId, [...(traces.get(span.traceId) ?? []), span]);
  return [...traces.values()];
}

/** Some trace leads from the kubelet's sync of a pod to the batch of kernel requests. */
export async function expectOneTrace(observability) {
  let best = [];
  const isWhole = () => {
    const found = byTrace(observability.spans()).map((spans) =>
      ONE_TRACE.filter(([service, name]) => spans.some((span) => span.service === service && name.test(span.name))),
    );
    best = found.reduce((a, b) => (b.length > a.length ? b : a), []);
    return best.length === ONE_TRACE.length;
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
