import { spawn, type ChildProcess } from 'node:child_process';
import { existsSync, readFileSync, symlinkSync } from 'node:fs';
import { join } from 'node:path';
import process from 'node:process';

import { ATTRIBUTES, SPANS } from '@podwire/shared/telemetry/spans';
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';
import { z } from 'zod';

import { settled } from '../support/leftovers.js';
import { callCni, makePod, NETWORK, removePod, type CniCall, type Pod } from '../support/pods.js';
import { ROOT, SHIM } from '../support/root.js';
import { Stack, type ProcessName } from '../support/stack.js';

const PROCESSES: readonly ProcessName[] = ['node', 'ipam'];
const TRACE_ID = '0af7651916cd43dd8448eb211c80319c';
const PARENT_ID = 'b7ad6b7169203331';
const TRACEPARENT = `00-${TRACE_ID}-${PARENT_ID}-01`;
const PORT = 4318;

/** Kinds in OTLP. */
const KINDS = ['', 'INTERNAL', 'SERVER', 'CLIENT'];
const STATUS_ERROR = 2;

const valueSchema = z.record(z.string(), z.unknown());
const attributesSchema = z.array(z.object({ key: z.string(), value: valueSchema })).default([]);
const spanSchema = z.object({
  traceId: z.string(),
  spanId: z.string(),
  parentSpanId: z.string().optional(),
  name: z.string(),
  kind: z.number(),
  startTimeUnixNano: z.coerce.bigint(),
  endTimeUnixNano: z.coerce.bigint(),
  attributes: attributesSchema,
  status: z.object({ code: z.number().optional() }).default({}),
  links: z.array(z.object({ traceId: z.string() })).default([]),
});
const bodySchema = z.object({
  resourceSpans: z.array(
    z.object({
      resource: z.object({ attributes: attributesSchema }),
      scopeSpans: z.array(z.object({ spans: z.array(spanSchema) })),
    }),
  ),
});

type Span = z.infer<typeof spanSchema> & { readonly service: string };

const stack = new Stack({
  env: {
    OTEL_EXPORTER_OTLP_ENDPOINT: `http://127.0.0.1:${PORT}`,
    OTEL_EXPORTER_OTLP_PROTOCOL: 'http/json',
    OTEL_METRICS_EXPORTER: 'none',
    OTEL_BSP_SCHEDULE_DELAY: '100',
  },
});
const file = join(stack.folder, 'spans.json');
const [pod, other, journaled] = [makePod('traced'), makePod('untraced'), makePod('journaled')];
const logs = new Map<ProcessName, string>();
let receiver: ChildProcess;
let spans: readonly Span[] = [];

function received(): Span[] {
  if (!existsSync(file)) return [];
  const bodies = readFileSync(file, 'utf8').split('\n').slice(0, -1);
  return bodies.flatMap((body) =>
    bodySchema.parse(JSON.parse(body)).resourceSpans.flatMap(({ resource, scopeSpans }) => {
      const service = String(resource.attributes.find(({ key }) => key === 'service.name')?.value.stringValue);
      return scopeSpans.flatMap((scope) => scope.spans.map((span) => ({ service, ...span })));
    }),
  );
}

beforeAll(async () => {
  const program = [
    'exec',
    stack.netns,
    process.execPath,
    join(ROOT, 'test/support/span-receiver.mjs'),
    `${PORT}`,
    file,
  ];
  receiver = spawn('ip', ['netns', ...program], { stdio: 'inherit' });
  await stack.start();
  // Other changes would be committed together with the pod's addresses, in a span of either's trace.
  await vi.waitFor(() => expect(stack.log('node')).toContain('is registered with'), { timeout: 20_000 });
  const call = (command: string, of: Pod, config: object = {}, rest: Partial<CniCall> = {}) =>
    callCni({ command, pod: of, socket: stack.sockets.node, config: { cniVersion: '1.1.0', ...config }, ...rest });
  const traced = (command: string, config?: object) => call(command, pod, config, { env: { TRACEPARENT } });
  // podwire-ipam allocates the address of a pod with a request.
  const { stdout } = await traced('ADD', { ipam: { type: 'podwire-ipam', ipv4_pools: ['10.65.0.0/16'] } });
  expect(await traced('CHECK', { prevResult: JSON.parse(stdout) })).toMatchObject({ exitCode: 0 });
  for (const command of ['STATUS', 'DEL']) await traced(command);
  await settled(stack);
  // This DEL has no record of the attachment.
  await traced('DEL');
  // This ADD has no trace of the runtime; it fails in podwire-node, and is undone.
  await call('ADD', { ...other, netns: '/run/netns/none' });
  await call('ADD', other);
  const ipamOnly = join(stack.folder, 'podwire-ipam');
  symlinkSync(SHIM, ipamOnly);
  const callIpamOnly = (command: string) => call(command, journaled, { type: 'ptp' }, { program: ipamOnly });
  await callIpamOnly('ADD');
  const isReceived = (name: string) => received().some((span) => span.service === 'podwire-ipam' && span.name === name);
  for (const name of ['AddressService/Release', 'LeaseService/BindAddresses'])
    await vi.waitFor(() => expect(isReceived(`podwire.ipam.v1.${name}`)).toBe(true), { timeout: 20_000 });
  await stack.kill('ipam');
  await call('DEL', other);
  await callIpamOnly('DEL');
  await stack.start('ipam');
  await settled(stack);
  const replayed = () => received().filter(({ name }) => name === 'podwire.plugin.replay');
  await vi.waitFor(() => expect(replayed().some(({ status }) => status.code !== STATUS_ERROR)).toBe(true), {
    timeout: 60_000,
  });
  for (const name of PROCESSES) expect(await stack.stop(name)).toBe(0);
  for (const name of PROCESSES) logs.set(name, stack.log(name));
  spans = received();
}, 180_000);

afterAll(async () => {
  receiver.kill();
  await stack.destroy();
  for (const each of [pod, other, journaled]) removePod(each);
});

const ofTrace = (name: ProcessName) =>
  new Set(
    spans
      .filter(({ service, traceId }) => service === `podwire-${name}` && traceId === TRACE_ID)
      .map((span) => span.name),
  );

const attributesOf = ({ attributes }: Span) =>
  Object.fromEntries(attributes.map(({ key, value }) => [key, Object.values(value)[0]]));

const commandsOf = (name: string, { containerId }: Pod) =>
  spans.filter((span) => span.name === name && attributesOf(span)['container.id'] === containerId);

const addOf = (of: Pod) => commandsOf('CNI ADD', of);

describe('one trace from the runtime to the datastore and the kernel', () => {
  test.each<[ProcessName, readonly string[]]>([
    [
      'node',
      [
        'CNI ADD',
        'CNI DEL',
        'podwire.shim',
        'podwire.plugin.queue_wait',
        'podwire.ipam.v1.AddressService/Allocate',
        'podwire.ipam.v1.AddressService/Release',
        'podwire.dataplane.attach',
        'podwire.dataplane.check',
        'podwire.dataplane.detach',
        'podwire.kernel.batch',
      ],
    ],
    [
      'ipam',
      ['podwire.ipam.v1.AddressService/Allocate', 'podwire.ipam.v1.AddressService/Release', 'podwire.store.commit'],
    ],
  ])('%s exports its spans with this trace', (name, expected) => {
    expect([...ofTrace(name)]).toEqual(expect.arrayContaining([...expected]));
  });

  test.each(PROCESSES)('every log line of %s about the pod has trace and attachment', (name) => {
    const lines = logs
      .get(name)!
      .split('\n')
      .filter((line) => line.startsWith('{"level"'))
      .map((line): Record<string, unknown> => JSON.parse(line));
    const attachment = `${NETWORK}/${pod.containerId}/eth0`;
    const about = lines.filter((line) => line.trace_id === TRACE_ID && line.attachment !== undefined);
    expect(about.length).toBeGreaterThan(0);
    expect(about.filter((line) => line.attachment !== attachment)).toEqual([]);
    expect(lines.filter((line) => line.attachment === attachment && line.trace_id !== TRACE_ID)).toEqual([]);
  });

  test('the shim’s span is below the runtime’s and contains the command, which names pod, node, result and addresses', () => {
    const [add] = addOf(pod);
    const shim = spans.find(({ spanId }) => spanId === add!.parentSpanId);
    expect(shim).toMatchObject({ name: 'podwire.shim', parentSpanId: PARENT_ID });
    expect(shim!.startTimeUnixNano).toBeLessThan(add!.startTimeUnixNano);
    expect(shim!.endTimeUnixNano).toBeGreaterThanOrEqual(add!.endTimeUnixNano);
    for (const span of [shim!, add!]) {
      expect(attributesOf(span)).toMatchObject({
        'container.id': pod.containerId,
        'k8s.pod.name': pod.name,
        'k8s.node.name': 'node-1',
        'podwire.result': 'success',
        'podwire.addresses': { values: [{ stringValue: expect.stringMatching(/^10\.65\./) }] },
      });
    }
  });

  test('spans have microseconds, and begin after their parents', () => {
    expect(spans.some(({ startTimeUnixNano }) => startTimeUnixNano % 1_000_000n !== 0n)).toBe(true);
    const byId = new Map(spans.map((span) => [span.spanId, span]));
    const early = spans.filter((span) => {
      const parent = byId.get(span.parentSpanId ?? '');
      return parent?.service === span.service && span.startTimeUnixNano < parent.startTimeUnixNano;
    });
    expect(early.map(({ name }) => name)).toEqual([]);
  });
});

describe('a trace that begins here', () => {
  test('begins with a shim, a received request, a replayed release, a binding or a return, and never with a background check', () => {
    const roots = spans.filter(({ parentSpanId = '' }) => parentSpanId === '');
    expect(new Set(roots.map(({ name }) => name))).toEqual(
      new Set(['podwire.shim', 'podwire.plugin.replay', 'podwire.leases.bind', 'podwire.leases.return']),
    );
  });

  test.each([
    ['podwire.leases.bind', 'CNI ADD', 'BindAddresses', () => [addOf(other).at(-1)!.traceId]],
    ['podwire.leases.return', 'CNI DEL', 'ReturnAddresses', () => [TRACE_ID, commandsOf('CNI DEL', other)[0]!.traceId]],
  ])('%s links to the %s that caused it, and contains the call of %s', (name, _, method, traceIds) => {
    const background = spans.filter((span) => span.name === name);
    expect(new Set(background.flatMap(({ links }) => links.map(({ traceId }) => traceId)))).toEqual(
      new Set(traceIds()),
    );
    const calls = background.map(({ spanId }) => {
      const inside = spans.filter((span) => span.parentSpanId === spanId);
      return inside.map((span) => span.name.replace('podwire.ipam.v1.LeaseService/', '')).join(' ');
    });
    expect(calls).toContain(method);
    // While podwire-ipam was away, the session was opened first.
    expect([...new Set(calls)].filter((each) => each !== method && !each.startsWith('OpenSession'))).toEqual([]);
  });

  test('of a replayed release links to the command that left it', () => {
    const [del] = commandsOf('CNI DEL', journaled);
    const replays = spans.filter(({ name }) => name === 'podwire.plugin.replay');
    expect(replays.length).toBeGreaterThan(0);
    for (const { links } of replays) expect(links).toMatchObject([{ traceId: del!.traceId }]);
  });

  test('a failed ADD is an error, and a missing object in its undo is none', () => {
    const [failed] = addOf(other);
    expect(failed).toMatchObject({ status: { code: STATUS_ERROR } });
    expect(attributesOf(failed!)).toMatchObject({ 'podwire.result': 'INVALID_NETNS', 'error.type': 'INVALID_NETNS' });
    const notFound = spans.filter((span) => attributesOf(span)['rpc.response.status_code'] === 'NOT_FOUND');
    expect(notFound.filter(({ status }) => status.code === STATUS_ERROR)).toEqual([]);
  });

  test('does not grow while the runtime calls STATUS', () => {
    const status = spans.find(({ name }) => name === 'CNI STATUS')!;
    const late = status.endTimeUnixNano + 1_000_000_000n;
    const calls = ['podwire.ipam.v1.AddressService/ExplainAllocation', 'grpc.health.v1.Health/Check'];
    expect(spans.filter((span) => calls.includes(span.name) && span.startTimeUnixNano > late)).toEqual([]);
  });
});

const DATAPLANE_CALL = /^podwire\.dataplane\.(detach|check|get|list|collect_garbage)$/;

/** The entry of a span's name in the table; undefined for a call, whose span is named after the method. */
function spanOf(name: string) {
  if (name.startsWith('CNI ')) return SPANS['CNI ADD'];
  return SPANS[name] ?? (DATAPLANE_CALL.test(name) ? SPANS['podwire.dataplane.attach'] : undefined);
}

describe('every span', () => {
  test('is in the table of spans, with its kind', () => {
    for (const { name, kind } of spans) {
      const expected = spanOf(name)?.kind;
      if (expected === undefined) {
        expect(name).toMatch(/^(podwire|grpc)\.[a-z0-9.]+\.[A-Z][A-Za-z]+\/[A-Z][A-Za-z]+$/);
        expect(['SERVER', 'CLIENT']).toContain(KINDS[kind]);
      } else expect([name, KINDS[kind]]).toEqual([name, expected]);
    }
  });

  test('of the table is exported', () => {
    const names = new Set(spans.map(({ name }) => name));
    // Waits that this test does not cause.
    const rare = ['podwire.dataplane.lock_wait', 'podwire.ipam.lane_wait'];
    expect(Object.keys(SPANS).filter((name) => !names.has(name) && !rare.includes(name))).toEqual([]);
  });

  test('has only attributes of the table, with their types', () => {
    const types = { stringValue: 'string', intValue: 'int', boolValue: 'boolean', arrayValue: 'string[]' };
    const isKnown = (key: string): key is keyof typeof ATTRIBUTES => key in ATTRIBUTES;
    for (const { name, attributes } of spans) {
      for (const { key, value } of attributes) {
        const type = Object.entries(types).find(([field]) => field in value)?.[1];
        expect([name, key, type]).toEqual([name, key, isKnown(key) ? ATTRIBUTES[key].type : 'not in the table']);
      }
    }
  });
});
