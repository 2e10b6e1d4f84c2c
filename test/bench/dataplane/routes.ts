import process from 'node:process';
import { setTimeout as sleep } from 'node:timers/promises';

import type { ClusterBlock, ClusterNode, ClusterView } from '@podwire/dataplane/cluster/cluster';
import { NodeNetlinkKernel } from '@podwire/dataplane/kernel/node-kernel';
import { NodeMonitor } from '@podwire/dataplane/kernel/node-monitor';
import { ReconcileEvents } from '@podwire/dataplane/routes/events';
import { RoutePlanner } from '@podwire/dataplane/routes/planner';
import { RouteReconciler } from '@podwire/dataplane/routes/reconciler';
import { formatPrefix, parsePrefix } from '@podwire/shared/net/prefix';
import { systemClock } from '@podwire/shared/runtime/clock';
import { createLogger } from '@podwire/shared/runtime/log';

import { run } from '../../support/programs.js';
import { median, type Figure } from '../figure.js';
import { timed } from '../ipam/load.js';
import { NODE_SUBNET, nodeAddress } from './cluster-nodes.js';

const NODES = 5000;
const ROUTES = 10_000;
/** Each round begins with an empty table. */
const ROUNDS = 5;
const CHECKS_PER_ROUND = 3;

const SETTLE_MS = 500;

const UPLINK = 'bench-up0';
const SELF = 'node-0';
const POOL = 'bench';

type Report = (line: string) => void;

/**
 * The node's side alone, planner to kernel, in this process's own network namespace: it gets a cluster of 10,000 blocks directly,
 * as IPAM would otherwise be measured too.
 */
export async function measureRoutes(report: Report): Promise<Figure[]> {
  run('ip', 'link', 'add', UPLINK, 'type', 'bridge');
  try {
    run('ip', 'link', 'set', UPLINK, 'up');
    run('ip', 'address', 'add', '198.18.0.1/15', 'dev', UPLINK);
    const view = clusterOf();
    const rounds: Round[] = [];
    for (let round = 0; round < ROUNDS; round++) rounds.push(await measureRound(view));
    const routesS = median(rounds.map(({ elapsedMs }) => elapsedMs)) / 1000;
    const cpuMs = median(rounds.map(({ processorMs }) => processorMs));
    const checksMs = rounds.flatMap((round) => round.checksMs);
    report(
      `${ROUTES} routes from an empty table in ${routesS.toFixed(2)} s (${cpuMs.toFixed(0)} ms of processor time)`,
    );
    report(`a full check of them that finds nothing in ${median(checksMs).toFixed(0)} ms`);
    return [
      { name: 'dataplane.routes.10k_s', value: routesS, unit: 's', better: 'lower', goal: 1.5 },
      { name: 'dataplane.resync.10k_ms', value: median(checksMs), unit: 'ms', better: 'lower', goal: 150 },
    ];
  } finally {
    run('ip', 'link', 'delete', UPLINK);
  }
}

interface Round {
  readonly elapsedMs: number;
  readonly processorMs: number;
  readonly checksMs: readonly number[];
}

/** Reports when a full reading, and all updates after it, are done. */
class ToldEvents extends ReconcileEvents {
  onChecked = (): void => undefined;

  override checked(...told: Parameters<ReconcileEvents['checked']>): void {
    super.checked(...told);
    this.onChecked();
  }
}

async function measureRound(view: ClusterView): Promise<Round> {
  const kernel = await NodeNetlinkKernel.open(new NodeMonitor());
  const events = new ToldEvents(createLogger({ service: 'bench', level: 'error' }));
  const parts = { kernel, events, clock: systemClock, random: Math.random };
  const reconciler = new RouteReconciler({ ...parts, planner: new RoutePlanner(), routing: 'native' });
  const untilChecked = (work: () => void): Promise<number> =>
    timed(() => {
      const done = new Promise<void>((resolve) => (events.onChecked = resolve));
      work();
      return done;
    });
  try {
    const before = process.cpuUsage();
    const elapsedMs = await untilChecked(() => reconciler.follow(view, { blocks: 'all', hasOtherChanges: true }));
    const { user, system } = process.cpuUsage(before);
    const checksMs: number[] = [];
    for (let round = 0; round < CHECKS_PER_ROUND; round++) {
      // The kernel's announcements of these updates are not part of the check.
      await sleep(SETTLE_MS);
      checksMs.push(await untilChecked(() => reconciler.check()));
    }
    const { present, driftCount } = reconciler.status();
    if (present?.routes !== ROUTES || driftCount > 0) throw new Error('the routes are not there as wanted');
    return { elapsedMs, processorMs: (user + system) / 1000, checksMs };
  } finally {
    await reconciler.stop();
    await kernel.close();
    run('ip', 'route', 'flush', 'table', 'main', 'proto', '87');
  }
}

function clusterOf(): ClusterView {
  const nodes = Array.from({ length: NODES + 1 }, (_, number): [string, ClusterNode] => {
    const address = number === 0 ? { family: 4 as const, value: NODE_SUBNET.value + 1n } : nodeAddress(number);
    const ends = { ipv6: undefined, vxlanIpv4: undefined, vxlanIpv6: undefined, ipip: undefined, asNumber: undefined };
    return [`node-${number}`, { name: `node-${number}`, ipv4: { address, subnet: NODE_SUBNET }, ...ends }];
  });
  const pool = parsePrefix('10.0.0.0/8');
  if (!pool.ok) throw new Error(pool.fault);
  const blocks = Array.from({ length: ROUTES }, (_, number): [string, ClusterBlock] => {
    const cidr = { family: 4, value: pool.prefix.value + BigInt(number) * 64n, length: 26 } as const;
    return [formatPrefix(cidr), { cidr, poolName: POOL, nodeName: `node-${1 + (number % NODES)}`, borrowed: [] }];
  });
  const settings = { encapsulation: 'none', natOutgoing: false, loadBalancerOnly: false } as const;
  const pools = new Map([[POOL, { name: POOL, cidr: pool.prefix, ...settings }]]);
  return { self: SELF, isDatastoreLocked: false, cluster: { nodes: new Map(nodes), pools, blocks: new Map(blocks) } };
}
