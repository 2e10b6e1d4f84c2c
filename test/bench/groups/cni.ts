import { mkdirSync } from 'node:fs';
import { join } from 'node:path';

import { Stack, type StackOptions } from '../../support/stack.js';
import { until } from '../../support/until.js';
import { statusCall, versionCall, type Side, type Site } from '../cni/calls.js';
import { ETCD_URL, NodeEtcd } from '../cni/node-etcd.js';
import { measurePairs, type PodTimes } from '../cni/pairs.js';
import { measureStorms } from '../cni/storm.js';
import { ExecTimer, type Execution } from '../exec-timer.js';
import { median, quantile, type Figure } from '../figure.js';
import { kernelFloor } from '../kernel-floor.js';

const PAIRS = 300;
const ETCD_PAIRS = 150;
const ANSWERS = 500;

/** Unmeasured rounds before the measured ones, until the just-in-time compilers are warm. */
const WARM_UP_ANSWERS = 200;

/** The number of pods created at a time when all pods of a node come at once. */
const STORM_CALLERS = 16;

type Report = (line: string) => void;

/** Most of the time of `ptp` + `host-local`, on either datastore. */
export const GOALS = { add: 0.5, del: 0.12 };

/** Least multiple of the rate of `ptp` + `host-local`. */
export const STORM_GOALS = { add: 1.6, del: 2.2 };

const RATIO = { unit: 'ratio', better: 'lower' } as const;

interface Bench {
  readonly stack: Stack;
  readonly site: Site;
  /** Measures one execution at a time. */
  readonly timer: ExecTimer;
  /** @returns another, for executions at the same time */
  readonly anotherTimer: () => ExecTimer;
}

/** Podwire on its own node, with the requirements of the measured calls. */
async function withStack<Result>(options: StackOptions, measure: (bench: Bench) => Promise<Result>): Promise<Result> {
  const stack = new Stack(options);
  const timers: ExecTimer[] = [];
  const anotherTimer = () => {
    const timer = new ExecTimer(stack.folder, stack.netnsPath);
    timers.push(timer);
    return timer;
  };
  const etcd = options.env?.PODWIRE_IPAM_STORE === 'etcd' ? new NodeEtcd(stack.netnsPath) : undefined;
  try {
    mkdirSync(join(stack.folder, 'host-local'));
    await etcd?.start();
    await stack.start();
    const site = { socket: stack.sockets.node, folder: stack.folder };
    return await measure({ stack, site, timer: anotherTimer(), anotherTimer });
  } finally {
    for (const timer of timers) timer.close();
    await stack.destroy();
    await etcd?.destroy();
  }
}

/** ADD and DEL from exec to exit on the embedded datastore, pair by pair with `ptp` + `host-local`. */
export function measureCni(report: Report): Promise<Figure[]> {
  return withStack({}, async ({ stack, site, timer }) => {
    const kernel: number[] = [];
    const floor = kernelFloor(stack);
    const between = () => kernel.push(floor());
    const times = await measurePairs({ timer, site, count: PAIRS, between });
    reportPods(times, report);
    report(`kernel alone p50 ${median(kernel).toFixed(2)} ms`);
    const { add } = times.own;
    return [
      ...versusPtp('embedded', times),
      { name: 'cni.add.p99_over_p50', value: quantile(add, 0.99) / median(add), goal: 2, ...RATIO },
      { name: 'cni.add.vs_kernel', value: median(add) / median(kernel), goal: 5, ...RATIO },
    ];
  });
}

/** The same with the addresses on an etcd beside it. */
export function measureCniOnEtcd(report: Report): Promise<Figure[]> {
  const env = { PODWIRE_IPAM_STORE: 'etcd', PODWIRE_IPAM_ETCD_ENDPOINTS: ETCD_URL };
  return withStack({ env }, async ({ site, timer }) => {
    const times = await measurePairs({ timer, site, count: ETCD_PAIRS });
    reportPods(times, report);
    return versusPtp('etcd', times);
  });
}

/** A node's pods all at once, as after a reboot, and all removed at once. */
export function measureCniStorm(report: Report): Promise<Figure[]> {
  return withStack({}, async ({ site, anotherTimer }) => {
    const timers = Array.from({ length: STORM_CALLERS }, anotherTimer);
    const rates = await measureStorms({ timers, site });
    return (['add', 'del'] as const).map((command): Figure => {
      const [own, ptp] = [median(rates.own[command]), median(rates.ptp[command])];
      report(`${command.toUpperCase()}: own ${own.toFixed(0)}/s, ptp ${ptp.toFixed(0)}/s`);
      const goal = STORM_GOALS[command];
      return { name: `cni.storm_110.${command}_vs_ptp`, value: own / ptp, unit: 'ratio', better: 'higher', goal };
    });
  });
}

/** The calls of a runtime without a pod, beside the cheapest program there is. */
export function measureCniAnswers(report: Report): Promise<Figure[]> {
  return withStack({}, async ({ site, timer }) => {
    const nothing: Execution = { program: '/bin/true', stdin: '', env: {} };
    const isReady = async () => (await timer.time(statusCall(site.socket))).exitCode === 0;
    await until(isReady, () => 'STATUS does not succeed');
    const asked = { status: statusCall(site.socket), version: versionCall(site.socket), nothing };
    const times: Record<keyof typeof asked, number[]> = { status: [], version: [], nothing: [] };
    for (let round = -WARM_UP_ANSWERS; round < ANSWERS; round++) {
      for (const name of ['status', 'version', 'nothing'] as const) {
        const { elapsedMs } = await timer.succeed(asked[name]);
        if (round >= 0) times[name].push(elapsedMs);
      }
    }
    const [status, version, floor] = [median(times.status), median(times.version), median(times.nothing)];
    report(`p50: STATUS ${status.toFixed(2)} ms, VERSION ${version.toFixed(2)} ms, /bin/true ${floor.toFixed(2)} ms`);
    return [
      { name: 'cni.status_ms', value: status, unit: 'ms', better: 'lower', goal: 1.5 },
      { name: 'cni.version_ms', value: version, unit: 'ms', better: 'lower', goal: 1.5 },
      { name: 'cni.shim.vs_true', value: version / floor, goal: 1.3, ...RATIO },
    ];
  });
}

function reportPods({ own, ptp }: Record<Side, PodTimes>, report: Report): void {
  for (const command of ['add', 'del'] as const) {
    const show = (times: readonly number[]) =>
      `${median(times).toFixed(2)} ms (p99 ${quantile(times, 0.99).toFixed(2)})`;
    report(`${command.toUpperCase()} p50: own ${show(own[command])}, ptp ${show(ptp[command])}`);
  }
}

function versusPtp(store: string, { own, ptp }: Record<Side, PodTimes>): Figure[] {
  return (['add', 'del'] as const).map((command) => ({
    name: `cni.${command}.${store}.vs_ptp`,
    value: median(own[command]) / median(ptp[command]),
    goal: GOALS[command],
    ...RATIO,
  }));
}
