import { afterAll, afterEach, beforeAll, expect, test } from 'vitest';

import { attachedPods } from '../support/leftovers.js';
import { callCni, makePod, removePod, type CniAnswer, type Pod } from '../support/pods.js';
import { podwirectl } from '../support/podwirectl.js';
import { run } from '../support/programs.js';
import { Stack } from '../support/stack.js';

/** Limits of pods, from the runtime to the kernel. */

const stack = new Stack();
const pods: Pod[] = [];

/** As containerd passes them. */
const limits = (ingress: number, egress: number) => ({
  Bandwidth: { IngressRate: ingress, IngressBurst: 2 ** 32 - 1, EgressRate: egress, EgressBurst: 2 ** 32 - 1 },
});

const call = (command: string, target: Pod, runtimeConfig: object = {}, rest: object = {}) =>
  callCni({ command, pod: target, socket: stack.sockets.node, config: { runtimeConfig, ...rest } });

async function add(name: string, runtimeConfig: object): Promise<{ pod: Pod; answer: CniAnswer }> {
  const pod = makePod(name);
  pods.push(pod);
  return { pod, answer: await call('ADD', pod, runtimeConfig) };
}

/** Runs `tc` on the node, or in a pod. */
const tc = (pod: Pod | undefined, ...args: readonly string[]) =>
  run('nsenter', `--net=${pod?.netns ?? stack.netnsPath}`, 'tc', ...args);

interface Qdisc {
  readonly kind: string;
  readonly dev: string;
  readonly options: { readonly rate?: number; readonly burst?: number };
}

/** Limits in bit/s, with the burst in bytes: of the node's interfaces, or of the pod's. */
function limited(pod?: Pod): (readonly [bits: number, burstBytes: number])[] {
  const qdiscs: readonly Qdisc[] = JSON.parse(tc(pod, '-j', 'qdisc', 'show'));
  return qdiscs
    .filter(({ kind }) => kind === 'tbf')
    .map(({ options: { rate = 0, burst = 0 } }) => [rate * 8, burst] as const);
}

const hostInterface = (): string => {
  const qdiscs: readonly Qdisc[] = JSON.parse(tc(undefined, '-j', 'qdisc', 'show'));
  return qdiscs.find(({ dev }) => dev.startsWith('podw'))?.dev ?? '';
};

const ctl = async (...args: readonly string[]) => {
  const address = `unix:${stack.sockets.dataplane}`;
  return (await podwirectl(stack.sockets.ipam, '--dataplane', address, ...args)).output;
};

beforeAll(() => stack.start());

afterEach(async () => {
  for (const each of pods.splice(0)) {
    expect(await call('DEL', each)).toMatchObject({ exitCode: 0 });
    removePod(each);
  }
  expect(limited()).toEqual([]);
});

afterAll(() => stack.destroy());

test('a pod has its limits in both directions, and gets them back after a kill of podwire-node', async () => {
  const { pod, answer } = await add('e2e-limits', limits(10_000_000, 5_000_000));
  expect(answer).toMatchObject({ exitCode: 0 });
  const expected = [[[10_000_000, 62_500]], [[5_000_000, 31_250]]];
  expect([limited(), limited(pod)]).toEqual(expected);
  expect(await ctl('pods', '-o', 'wide')).toMatch(/ 10M +5M +k8s-pod-network/);
  await stack.kill('node');
  tc(undefined, 'qdisc', 'delete', 'dev', hostInterface(), 'root');
  tc(pod, 'qdisc', 'replace', 'dev', 'eth0', 'root', 'handle', '1:', 'pfifo');
  await stack.start('node');
  await expect.poll(() => [limited(), limited(pod)], { timeout: 60_000 }).toEqual(expected);
});

test('CHECK names a changed limit, and a repair restores it', async () => {
  const { pod, answer } = await add('e2e-changed', limits(10_000_000, 5_000_000));
  tc(pod, 'qdisc', 'change', 'dev', 'eth0', 'root', 'tbf', 'rate', '1gbit', 'burst', '125k', 'limit', '1m');
  const checked = await call('CHECK', pod, limits(10_000_000, 5_000_000), { prevResult: JSON.parse(answer.stdout) });
  expect(checked.exitCode).not.toBe(0);
  expect(checked.stdout).toContain('pod qdisc dev eth0 root');
  expect(await ctl('pods', 'repair')).toContain('tbf rate 5000000bit burst 31250 limit 46875');
  expect(limited(pod)).toEqual([[5_000_000, 31_250]]);
});

test('a second ADD changes and removes limits', async () => {
  const { pod } = await add('e2e-again', limits(10_000_000, 5_000_000));
  expect(await call('ADD', pod, limits(20_000_000, 0))).toMatchObject({ exitCode: 0 });
  expect([limited(), limited(pod)]).toEqual([[[20_000_000, 125_000]], []]);
  expect(await call('ADD', pod)).toMatchObject({ exitCode: 0 });
  expect([limited(), limited(pod)]).toEqual([[], []]);
});

test('annotations of Calico override the runtime', async () => {
  const annotations = {
    'qos.projectcalico.org/ingressBandwidth': '1G',
    'qos.projectcalico.org/ingressBurst': '80M',
    'qos.projectcalico.org/egressBurst': '800k',
  };
  const config = { ...limits(10_000_000, 5_000_000), 'io.kubernetes.cri.pod-annotations': annotations };
  const { pod } = await add('e2e-annotated', config);
  expect([limited(), limited(pod)]).toEqual([[[1_000_000_000, 10_000_000]], [[5_000_000, 100_000]]]);
});

test('a wrong request is refused with all its faults, and leaves nothing', async () => {
  const annotations = { 'qos.projectcalico.org/egressBurst': '1 GB', 'qos.projectcalico.org/egressPacketRate': '1k' };
  const config = { bandwidth: { ingressRate: 10 }, 'io.kubernetes.cri.pod-annotations': annotations };
  const { answer } = await add('e2e-wrong', config);
  const { code, msg } = JSON.parse(answer.stdout);
  expect(code).toBe(7);
  for (const fault of [
    'runtimeConfig.bandwidth.ingressRate is 10 bit/s',
    'annotation qos.projectcalico.org/egressBurst is "1 GB"',
    'annotation qos.projectcalico.org/egressPacketRate is not supported',
  ])
    expect(msg).toContain(fault);
  expect(await attachedPods(stack)).toEqual([]);
});
