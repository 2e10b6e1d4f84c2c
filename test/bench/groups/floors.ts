import { mkdirSync } from 'node:fs';
import { join } from 'node:path';

import { Stack } from '../../support/stack.js';
import { measurePairs } from '../cni/pairs.js';
import { measureStorms } from '../cni/storm.js';
import { ExecTimer } from '../exec-timer.js';
import { median, type Figure } from '../figure.js';
import { measureIpamFloors } from '../floors/ipam.js';
import { DO } from '../floors/method.js';
import { FloorProcesses } from '../floors/processes.js';
import { LightClient } from '../ipam/light-client.js';
import { timed } from '../ipam/load.js';
import { kernelFloor } from '../kernel-floor.js';
import { GOALS, STORM_GOALS } from './cni.js';

const PAIRS = 300;
const STORM_CALLERS = 16;
const WARM_UP_CALLS = 2000;
const MEASURED_CALLS = 200;

type Report = (line: string) => void;

/**
 * The figures if Podwire's own code took no time: the same processes, sockets and libraries, without decisions. Each figure
 * has the name and goal of the figure that it is a floor of.
 */
export async function measureFloors(report: Report): Promise<Figure[]> {
  return [...(await measureNode(report)), ...(await measureIpamFloors(report))];
}

/** Pods through the shim and a resident that records them. The kernel's part is added. */
async function measureNode(report: Report): Promise<Figure[]> {
  const stack = new Stack();
  const processes = new FloorProcesses(stack.folder);
  const timers = Array.from({ length: STORM_CALLERS }, () => new ExecTimer(stack.folder, stack.netnsPath));
  try {
    mkdirSync(join(stack.folder, 'host-local'));
    const dataplane = await processes.start('service', 'dataplane');
    const socket = await processes.start('plugin', 'plugin', [join(stack.folder, 'floor-record')]);
    const site = { socket, folder: stack.folder };
    const floor = kernelFloor(stack);
    const kernels: number[] = [];
    const [timer] = timers;
    if (!timer) throw new Error('there is no timer');
    const { own, ptp } = await measurePairs({ timer, site, count: PAIRS, between: () => kernels.push(floor()) });
    const [chain, kernel] = [median(own.add), median(kernels)];
    report(
      `ADD p50: chain ${chain.toFixed(2)} ms, kernel ${kernel.toFixed(2)} ms, ptp ${median(ptp.add).toFixed(2)} ms`,
    );
    report(`DEL p50: chain ${median(own.del).toFixed(2)} ms, ptp ${median(ptp.del).toFixed(2)} ms`);
    const rates = await measureStorms({ timers, site });
    const add = median(rates.own.add) / median(rates.ptp.add);
    const del = median(rates.own.del) / median(rates.ptp.del);
    const callMs = await measureCall(dataplane, floor);
    report(`a call that does nothing p50 ${callMs.toFixed(3)} ms`);
    return [
      { ...LOWER, name: 'floors.cni.add.embedded.vs_ptp', value: (chain + kernel) / median(ptp.add), goal: GOALS.add },
      { ...LOWER, name: 'floors.cni.del.embedded.vs_ptp', value: median(own.del) / median(ptp.del), goal: GOALS.del },
      { ...LOWER, name: 'floors.cni.add.vs_kernel', value: (chain + kernel) / kernel, goal: 5 },
      { ...HIGHER, name: 'floors.cni.storm_110.add_vs_ptp', value: add, goal: STORM_GOALS.add },
      { ...HIGHER, name: 'floors.cni.storm_110.del_vs_ptp', value: del, goal: STORM_GOALS.del },
      { ...LOWER, name: 'floors.dataplane.attach.vs_kernel', value: (callMs + kernel) / kernel, goal: 2 },
    ];
  } finally {
    for (const timer of timers) timer.close();
    await processes.stop();
    await stack.destroy();
  }
}

const LOWER = { unit: 'ratio', better: 'lower' } as const;
const HIGHER = { unit: 'ratio', better: 'higher' } as const;

/** Milliseconds of an empty call, each after a program has run, as AttachPod is measured. */
async function measureCall(socket: string, between: () => void): Promise<number> {
  const client = new LightClient(socket);
  const call = () => client.call(DO.path, Buffer.alloc(200));
  for (let count = 0; count < WARM_UP_CALLS; count++) await call();
  const times: number[] = [];
  for (let count = 0; count < MEASURED_CALLS; count++) {
    between();
    times.push(await timed(call));
  }
  client.close();
  return median(times);
}
