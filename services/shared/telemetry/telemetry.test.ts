import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';

import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';

import { Program } from '../testing/program.js';

const TRACE = '0af7651916cd43dd8448eb211c80319c';
const PARENT = 'b7ad6b7169203331';

/** The data that arrived at a collector. */
const arrived: { path: string; authorization: string | undefined; body: Buffer }[] = [];

const collector = createServer((request, response) => {
  const chunks: Buffer[] = [];
  request.on('data', (chunk: Buffer) => chunks.push(chunk));
  request.on('end', () => {
    const { authorization } = request.headers;
    arrived.push({ path: request.url ?? '', authorization, body: Buffer.concat(chunks) });
    response.writeHead(request.url === '/refused' ? 400 : 200, { 'content-type': 'application/x-protobuf' }).end();
  });
});

let endpoint: string;

beforeAll(async () => {
  collector.listen(0, '127.0.0.1');
  await once(collector, 'listening');
  const address: AddressInfo | string | null = collector.address();
  endpoint = `http://127.0.0.1:${typeof address === 'object' && address ? address.port : 0}`;
});

beforeEach(() => {
  arrived.length = 0;
});

afterAll(async () => {
  collector.close();
  await once(collector, 'close');
});

async function run(env: NodeJS.ProcessEnv, traceparent: string) {
  const { exitCode, stdout, log } = await new Program('telemetry.ts', [traceparent], env).result;
  expect(exitCode, JSON.stringify(log)).toBe(0);
  const sent: unknown = JSON.parse(stdout);
  return { sent, line: log.find(({ msg }) => msg === 'worked') };
}

describe.each([
  ['without an exporter', {}],
  ['with empty variables', { OTEL_EXPORTER_OTLP_ENDPOINT: '', OTEL_TRACES_EXPORTER: '', OTEL_SERVICE_NAME: '' }],
  ['when it is disabled', { OTEL_SDK_DISABLED: 'TRUE', OTEL_EXPORTER_OTLP_ENDPOINT: 'COLLECTOR' }],
])('%s', (_, env) => {
  const given = () =>
    Object.fromEntries(Object.entries(env).map(([name, value]) => [name, value.replace('COLLECTOR', endpoint)]));

  test.each(['00', '01'])('the trace is accepted, passed on and logged; its flag %s is kept', async (flags) => {
    const { sent, line } = await run(given(), `00-${TRACE}-${PARENT}-${flags}`);
    expect(sent).toEqual({
      traceparent: expect.stringMatching(`^00-${TRACE}-[0-9a-f]{16}-${flags}$`),
      baggage: 'tenant=a',
    });
    expect(line).toMatchObject({ trace_id: TRACE });
    expect(arrived).toEqual([]);
  });

  test('a trace begins in the process where the request has none, so that lines can be joined', async () => {
    const { sent, line } = await run(given(), '');
    expect(sent).toMatchObject({ traceparent: expect.stringMatching(/^00-[0-9a-f]{32}-[0-9a-f]{16}-00$/) });
    expect(sent).toMatchObject({ traceparent: expect.stringContaining(String(line?.trace_id)) });
  });
});

describe('with an OTLP endpoint', () => {
  test.each([
    ['with its default name', {}, 'podwire-fixture'],
    ['with the name of OTEL_SERVICE_NAME', { OTEL_SERVICE_NAME: 'other-name' }, 'other-name'],
  ])('spans %s arrive there', async (_, env, name) => {
    const { sent } = await run({ OTEL_EXPORTER_OTLP_ENDPOINT: endpoint, ...env }, `00-${TRACE}-${PARENT}-01`);
    expect(sent).toMatchObject({ traceparent: expect.stringMatching(`^00-${TRACE}-[0-9a-f]{16}-01$`) });
    const spans = arrived.filter(({ path }) => path === '/v1/traces');
    expect(spans).toHaveLength(1);
    for (const text of [
      Buffer.from('some work'),
      Buffer.from(name),
      Buffer.from(TRACE, 'hex'),
      Buffer.from(PARENT, 'hex'),
    ]) {
      expect(spans[0]?.body.includes(text), text.toString()).toBe(true);
    }
  });

  test('OTEL_TRACES_EXPORTER=none sends none', async () => {
    const { sent } = await run(
      { OTEL_EXPORTER_OTLP_ENDPOINT: endpoint, OTEL_TRACES_EXPORTER: 'none' },
      `00-${TRACE}-${PARENT}-01`,
    );
    expect(arrived.filter(({ path }) => path === '/v1/traces')).toEqual([]);
    expect(sent).toMatchObject({ traceparent: expect.stringContaining(TRACE) });
  });
});

describe('with metrics alone', () => {
  const METRICS = 'OTEL_EXPORTER_OTLP_METRICS_ENDPOINT';

  test('OTEL_METRICS_EXPORTER works alone, and traces are passed on as without it', async () => {
    const env = { OTEL_METRICS_EXPORTER: 'console' };
    const { exitCode, stdout, log } = await new Program('telemetry.ts', [`00-${TRACE}-${PARENT}-01`], env).result;
    expect(exitCode, JSON.stringify(log)).toBe(0);
    expect(stdout).toContain('fixture.works');
    expect(stdout).toMatch(new RegExp(`00-${TRACE}-[0-9a-f]{16}-01`));
    // Spans are not exported, or the log would report a missing collector.
    expect(log).toEqual([expect.objectContaining({ msg: 'worked', trace_id: TRACE })]);
  });

  test('they arrive at their own endpoint, with headers and attributes', async () => {
    const { sent } = await run(
      {
        [METRICS]: `${endpoint}/own`,
        OTEL_EXPORTER_OTLP_HEADERS: 'authorization=Bearer%20word',
        OTEL_RESOURCE_ATTRIBUTES: 'service.name=renamed,deployment.environment.name=laboratory',
      },
      '',
    );
    expect(arrived).toEqual([expect.objectContaining({ path: '/own', authorization: 'Bearer word' })]);
    for (const text of ['fixture.works', 'renamed', 'laboratory'])
      expect(arrived[0]?.body.includes(text), text).toBe(true);
    expect(sent).toMatchObject({ traceparent: expect.stringMatching(/^00-[0-9a-f]{32}-[0-9a-f]{16}-00$/) });
  });

  test('errors of the SDK are logged, and stop nothing', async () => {
    const env = { [METRICS]: `${endpoint}/refused`, OTEL_TRACES_EXPORTER: 'nowhere', OTEL_LOG_LEVEL: 'WARN' };
    const { exitCode, log } = await new Program('telemetry.ts', [''], env).result;
    expect(exitCode).toBe(0);
    const warnings = log.filter(({ level }) => level === 'warn').map(({ msg }) => String(msg));
    expect(warnings).toContainEqual(
      expect.stringContaining('OTEL_TRACES_EXPORTER: unknown exporter "nowhere"; use otlp, console or none'),
    );
    expect(warnings).toContainEqual(expect.stringContaining('Bad Request'));
  });
});

test('spans that a collector does not take are counted', async () => {
  const env = {
    OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: `${endpoint}/refused`,
    OTEL_METRICS_EXPORTER: 'console',
  };
  const { exitCode, stdout, log } = await new Program('telemetry.ts', [`00-${TRACE}-${PARENT}-01`], env).result;
  expect(exitCode, JSON.stringify(log)).toBe(0);
  expect(stdout).toMatch(/otel\.sdk\.processor\.span\.processed[^]*'error\.type': 'OTLPExporterError'/);
});

test('OTEL_TRACES_SAMPLER decides which spans are recorded', async () => {
  const env = {
    OTEL_EXPORTER_OTLP_ENDPOINT: endpoint,
    OTEL_METRICS_EXPORTER: 'none',
    OTEL_TRACES_SAMPLER: 'always_off',
  };
  const { sent } = await run(env, `00-${TRACE}-${PARENT}-01`);
  expect(sent).toMatchObject({ traceparent: expect.stringMatching(`^00-${TRACE}-[0-9a-f]{16}-00$`) });
  expect(arrived).toEqual([]);
});
