import { mkdirSync } from 'node:fs';
import { join } from 'node:path';

import { cniConfiguration, cniEnvironment, makePod, removePod, type CniCall, type Pod } from '../../support/pods.js';
import { run } from '../../support/programs.js';
import { ROOT, SHIM } from '../../support/root.js';
import { Stack } from '../../support/stack.js';
import { ExecTimer, type Execution } from '../exec-timer.js';
import { median, type Figure } from '../figure.js';

/** Pods before the measured ones, until the just-in-time compilers have settled. */
const WARM_UP = 150;
const PAIRS = 300;

/** Kernel-only pods between the measured ones, so that they meet the same noise; their median counts. */
const FLOOR_BATCH = 3;

/** Debian's package containernetworking-plugins. */
const PEER_PLUGINS = '/usr/lib/cni';

/** What users have on a single machine today: Go's `ptp` with `host-local`. */
function ptpCall(command: string, { pod, folder }: { readonly pod: Pod; readonly folder: string }): Execution {
  const ipam = {
    type: 'host-local',
    dataDir: join(folder, 'host-local'),
    ranges: [[{ subnet: '10.201.0.0/16' }]],
    routes: [{ dst: '0.0.0.0/0' }],
  };
  const call: CniCall = { command, pod, socket: '', config: { name: 'ptp', type: 'ptp', socket: undefined, ipam } };
  const program = join(PEER_PLUGINS, 'ptp');
  return { program, stdin: cniConfiguration(call), env: cniEnvironment({ ...call, env: { CNI_PATH: PEER_PLUGINS } }) };
}

function ownCall(command: string, { pod, socket }: { readonly pod: Pod; readonly socket: string }): Execution {
  const call: CniCall = { command, pod, socket };
  return { program: SHIM, stdin: cniConfiguration(call), env: cniEnvironment(call) };
}

type Times = Record<'ownAdd' | 'ownDel' | 'ptpAdd' | 'ptpDel' | 'kernel', number[]>;

interface Bench {
  readonly stack: Stack;
  readonly timer: ExecTimer;
  readonly floor: () => number;
}

/** One pod through each, one after the other; every second time in the other order. */
async function pair({ stack, timer, floor }: Bench, round: number): Promise<Record<keyof Times, number>> {
  const id = `bench-${round}`;
  const socket = stack.sockets.plugin;
  const [ownPod, ptpPod] = [makePod(`${id}-own`), makePod(`${id}-ptp`)];
  const own = async (command: string) => (await timer.succeed(ownCall(command, { pod: ownPod, socket }))).elapsedMs;
  const ptp = async (command: string) =>
    (await timer.succeed(ptpCall(command, { pod: ptpPod, folder: stack.folder }))).elapsedMs;
  const both = async (command: string): Promise<[number, number]> => {
    if (round % 2 === 0) return [await own(command), await ptp(command)];
    const theirs = await ptp(command);
    return [await own(command), theirs];
  };
  const [ownAdd, ptpAdd] = await both('ADD');
  const kernel = floor();
  const [ownDel, ptpDel] = await both('DEL');
  removePod(ownPod);
  removePod(ptpPod);
  return { ownAdd, ownDel, ptpAdd, ptpDel, kernel };
}

/** Milliseconds that the kernel's part of one pod takes in a minimal native program. */
function kernelFloor(stack: Stack): () => number {
  const folder = join(ROOT, 'addon', 'test');
  run('make', '-s', '-C', folder, 'floor');
  const program = join(ROOT, 'addon', 'build', 'test', 'floor');
  return () => {
    const output = run('nsenter', `--net=${stack.netnsPath}`, program, String(FLOOR_BATCH));
    return Number(/"attachNs": \{"p50": (\d+)/.exec(output)?.[1]) / 1e6;
  };
}

async function measurePods(bench: Bench): Promise<Times> {
  const times: Times = { ownAdd: [], ownDel: [], ptpAdd: [], ptpDel: [], kernel: [] };
  for (let round = 0; round < WARM_UP + PAIRS; round++) {
    const measured = await pair(bench, round);
    if (round < WARM_UP) continue;
    for (const name of ['ownAdd', 'ownDel', 'ptpAdd', 'ptpDel', 'kernel'] as const) times[name].push(measured[name]);
  }
  return times;
}

/** The shim answering VERSION beside the cheapest program there is. */
async function measureStart(timer: ExecTimer): Promise<number> {
  const shim: number[] = [];
  const nothing: number[] = [];
  for (let i = 0; i < PAIRS; i++) {
    const env = { CNI_COMMAND: 'VERSION' };
    shim.push((await timer.succeed({ program: SHIM, stdin: '', env })).elapsedMs);
    nothing.push((await timer.succeed({ program: '/bin/true', stdin: '', env })).elapsedMs);
  }
  return median(shim) / median(nothing);
}

/** ADD and DEL from exec to exit on the embedded datastore, pair by pair with `ptp` + `host-local`. */
export async function measureCni(report: (line: string) => void): Promise<Figure[]> {
  const stack = new Stack();
  mkdirSync(join(stack.folder, 'host-local'));
  const timer = new ExecTimer(stack.folder, stack.netnsPath);
  try {
    await stack.start();
    const times = await measurePods({ stack, timer, floor: kernelFloor(stack) });
    const p50 = (name: keyof Times) => median(times[name]);
    report(
      `ADD p50: own ${p50('ownAdd').toFixed(2)} ms, ptp ${p50('ptpAdd').toFixed(2)} ms, kernel alone ${p50('kernel').toFixed(2)} ms`,
    );
    report(`DEL p50: own ${p50('ownDel').toFixed(2)} ms, ptp ${p50('ptpDel').toFixed(2)} ms`);
    const ratio = { unit: 'ratio', better: 'lower' } as const;
    return [
      { name: 'cni.add.embedded.vs_ptp', value: p50('ownAdd') / p50('ptpAdd'), goal: 0.4, ...ratio },
      { name: 'cni.del.embedded.vs_ptp', value: p50('ownDel') / p50('ptpDel'), goal: 0.2, ...ratio },
      { name: 'cni.add.vs_kernel', value: p50('ownAdd') / p50('kernel'), goal: 5, ...ratio },
      { name: 'cni.shim.vs_true', value: await measureStart(timer), goal: 1.3, ...ratio },
    ];
  } finally {
    timer.close();
    await stack.destroy();
  }
}
