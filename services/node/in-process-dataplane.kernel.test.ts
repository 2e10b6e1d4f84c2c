import { context } from '@opentelemetry/api';
import { Failure } from '@podwire/shared/failure/failure';
import { hostInterfaceName } from '@podwire/shared/attachment/names';
import { LocalCalls } from '@podwire/plugin/clients/local-calls';
import type { Dataplane, Limits } from '@podwire/plugin/clients/clients';
import { serve, type RunningService } from '@podwire/dataplane/service';
import { MemoryKernel } from '@podwire/dataplane/testing/memory-kernel';
import { address, podNetwork, recordingLog } from '@podwire/dataplane/testing/pods';
import { ServiceFixture } from '@podwire/dataplane/testing/service';
import { systemClock } from '@podwire/shared/runtime/clock';
import { IntervalRecorder, withRecorder } from '@podwire/shared/telemetry/intervals';
import { propagateTraces } from '@podwire/shared/telemetry/telemetry';
import { afterEach, beforeAll, beforeEach, describe, expect, test } from 'vitest';

import { inProcessDataplane } from './in-process-dataplane.js';

let bench: ServiceFixture;
let kernel: MemoryKernel;
let service: RunningService;
let dataplane: Dataplane;
let logged: ReturnType<typeof recordingLog>;

beforeAll(() => propagateTraces());

beforeEach(async () => {
  bench = new ServiceFixture();
  kernel = new MemoryKernel();
  for (const name of ['a', 'b']) kernel.addNamespace(`/run/netns/${name}`);
  service = await serve(kernel, { config: bench.config(), deps: bench.deps() });
  logged = recordingLog();
  dataplane = inProcessDataplane(service, new LocalCalls({ clock: systemClock, log: logged.log }));
});

afterEach(async () => {
  await service.stop();
  bench.clear();
});

const attachmentOf = (containerId: string) => ({ network: 'net', containerId, interfaceName: 'eth0' });

const pod = (name: string, text: string) => podNetwork(name, { addresses: [address(text)] });

const limits = (rest: Partial<Limits> = {}): Limits => ({
  deadlineMs: Date.now() + 30_000,
  signal: new AbortController().signal,
  ...rest,
});

test('attaches, checks, lists and detaches pods', async () => {
  const a = pod('a', '10.65.0.7');
  expect(await dataplane.attachPod(a, limits())).toMatchObject({
    host: { name: a.hostInterfaceName, mac: 'ee:ee:ee:ee:ee:ee', mtuBytes: 1500 },
    pod: { name: 'eth0', mac: a.mac, mtuBytes: 1500 },
  });
  expect(await dataplane.checkPod(a, limits())).toBeUndefined();
  expect(await dataplane.isAttached(a.attachment, limits())).toBe(true);
  expect(await dataplane.wires(limits())).toEqual([{ attachment: a.attachment, addresses: ['10.65.0.7'] }]);
  expect(await bench.check(undefined, a.attachment)).toMatchObject({ differences: [] });
  for (let times = 0; times < 2; times++) await dataplane.detachPod(a, limits());
  expect(await dataplane.isAttached(a.attachment, limits())).toBe(false);
  expect(await dataplane.checkPod(a, limits())).toMatchObject({ wanted: 'present', actual: 'missing' });
});

test('refuses what the gRPC methods refuse, with the same fields', async () => {
  const wrong = {
    ...pod('a', '127.0.0.1'),
    ...{ netns: 'relative', mac: 'x', mtuBytes: 67, txQueueLength: -1, queueCount: 0.5 },
    bandwidth: { egress: { rateBitsPerSecond: 1, burstBits: undefined } },
  };
  const names = [
    'netns',
    'mac_address',
    'addresses[0]',
    'mtu_bytes',
    'tx_queue_length',
    'queue_count',
    'bandwidth.egress.rate_bits_per_second',
  ];
  const fields = names.map((name) => ({ field: `pod.${name}` }));
  for (const call of [dataplane.attachPod(wrong, limits()), dataplane.checkPod(wrong, limits())])
    await expect(call).rejects.toMatchObject({ code: 'INVALID_REQUEST', violations: fields });
  const attachment = { ...attachmentOf('a'), containerId: '' };
  const detaching = dataplane.detachPod({ attachment, netns: 'relative' }, limits());
  await expect(detaching).rejects.toMatchObject({
    code: 'INVALID_REQUEST',
    violations: [{ field: 'netns' }, { field: 'attachment.container_id' }],
  });
});

test('an attachment whose interface name another one has is detached', async () => {
  const a = pod('a', '10.65.0.7');
  await dataplane.attachPod({ ...a, hostInterfaceName: hostInterfaceName(attachmentOf('b')) }, limits());
  await dataplane.detachPod({ attachment: attachmentOf('b') }, limits());
  expect(await dataplane.isAttached(a.attachment, limits())).toBe(true);
});

describe('a call that takes too long', () => {
  test('ends at its deadline, and is then undone', async () => {
    const before = kernel.print();
    const pause = kernel.pauseBefore('link-add');
    const attaching = dataplane.attachPod(pod('a', '10.65.0.7'), limits({ deadlineMs: Date.now() + 50 }));
    await expect(attaching).rejects.toMatchObject({
      code: 'DEADLINE_EXCEEDED',
      message: expect.stringContaining("the node's dataplane did not finish within"),
    });
    pause.release();
    await service.dataplane.idle();
    expect(kernel.print()).toBe(before);
  });

  test('ends with the reason of its signal', async () => {
    const pause = kernel.pauseBefore('link-add');
    const caller = new AbortController();
    const attaching = dataplane.attachPod(pod('a', '10.65.0.7'), limits({ signal: caller.signal }));
    await pause.reached;
    caller.abort(new Failure('CANCELLED', 'the caller disconnected'));
    await expect(attaching).rejects.toThrow('the caller disconnected');
    pause.release();
  });

  test('is not begun after its signal has fired', async () => {
    const signal = AbortSignal.abort(new Failure('CANCELLED', 'too late'));
    await expect(dataplane.isAttached(attachmentOf('a'), limits({ signal }))).rejects.toThrow('too late');
  });
});

test('a defect is logged, and reported without its text', async () => {
  const find = () => Promise.reject(new TypeError('oops'));
  const parts = { ...service, dataplane: Object.assign(Object.create(service.dataplane), { find }) };
  const broken = inProcessDataplane(parts, new LocalCalls({ clock: systemClock, log: logged.log }));
  await expect(broken.isAttached(attachmentOf('a'), limits())).rejects.toMatchObject({
    code: 'INTERNAL',
    message: expect.not.stringContaining('oops'),
  });
  expect(logged.lines).toMatchObject([{ level: 'error', msg: 'defect: podwire.dataplane.get' }]);
});

test('records its time, with the parts inside it', async () => {
  const recorder = new IntervalRecorder(systemClock);
  await context.with(withRecorder(context.active(), recorder), () =>
    dataplane.attachPod(pod('a', '10.65.0.7'), limits()),
  );
  const intervals = recorder.intervals().map(({ name, phase, depth }) => [name, phase, depth]);
  expect(intervals[0]).toEqual(['dataplane AttachPod', 'dataplane', 0]);
  expect(intervals).toContainEqual(['podwire.kernel.open', 'kernel', 1]);
});

test('serves as the health status says', async () => {
  expect(dataplane.isServing()).toBe(true);
  await service.stop();
  expect(dataplane.isServing()).toBe(false);
  service = await serve(new MemoryKernel(), { config: bench.config(), deps: bench.deps() });
});
