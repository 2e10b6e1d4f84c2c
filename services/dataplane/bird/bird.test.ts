import { existsSync, mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { createServer, type Server } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { systemClock } from '@podwire/shared/runtime/clock';
import { afterEach, beforeEach, expect, test } from 'vitest';

import type { ClusterPool, ClusterView } from '../cluster/cluster.js';
import { recordingLog } from '../testing/pods.js';
import { cluster, node } from '../testing/routes.js';
import { BirdEvents } from './bird-events.js';
import { Bird } from './bird.js';
import { FULL_MESH } from './peers-file.js';

/** A fake BIRD: it has no sessions, and accepts every configuration without the refused text. */

let folder: string;
let server: Server;
let bird: Bird | undefined;
let refusedText: string | undefined;

beforeEach(async () => {
  folder = mkdtempSync(join(tmpdir(), 'podwire-bird-'));
  server = createServer((socket) => {
    socket.on('error', () => undefined).write('0001 BIRD 2.0.12 ready.\n');
    socket.on('data', (data) => socket.write(answerTo(String(data))));
  });
  await new Promise<void>((resolve) => server.listen(join(folder, 'bird.ctl'), resolve));
});

function answerTo(command: string): string {
  const path = /^configure.*"(.*)"/.exec(command)?.[1];
  if (path === undefined) return '0000 \n';
  const isRefused = refusedText !== undefined && readFileSync(path, 'utf8').includes(refusedText);
  return isRefused ? '8002 syntax error\n' : '0003 Reconfigured\n';
}

afterEach(async () => {
  refusedText = undefined;
  await bird?.stop();
  await new Promise((resolve) => server.close(resolve));
  rmSync(folder, { recursive: true });
});

function start(): Record<string, unknown>[] {
  const { log, lines } = recordingLog();
  const files = { program: '/bin/false', configPath: join(folder, 'bird.conf'), socketPath: join(folder, 'bird.ctl') };
  const settings = { asNumber: 64_512, plan: FULL_MESH, run: 'external', pollMs: 20, files } as const;
  bird = new Bird({ settings, clock: systemClock, events: new BirdEvents(log) });
  return lines;
}

const configuration = () => {
  const path = join(folder, 'bird.conf');
  return existsSync(path) ? readFileSync(path, 'utf8') : '';
};

/** A map whose reading fails once, like a defect in the rendering. */
class Unreadable extends Map<string, ClusterPool> {
  isRead = false;

  override values() {
    if (this.isRead) return super.values();
    this.isRead = true;
    throw new Error('defect');
  }
}

const ALL = { blocks: 'all', hasOtherChanges: true } as const;
const view = (...nodes: readonly ReturnType<typeof node>[]): ClusterView => ({
  self: 'a',
  isDatastoreLocked: false,
  cluster: cluster({ nodes }),
});
const A = node('a', { ipv4: '192.0.2.1/24' });
const B = node('b', { ipv4: '192.0.2.2/24' });

test('a change whose rendering failed is rendered by the next round', async () => {
  const lines = start();
  bird?.follow(view(A), ALL);
  await expect.poll(configuration).toContain('192.0.2.1');
  const { cluster: both, ...rest } = view(A, B);
  bird?.follow({ ...rest, cluster: { ...both, pools: new Unreadable() } }, ALL);
  await expect.poll(configuration).toContain('192.0.2.2');
  expect(lines.filter(({ level }) => level === 'error')).toHaveLength(1);
});

test('changes at any moment of a round are all applied', async () => {
  start();
  const nodes = Array.from({ length: 20 }, (_, at) => node(`n${at}`, { ipv4: `192.0.2.${at + 10}/24` }));
  for (const [at] of nodes.entries()) {
    bird?.follow(view(A, ...nodes.slice(0, at + 1)), ALL);
    for (let turn = 0; turn < at; turn++) await new Promise((resolve) => setImmediate(resolve));
  }
  await expect.poll(configuration).toContain('192.0.2.29');
});

test('a refusal ends when the configuration that BIRD has is wanted again', async () => {
  start();
  refusedText = '192.0.2.2';
  bird?.follow(view(A), ALL);
  await expect.poll(configuration).toContain('192.0.2.1');
  bird?.follow(view(A, B), ALL);
  await expect.poll(() => bird?.status().refusal).toBe('syntax error');
  bird?.follow(view(A), ALL);
  await expect.poll(() => bird?.status().refusal).toBeUndefined();
  expect(configuration()).not.toContain('192.0.2.2');
});
