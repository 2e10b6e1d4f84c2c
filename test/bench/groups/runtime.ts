import { Containerd } from '../../runtime/containerd.js';
import { NETWORK } from '../../support/pods.js';
import { Stack } from '../../support/stack.js';
import { ptpNetwork } from '../cni/calls.js';
import { warmUp } from '../cni/warm-up.js';
import { ExecTimer } from '../exec-timer.js';
import { median, type Figure } from '../figure.js';

/** Pods of both sides before the measured ones. */
const WARM_UP = 30;
const PAIRS = 60;

interface Times {
  readonly runMs: number;
  readonly stopMs: number;
}

/** Takes a pod through its life, as kubelet waits for it. */
async function onePod(containerd: Containerd, name: string): Promise<Times> {
  const { cri } = containerd;
  const config = containerd.pod(name);
  const startMs = performance.now();
  const id = await cri.run(config);
  const runningMs = performance.now();
  await cri.stop(id);
  const stoppedMs = performance.now();
  await cri.remove(id);
  return { runMs: runningMs - startMs, stopMs: stoppedMs - runningMs };
}

function ptpConflist(folder: string): object {
  return { cniVersion: '1.0.0', name: 'ptp', plugins: [ptpNetwork(folder)] };
}

function ownConflist(socket: string): object {
  const plugin = { type: 'podwire', socket, ipam: { type: 'podwire-ipam' } };
  return { cniVersion: '1.0.0', name: NETWORK, plugins: [plugin] };
}

/** One pod through each of two containerds, one after the other; every second time in the other order. */
async function measurePairs(ownSide: Containerd, ptpSide: Containerd): Promise<Record<'own' | 'ptp', Times[]>> {
  const times: Record<'own' | 'ptp', Times[]> = { own: [], ptp: [] };
  const sides = [
    { name: 'own', containerd: ownSide },
    { name: 'ptp', containerd: ptpSide },
  ] as const;
  for (let round = 0; round < WARM_UP + PAIRS; round++) {
    for (const { name, containerd } of round % 2 === 0 ? sides : sides.toReversed()) {
      const measured = await onePod(containerd, `bench-${round}`);
      if (round >= WARM_UP) times[name].push(measured);
    }
  }
  return times;
}

async function warmUpStack({ folder, netnsPath, sockets }: Stack): Promise<void> {
  const timer = new ExecTimer(folder, netnsPath);
  try {
    await warmUp(timer, { folder, socket: sockets.node });
  } finally {
    timer.close();
  }
}

/** The time that kubelet waits, containerd's and runc's own part included, pair by pair with `ptp` + `host-local`. */
export async function measureRuntime(report: (line: string) => void): Promise<Figure[]> {
  const stack = new Stack();
  const containerds: Containerd[] = [];
  const containerd = async (conflist: object) => {
    const made = new Containerd({ netns: stack.netnsPath, conflist });
    containerds.push(made);
    await made.start();
    return made;
  };
  try {
    await stack.start();
    await warmUpStack(stack);
    const ownSide = await containerd(ownConflist(stack.sockets.node));
    const { own, ptp } = await measurePairs(ownSide, await containerd(ptpConflist(stack.folder)));
    const p50 = (times: readonly Times[], key: keyof Times) => median(times.map((each) => each[key]));
    const figure = (name: string, { key, goal }: { readonly key: keyof Times; readonly goal: number }): Figure => {
      const [ours, theirs] = [p50(own, key), p50(ptp, key)];
      report(`${name} p50: own ${ours.toFixed(1)} ms, ptp ${theirs.toFixed(1)} ms`);
      return { name: `runtime.${name}.vs_ptp`, value: ours / theirs, unit: 'ratio', better: 'lower', goal };
    };
    return [figure('run_pod', { key: 'runMs', goal: 0.95 }), figure('stop_pod', { key: 'stopMs', goal: 0.85 })];
  } finally {
    for (const each of containerds) await each.destroy();
    await stack.destroy();
  }
}
