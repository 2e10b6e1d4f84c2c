import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';

import { callCni, makePod, NETWORK, removePod } from '../support/pods.js';
import { Stack, type ProcessName } from '../support/stack.js';

const PROCESSES: readonly ProcessName[] = ['plugin', 'ipam', 'dataplane'];
const TRACE_ID = '0af7651916cd43dd8448eb211c80319c';
const TRACEPARENT = `00-${TRACE_ID}-b7ad6b7169203331-01`;

/** The SDK's console exporter writes spans between the log lines; batches go out when the process stops. */
const stack = new Stack({ env: { OTEL_TRACES_EXPORTER: 'console', OTEL_METRICS_EXPORTER: 'none' } });
const pod = makePod('traced');
const logs = new Map<ProcessName, string>();

beforeAll(async () => {
  await stack.start();
  // Other changes would be committed together with the pod's addresses, in a span of either's trace.
  await vi.waitFor(() => expect(stack.log('dataplane')).toContain('is registered with'), { timeout: 20_000 });
  const call = (command: string) => callCni({ command, pod, socket: stack.sockets.plugin, env: { TRACEPARENT } });
  expect(await call('ADD')).toMatchObject({ exitCode: 0 });
  expect(await call('DEL')).toMatchObject({ exitCode: 0 });
  for (const name of PROCESSES) expect(await stack.stop(name)).toBe(0);
  for (const name of PROCESSES) logs.set(name, stack.log(name));
});

afterAll(async () => {
  await stack.destroy();
  removePod(pod);
});

/** Names of the spans that a process exported under the trace. */
function spansOf(name: ProcessName): Set<string> {
  // At the margin of two: a parent and links have trace IDs, too.
  const spans = logs.get(name)!.matchAll(/\n {2}traceId: '(\w+)',[^]*?\n {2}name: '([^']+)'/g);
  return new Set([...spans].filter(([, traceId]) => traceId === TRACE_ID).map(([, , span]) => span!));
}

describe('one trace from the runtime to the datastore and the kernel', () => {
  test.each<[ProcessName, readonly string[]]>([
    [
      'plugin',
      [
        'CNI ADD',
        'CNI DEL',
        'podwire.shim',
        'podwire.plugin.queue_wait',
        'podwire.ipam.v1.AddressService/Allocate',
        'podwire.ipam.v1.AddressService/Release',
        'podwire.dataplane.v1.PodService/AttachPod',
        'podwire.dataplane.v1.PodService/DetachPod',
      ],
    ],
    [
      'ipam',
      ['podwire.ipam.v1.AddressService/Allocate', 'podwire.ipam.v1.AddressService/Release', 'podwire.store.commit'],
    ],
    [
      'dataplane',
      [
        'podwire.dataplane.v1.PodService/AttachPod',
        'podwire.dataplane.v1.PodService/DetachPod',
        'podwire.kernel.batch',
      ],
    ],
  ])('%s exports its spans with this trace', (name, expected) => {
    expect([...spansOf(name)]).toEqual(expect.arrayContaining([...expected]));
  });

  test.each(PROCESSES)('every log line of %s about the pod has trace and attachment', (name) => {
    const lines = logs
      .get(name)!
      .split('\n')
      .filter((line) => line.startsWith('{"level"'))
      .map((line): Record<string, unknown> => JSON.parse(line));
    const attachment = `${NETWORK}/${pod.containerId}/eth0`;
    const about = lines.filter((line) => line.trace_id === TRACE_ID);
    expect(about.length).toBeGreaterThan(0);
    expect(about.filter((line) => line.attachment !== attachment)).toEqual([]);
    expect(lines.filter((line) => line.attachment === attachment && line.trace_id !== TRACE_ID)).toEqual([]);
  });
});
