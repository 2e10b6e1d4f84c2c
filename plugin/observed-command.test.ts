import { trace } from '@opentelemetry/api';
import { Failure } from '@podwire/shared/failure/failure';
import { propagateTraces } from '@podwire/shared/telemetry/telemetry';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';

import { Plugin } from './testing/plugin.js';
import { RecordingTracer } from './testing/tracer.js';

const TRACE_ID = '0af7651916cd43dd8448eb211c80319c';
const TRACE_CONTEXT = { traceparent: `00-${TRACE_ID}-b7ad6b7169203331-01`, tracestate: undefined, baggage: undefined };

const tracer = new RecordingTracer();
let plugin: Plugin;

beforeAll(async () => {
  // The first provider stays, and telemetry adds the rest.
  trace.setGlobalTracerProvider({ getTracer: () => tracer });
  propagateTraces();
  plugin = await new Plugin().start();
});

afterAll(() => plugin.end());

beforeEach(() => {
  tracer.spans.length = 0;
});

describe('the trace of an ADD', () => {
  test('is the runtime’s, and has the wait in the queue, both calls and their subjects', async () => {
    await plugin.run('ADD', { rest: { traceContext: TRACE_CONTEXT } });
    expect(new Set(tracer.spans.map(({ traceId }) => traceId))).toEqual(new Set([TRACE_ID]));
    expect(tracer.named('CNI ADD')).toMatchObject([
      {
        parent: undefined,
        failed: false,
        attributes: {
          'cni.command': 'ADD',
          'cni.network.name': 'net',
          'container.id': 'c0ffee',
          'network.interface.name': 'eth0',
          'k8s.pod.name': 'web-0',
          'k8s.namespace.name': 'default',
          'k8s.pod.uid': 'u-1',
        },
      },
    ]);
    const children = tracer.spans.filter(({ parent }) => parent === 'CNI ADD').map(({ name }) => name);
    expect(children).toEqual([
      'podwire.plugin.queue_wait',
      'podwire.ipam.v1.AddressService/Allocate',
      'podwire.dataplane.attach',
    ]);
  });

  test('has no pod where the runtime names none', async () => {
    await plugin.run('ADD', { variables: { CNI_ARGS: '' } });
    const names = Object.keys(tracer.named('CNI ADD')[0]!.attributes);
    expect(names.filter((name) => name.startsWith('k8s'))).toEqual(['k8s.node.name']);
  });

  test('is below the span of the shim, from the start of that process to the answer', async () => {
    await plugin.run('ADD', { rest: { startedNs: 1_700_000_000_000_000_001n, arrivedNs: 1_700_000_001_000_000_005n } });
    expect(tracer.named('podwire.shim')).toMatchObject([
      {
        parent: undefined,
        startTime: [1_700_000_000, 1],
        attributes: { 'k8s.pod.name': 'web-0', 'podwire.result': 'success' },
      },
    ]);
    expect(tracer.named('CNI ADD')).toMatchObject([{ parent: 'podwire.shim' }]);
  });

  test.each([
    ['unknown', undefined],
    ['in the future', 2_000_000n],
  ])('has no span of a shim whose start is %s', async (_, startedNs) => {
    await plugin.run('ADD', { rest: { startedNs, arrivedNs: 1n } });
    expect(tracer.named('podwire.shim')).toEqual([]);
  });

  test('has an event for each repeated call', async () => {
    plugin.script.failNext('Allocate', new Failure('UNREACHABLE', 'restarting'));
    expect(await plugin.run('ADD')).toMatchObject({ exitCode: 0 });
    expect(tracer.named('CNI ADD')).toMatchObject([{ events: ['podwire.retry'] }]);
  });
});

test('the journal logs the trace under which the log has its subject', async () => {
  plugin.script.failNext('DetachPod', new Error('a defect'));
  const attempt = plugin.script.hold('DetachPod');
  const deleting = plugin.run('DEL', { rest: { traceContext: TRACE_CONTEXT } });
  await plugin.script.untilCalled('DetachPod');
  attempt();
  await deleting;
  const { msg } = plugin.record.lines().find(({ action }) => action === 'detach-and-release') ?? {};
  expect(msg).toMatch(new RegExp(`is pending: internal error: .*log of podwire-node under trace ${TRACE_ID}$`));
});

test.each(['DEL', 'CHECK', 'GC', 'STATUS', 'VERSION'])('%s has its own span', async (command) => {
  await plugin.run(command);
  expect(tracer.named(`CNI ${command}`)).toMatchObject([{ attributes: { 'cni.command': command } }]);
});

test('an unknown command has a span with a fixed name', async () => {
  await plugin.run('x'.repeat(100));
  expect(tracer.named('CNI unknown')).toHaveLength(1);
});

describe('a failed ADD is reported with its pod', () => {
  const pod = { namespace: 'default', name: 'web-0', uid: 'u-1' };

  beforeEach(() => {
    plugin.failedPods.length = 0;
  });

  test('where the dataplane refuses it', async () => {
    plugin.script.failNext('AttachPod', new Failure('KERNEL_REFUSED', 'the kernel refuses'));
    await plugin.run('ADD', { variables: { CNI_CONTAINERID: 'f00' } });
    expect(plugin.failedPods).toEqual([{ pod, code: 'KERNEL_REFUSED', message: 'the kernel refuses' }]);
  });

  test('where its configuration or annotation is invalid', async () => {
    await plugin.run('ADD', { config: { mtu: 'large' } });
    expect(plugin.failedPods).toMatchObject([{ pod, code: 'INVALID_CONFIG' }]);
  });

  test('but not where there is no pod, or the ADD is a success', async () => {
    await plugin.run('ADD', { config: { mtu: 'large' }, variables: { CNI_ARGS: '' } });
    await plugin.run('ADD');
    await plugin.run('CHECK', { config: { mtu: 'large' } });
    expect(plugin.failedPods).toEqual([]);
  });
});
