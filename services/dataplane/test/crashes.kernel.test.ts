import { spawn, spawnSync, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { isDeepStrictEqual } from 'node:util';

import { PodServiceService, type PodNetwork } from '@podwire/proto/podwire/dataplane/v1/pod';
import { hostInterfaceName, podMac } from '@podwire/shared/attachment/names';
import { Peer } from '@podwire/shared/rpc/client';
import fc from 'fast-check';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { addPod, cleanUp, requireThrowawayNamespace, run } from '../testing/kernels.js';
import { NODE_MAIN } from '../testing/service.js';

/** The process itself is killed and restarted. */

/** Threads that delete links, except the first: each with a socket, created when all earlier ones are busy (`addon/src/socket/deleter.cc`). */
const OTHER_DELETERS = 3;

/** Fixed, so that every run is the same; change it for other walks. */
const SEED = 20_261_121;

let folder: string;
let peer: Peer;
let child: ChildProcess;
let log = '';

const socket = () => join(folder, 'dataplane.sock');
const limits = (timeoutMs = 60_000) => ({ deadlineMs: Date.now() + timeoutMs });
const list = () => peer.call(PodServiceService.listPods, { pageSize: 1000, pageToken: '' }, limits());
const attach = (pod: PodNetwork, timeoutMs?: number) =>
  peer.call(PodServiceService.attachPod, { pod }, limits(timeoutMs));
const detach = ({ attachment, hostInterfaceName: name }: PodNetwork, timeoutMs?: number) =>
  peer.call(PodServiceService.detachPod, { attachment, hostInterfaceName: name }, limits(timeoutMs));
const check = (pod: PodNetwork) => peer.call(PodServiceService.checkPod, { pod }, limits());

async function start(): Promise<void> {
  log = '';
  peer = new Peer('podwire-node', `unix:${socket()}`);
  const env = {
    PATH: process.env.PATH,
    PODWIRE_NODE_LISTEN: `unix:${socket()}`,
    PODWIRE_NODE_RECORDS_DIRECTORY: join(folder, 'attachments'),
    PODWIRE_NODE_CNI_SOCKET: join(folder, 'cni.sock'),
    PODWIRE_NODE_STATE_DIRECTORY: join(folder, 'journal'),
    PODWIRE_NODE_IPAM_ADDRESS: `unix:${join(folder, 'no-ipam.sock')}`,
  };
  child = spawn(process.execPath, [NODE_MAIN], { env, stdio: ['ignore', 'ignore', 'pipe'] });
  child.stderr!.setEncoding('utf8').on('data', (text: string) => (log += text));
  await list();
  await expect.poll(() => log, { timeout: 20_000 }).toContain('attachments found at the start');
}

async function end(signal: NodeJS.Signals): Promise<number | null> {
  const exited = once(child, 'exit');
  child.kill(signal);
  await exited;
  peer.close();
  return child.exitCode;
}

function podMessage(name: string, address: string): PodNetwork {
  const attachment = { network: 'net', containerId: name, interfaceName: 'eth0' };
  return {
    ...{ attachment, netns: `/run/netns/${name}`, hostInterfaceName: hostInterfaceName(attachment) },
    ...{ macAddress: podMac(attachment), addresses: [`${address}/32`], routes: [], mtuBytes: 0, ipForwarding: true },
    ...{ sourcePrefixes: [], hostPorts: [], txQueueLength: 0, queueCount: 0 },
  };
}

/** Ports of the node that lead to pods. */
function hostPorts(): readonly number[] {
  const { status, stdout } = spawnSync('nft', ['list', 'map', 'inet', 'podwire_hostports', 'pod_port4']);
  if (status !== 0) return [];
  return [...stdout.toString().matchAll(/tcp \. (\d+) :/g)].map(([, port]) => Number(port)).toSorted((a, b) => a - b);
}

const pods = (count: number) =>
  Array.from({ length: count }, (_, at) => podMessage(`p${at}`, `10.65.${at >> 8}.${at & 255}`));
const records = () => readdirSync(join(folder, 'attachments')).filter((name) => name.endsWith('.json'));
const veths = () => run('ip', '-br', 'link', 'show', 'type', 'veth').split('\n').filter(Boolean);

beforeEach(() => {
  requireThrowawayNamespace();
  folder = mkdtempSync(join(tmpdir(), 'podwire-crashes-'));
});
afterEach(async () => {
  if (child.exitCode === null && child.signalCode === null) await end('SIGKILL');
  cleanUp();
  rmSync(folder, { recursive: true });
});

describe('SIGKILL in storms of attach and detach', () => {
  test('after each start kernel, records and answers agree', async () => {
    const all = pods(16).map((pod, at) => ({
      ...pod,
      hostPorts: [{ protocol: 'tcp', hostPort: 8000 + at, podPort: 80, hostAddress: '' }],
    }));
    for (const { attachment } of all) addPod(attachment!.containerId);
    // Both have to occur, or the test is meaningless.
    const seen = { answered: 0, cutOff: 0 };
    const answers = new Map<PodNetwork, boolean | undefined>(all.map((pod) => [pod, false]));
    const storms = fc.sample(
      fc.record({
        afterAnswers: fc.integer({ min: 1, max: 12 }),
        wanted: fc.array(fc.boolean(), { minLength: all.length, maxLength: all.length }),
      }),
      { seed: SEED, numRuns: 5 },
    );
    for (const [round, { afterAnswers, wanted }] of storms.entries()) {
      await start();
      const calls = all.map(async (pod, at) => {
        answers.set(pod, undefined);
        await (wanted[at] ? attach(pod, 60_000) : detach(pod, 60_000)).then(
          () => {
            answers.set(pod, wanted[at]);
            seen.answered++;
          },
          (failure: unknown) => {
            expect(failure).toMatchObject({
              code: expect.stringMatching(/^(UNREACHABLE|DEADLINE_EXCEEDED|CANCELLED)$/),
            });
            seen.cutOff++;
          },
        );
      });
      const killAt = seen.answered + afterAnswers;
      await expect.poll(() => seen.answered, { timeout: 60_000, interval: 1 }).toBeGreaterThanOrEqual(killAt);
      await end('SIGKILL');
      await Promise.all(calls);
      await start();
      const listed = (await list()).pods.map(({ attachment }) => attachment!.containerId);
      const at = `seed ${SEED}, round ${round}`;
      expect([veths().length, records().length], at).toEqual([listed.length, listed.length]);
      const wantedPorts = all.flatMap(({ attachment, hostPorts: [port] }) =>
        listed.includes(attachment!.containerId) ? [port!.hostPort] : [],
      );
      expect(hostPorts(), at).toEqual(wantedPorts);
      for (const [pod, answer] of answers) {
        const isListed = listed.includes(pod.attachment!.containerId);
        if (answer !== undefined) expect(isListed, `${at}, ${pod.attachment!.containerId}`).toBe(answer);
        if (isListed) expect(await check(pod), at).toMatchObject({ differences: [] });
      }
      expect(await end('SIGTERM')).toBe(0);
    }
    expect(Math.min(seen.answered, seen.cutOff)).toBeGreaterThan(0);
    await start();
    await Promise.all(all.map((pod) => detach(pod)));
    expect([veths(), records()]).toEqual([[], []]);
    // A SIGKILL would leave its child: an `nft` that creates a table after the cleanup.
    expect(await end('SIGTERM')).toBe(0);
  }, 300_000);
});

describe('five hundred pods that came and went', () => {
  test('leave no link, route, neighbour, record, file descriptor or thread', async () => {
    const all = pods(500);
    for (const { attachment } of all) addPod(attachment!.containerId);
    await start();
    const left = () => ({
      links: veths().length,
      routes: run('ip', 'route', 'show', 'table', 'all', 'proto', '87'),
      neighbours: run('ip', 'neigh', 'show', 'nud', 'permanent'),
      records: readdirSync(join(folder, 'attachments')).filter((name) => name.endsWith('.json')).length,
    });
    const open = () => ({
      descriptors: readdirSync(`/proc/${child.pid}/fd`).length,
      threads: readdirSync(`/proc/${child.pid}/task`).length,
    });
    // One warm-up, as permanent threads and sockets are created on first use.
    const together = async (few: readonly PodNetwork[]): Promise<void> => {
      await Promise.all(few.map((pod) => attach(pod, 60_000)));
      await Promise.all(few.map((pod) => detach(pod, 60_000)));
    };
    await together(all.slice(0, 32));
    // Resources of a call may be released after its answer.
    let held = open();
    const isLasting = () => isDeepStrictEqual(held, (held = open()));
    await expect.poll(isLasting, { interval: 500 }).toBe(true);
    const before = left();
    for (let at = 0; at < all.length; at += 50) await together(all.slice(at, at + 50));
    expect(left()).toEqual(before);
    expect(before).toEqual({ links: 0, routes: '', neighbours: '', records: 0 });
    // Further threads that delete, with their sockets, may have been created only now, and stay.
    await expect.poll(() => open().threads).toBeLessThanOrEqual(held.threads + OTHER_DELETERS);
    await expect.poll(() => open().descriptors).toBeLessThanOrEqual(held.descriptors + OTHER_DELETERS);
    expect(await end('SIGTERM')).toBe(0);
  }, 300_000);
});
