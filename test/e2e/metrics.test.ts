import { spawnSync } from 'node:child_process';
import process from 'node:process';

import { labelName, seriesName } from '@podwire/observability/series';
import { METRICS, metricOf, type MetricName } from '@podwire/shared/telemetry/metrics';
import { afterAll, beforeAll, describe, expect, test, vi } from 'vitest';

import { callCni, makePod, removePod } from '../support/pods.js';
import { run } from '../support/programs.js';
import { Stack, type ProcessName } from '../support/stack.js';

/** Each process with its port, and the metrics that only it has. */
const PROCESSES: readonly (readonly [ProcessName, port: number, own: RegExp])[] = [
  ['node', 9091, /^podwire\.(plugin|dataplane)\./],
  ['ipam', 9094, /^podwire\.(ipam|store)\./],
];

/** Names of Calico's kube-controllers, and what the SDK adds. */
const NOT_OF_CATALOG = /^(ipam_(allocations_in_use|allocations_borrowed|blocks|ippool_size)|target_info)$/;

const CATALOG = Object.keys(METRICS).filter((name): name is MetricName => name in METRICS);
const bySeries = new Map(CATALOG.map((name) => [seriesName(name), name]));

interface Scraped {
  readonly help: string;
  readonly type: string;
  readonly labels: ReadonlySet<string>;
}

const stack = new Stack();
const pod = makePod('measured');
const texts = new Map<ProcessName, string>();
const scraped = new Map<ProcessName, ReadonlyMap<string, Scraped>>();

/** The metrics of the text format, by their names. */
function parse(text: string): Map<string, Scraped> {
  const found = new Map<string, { help: string; type: string; labels: Set<string> }>();
  for (const line of text.split('\n')) {
    const [, kind, name = '', rest = ''] = /^# (HELP|TYPE) (\S+) (.*)$/.exec(line) ?? [];
    if (kind === 'HELP') found.set(name, { help: rest, type: '', labels: new Set() });
    else if (kind === 'TYPE') found.get(name)!.type = rest;
    else if (line !== '') {
      const metric = [...found.values()].at(-1)!;
      for (const [, label = ''] of line.matchAll(/([a-zA-Z_]+)="/g)) if (label !== 'le') metric.labels.add(label);
    }
  }
  return found;
}

beforeAll(async () => {
  await stack.start();
  const call = (command: string) =>
    callCni({ command, pod, socket: stack.sockets.node, config: { cniVersion: '1.1.0' } });
  expect(await call('ADD')).toMatchObject({ exitCode: 0 });
  await vi.waitFor(async () => expect(await call('STATUS')).toMatchObject({ exitCode: 0 }), { timeout: 30_000 });
  expect(await call('DEL')).toMatchObject({ exitCode: 0 });
  await vi.waitFor(() => expect(stack.log('node')).toContain('is registered with'), { timeout: 20_000 });
  for (const [name, port] of PROCESSES) {
    const fetching = `fetch('http://127.0.0.1:${port}/metrics').then((answer) => answer.text()).then((text) => process.stdout.write(text))`;
    const text = run('ip', 'netns', 'exec', stack.netns, process.execPath, '-e', fetching);
    texts.set(name, text);
    scraped.set(name, parse(text));
  }
});

afterAll(async () => {
  await stack.destroy();
  removePod(pod);
});

describe.each(PROCESSES)('a scrape of the %s', (service, _, own) => {
  test('has only metrics of the catalog, as it describes them', () => {
    for (const [series, { help, type, labels }] of scraped.get(service)!) {
      if (NOT_OF_CATALOG.test(series)) continue;
      const name = bySeries.get(series);
      expect(name, `${series} is not in the catalog`).toBeDefined();
      const { about, kind, labels: described = {} } = metricOf(name!);
      expect({ series, help, type }).toEqual({ series, help: about, type: kind });
      const known = Object.keys(described).map(labelName);
      expect(
        [...labels].filter((label) => !known.includes(label)),
        series,
      ).toEqual([]);
    }
  });

  test('has each metric of the catalog that always exists', () => {
    const wanted = CATALOG.filter((name) => own.test(name) && metricOf(name).when === undefined);
    const present = scraped.get(service)!;
    expect(wanted.filter((name) => !present.has(seriesName(name)))).toEqual([]);
  });

  test('has the process itself, and the time of its calls', () => {
    const names = ['podwire.build.info', 'process.memory.usage', 'process.cpu.time', 'nodejs.eventloop.delay.p99'];
    const calls = service === 'node' ? 'rpc.client.call.duration' : 'rpc.server.call.duration';
    expect([...scraped.get(service)!.keys()]).toEqual(
      expect.arrayContaining([...names, calls].map((name) => seriesName(CATALOG.find((each) => each === name)!))),
    );
  });

  test('is accepted by Prometheus', () => {
    const { stdout, stderr } = spawnSync('promtool', ['check', 'metrics'], {
      input: texts.get(service),
      encoding: 'utf8',
    });
    // OpenTelemetry names one metric as Prometheus names parts of histograms.
    const remarks = (stdout + stderr)
      .split('\n')
      .filter((line) => !/^(process_unix_file_descriptor_count .*)?$/.test(line));
    expect(remarks).toEqual([]);
  });
});

test('the four names of Calico have the values of Podwire’s', () => {
  const valueOf = (series: string) => new RegExp(`^${series}({.*} .*)$`, 'm').exec(texts.get('ipam')!)?.[1];
  for (const series of ['ipam_allocations_in_use', 'ipam_allocations_borrowed', 'ipam_blocks', 'ipam_ippool_size']) {
    expect(valueOf(series), series).toBeDefined();
    expect(valueOf(series)).toBe(valueOf(`podwire_${series}`));
  }
});
