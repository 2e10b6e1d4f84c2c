import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { performance } from 'node:perf_hooks';
import process from 'node:process';
import { setTimeout as sleep } from 'node:timers/promises';

import { EmbeddedStore } from '@podwire/ipam/engine/embedded/embedded-store';
import { openNamespace, type Namespace } from '@podwire/netlink';
import { ClaimAffinityRequest } from '@podwire/proto/podwire/ipam/v1/affinity';

import { NODE_ADDRESS, Stack } from '../../support/stack.js';
import { median, type Figure } from '../figure.js';
import { LightClient } from '../ipam/light-client.js';
import { IpamCaller, untilServing } from '../ipam/load.js';
import { populate } from '../ipam/population.js';
import { writeNodes } from './cluster-nodes.js';

const NODES = 5000;
const MEASURED = 60;
const NODES_PER_TRANSACTION = 500;
const TIMEOUT_MS = 180_000;

const IDLE_MS = 5000;

const CLAIM_AFFINITY = '/podwire.ipam.v1.AffinityService/ClaimAffinity';

type Report = (line: string) => void;

/**
 * Both processes, over the embedded datastore with 5,000 nodes: from the answer that a node has claimed a block, which IPAM sends right
 * after its commit, to the kernel's announcement of the block's route.
 */
export async function measureConvergence(report: Report): Promise<Figure[]> {
  const stack = new Stack({
    env: { PODWIRE_IPAM_DEFAULT_POOL_CIDR: '10.0.0.0/8', PODWIRE_NODE_IPV4: `${NODE_ADDRESS}/15` },
  });
  try {
    stack.ip('address', 'delete', `${NODE_ADDRESS}/32`, 'dev', 'lo');
    stack.ip('link', 'add', 'up0', 'type', 'bridge');
    stack.ip('link', 'set', 'up0', 'up');
    stack.ip('address', 'add', `${NODE_ADDRESS}/15`, 'dev', 'up0');
    await fill(stack);
    await stack.start('ipam');
    const caller = new IpamCaller(stack.sockets.ipam);
    await untilServing(caller);
    await stack.start('node');
    const node = await openNamespace(stack.netnsPath);
    await untilRouted(node);
    await sleep(IDLE_MS);
    const ownMib = residentOwnMib(stack.pid('node'));
    const client = new LightClient(stack.sockets.ipam);
    const times = await measure(node, client);
    client.close();
    caller.close();
    await node.close();
    const convergeMs = median(times.map(({ fromCommitMs }) => fromCommitMs));
    const answeredMs = median(times.map(({ answeredMs: one }) => one));
    report(
      `a block at ${NODES} nodes: its route ${convergeMs.toFixed(1)} ms after IPAM's answer, which took ${answeredMs.toFixed(1)} ms`,
    );
    report(`podwire-node with ${NODES} nodes and routes: ${ownMib.toFixed(0)} MiB of its own`);
    return [
      { name: 'dataplane.routes.converge_ms', value: convergeMs, unit: 'ms', better: 'lower', goal: 20 },
      { name: 'dataplane.rss_mib', value: ownMib, unit: 'MiB', better: 'lower', goal: 90 },
    ];
  } finally {
    await stack.destroy();
  }
}

const newcomer = (number: number): string => `newcomer-${number}`;

/** The population's blocks end before 10.79.0.0. */
const freeBlock = (number: number): string => `10.200.${number}.0/26`;

/** Has the service create its pool at a first start, and writes the rest directly. */
async function fill(stack: Stack): Promise<void> {
  await stack.start('ipam');
  const caller = new IpamCaller(stack.sockets.ipam);
  await untilServing(caller);
  caller.close();
  await stack.stop('ipam');
  const store = await EmbeddedStore.open({ directory: join(stack.folder, 'store'), pid: process.pid });
  const populated = Array.from({ length: NODES }, (_, number) => `populated-${number}`);
  await writeNodes(store, [...populated, ...Array.from({ length: MEASURED }, (_, number) => newcomer(number))]);
  const population = { nodes: NODES, containersPerNode: 0, pool: '10.0.0.0/8' };
  await populate(store, { ...population, nodesPerTransaction: NODES_PER_TRANSACTION });
  await store.close();
}

async function untilRouted(node: Namespace): Promise<void> {
  for (const startMs = performance.now(); ;) {
    const { length } = await node.routes({ family: 4, protocol: 87 });
    if (length >= NODES) return;
    if (performance.now() - startMs > TIMEOUT_MS) throw new Error(`${length} of ${NODES} routes came about`);
    await sleep(100);
  }
}

interface Times {
  readonly fromCommitMs: number;
  readonly answeredMs: number;
}

async function measure(node: Namespace, client: LightClient): Promise<Times[]> {
  const monitor = await node.monitor({ groups: ['routes'] });
  const times: Times[] = [];
  const seen = monitor[Symbol.asyncIterator]();
  for (let number = 0; number < MEASURED; number++) {
    const startMs = performance.now();
    const request = ClaimAffinityRequest.encode({ cidr: freeBlock(number), nodeName: newcomer(number) });
    const answered = client.call(CLAIM_AFFINITY, request.finish()).then(() => performance.now() - startMs);
    for (;;) {
      const { value, done } = await seen.next();
      if (done === true) throw new Error('the kernel reports no more routes');
      if (value.object === 'route' && !value.deleted && value.value.protocol === 87) break;
    }
    const routedMs = performance.now() - startMs;
    const answeredMs = await answered;
    times.push({ fromCommitMs: Math.max(routedMs - answeredMs, 0), answeredMs });
  }
  monitor.close();
  return times;
}

/** Resident memory in MiB without pages of files. */
function residentOwnMib(pid: number): number {
  const status = readFileSync(`/proc/${pid}/status`, 'utf8');
  return Number(/^RssAnon:\s+(\d+) kB$/m.exec(status)?.[1]) / 1024;
}
