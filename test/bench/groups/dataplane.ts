import { openNamespace, type Namespace } from '@podwire/netlink';
import { AttachPodRequest, DetachPodRequest } from '@podwire/proto/podwire/dataplane/v1/pod';
import type { Attachment } from '@podwire/shared/attachment/attachment';
import { hostInterfaceName, podMac } from '@podwire/shared/attachment/names';

import { makePod, removePod, type Pod } from '../../support/pods.js';
import { Stack } from '../../support/stack.js';
import { measureConvergence } from '../dataplane/convergence.js';
import { measureRoutes } from '../dataplane/routes.js';
import { median, type Figure } from '../figure.js';
import { LightClient } from '../ipam/light-client.js';
import { timed } from '../ipam/load.js';
import { kernelFloor } from '../kernel-floor.js';

/** Unmeasured pods alone, until the just-in-time compilers are warm: as many as for ADDs (`cni/pairs.ts`). */
const OWN_WARM_UP = 2000;

/** Unmeasured pods with everything that is measured beside them. */
const WARM_UP = 20;
const MEASURED = 200;

/** The number of pods of a node, and how many of them kubelet starts at once. */
const STORM_PODS = 110;
const STORM_CALLERS = 16;
const STORM_ROUNDS = 5;

const SERVICE = '/podwire.dataplane.v1.PodService';

type Report = (line: string) => void;

/** Calls of podwire-node by a light client. */
class DataplaneCaller {
  readonly #client: LightClient;
  #pods = 0;

  constructor(socket: string) {
    this.#client = new LightClient(socket);
  }

  async attach({ attachment, netns, address }: WantedPod): Promise<void> {
    const pod = {
      attachment,
      netns,
      hostInterfaceName: hostInterfaceName(attachment),
      macAddress: podMac(attachment),
      addresses: [address],
    };
    await this.#client.call(
      `${SERVICE}/AttachPod`,
      AttachPodRequest.encode(AttachPodRequest.fromPartial({ pod })).finish(),
    );
  }

  async detach({ attachment }: WantedPod): Promise<void> {
    const request = { attachment, hostInterfaceName: hostInterfaceName(attachment) };
    await this.#client.call(`${SERVICE}/DetachPod`, DetachPodRequest.encode(request).finish());
  }

  /** A pod that no other call of this process used. */
  wanted(pod: Pod): WantedPod {
    const number = this.#pods++;
    const attachment = { network: 'bench', containerId: `bench-${number}`, interfaceName: 'eth0' };
    return { attachment, netns: pod.netns, address: `10.66.${(number >> 8) & 0xff}.${number & 0xff}/32` };
  }

  close(): void {
    this.#client.close();
  }
}

interface WantedPod {
  readonly attachment: Attachment;
  readonly netns: string;
  /** CIDR. */
  readonly address: string;
}

/** Milliseconds until the kernel acknowledges the deletion of one veth pair, with a single netlink message. */
async function acknowledgedDeletion(node: Namespace, pod: Namespace, name: string): Promise<number> {
  const [made] = await node.sequence([
    { type: 'link.add', kind: 'veth', name, peer: { name: 'eth0', namespace: pod } },
  ]);
  if (made?.ok === false) throw made.error;
  return timed(() => node.sequence([{ type: 'link.delete', link: { name } }]));
}

type Times = Record<'attach' | 'detach' | 'kernel' | 'acknowledged', number[]>;

async function measureSingly(stack: Stack, caller: DataplaneCaller, report: Report): Promise<Figure[]> {
  const floor = kernelFloor(stack);
  const node = await openNamespace(stack.netnsPath);
  const times: Times = { attach: [], detach: [], kernel: [], acknowledged: [] };
  const first = makePod('bench-warm-up');
  for (let count = 0; count < OWN_WARM_UP; count++) {
    const wanted = caller.wanted(first);
    await caller.attach(wanted);
    await caller.detach(wanted);
  }
  removePod(first);
  for (let round = 0; round < WARM_UP + MEASURED; round++) {
    const pod = makePod(`bench-${round}`);
    const wanted = caller.wanted(pod);
    const attachMs = await timed(() => caller.attach(wanted));
    const kernelMs = floor();
    const detachMs = await timed(() => caller.detach(wanted));
    const namespace = await openNamespace(pod.netns);
    const acknowledgedMs = await acknowledgedDeletion(node, namespace, `bench${round}`);
    await namespace.close();
    removePod(pod);
    if (round < WARM_UP) continue;
    times.attach.push(attachMs);
    times.detach.push(detachMs);
    times.kernel.push(kernelMs);
    times.acknowledged.push(acknowledgedMs);
  }
  await node.close();
  const [attach, detach, kernel, acknowledged] = [
    median(times.attach),
    median(times.detach),
    median(times.kernel),
    median(times.acknowledged),
  ];
  report(`AttachPod p50 ${attach.toFixed(3)} ms, kernel alone ${kernel.toFixed(3)} ms`);
  report(`DetachPod p50 ${detach.toFixed(3)} ms, the kernel's acknowledgement ${acknowledged.toFixed(1)} ms`);
  return [
    { name: 'dataplane.attach.vs_kernel', value: attach / kernel, unit: 'ratio', better: 'lower', goal: 2 },
    { name: 'dataplane.detach.p50_ms', value: detach, unit: 'ms', better: 'lower', goal: 3 },
    { name: 'dataplane.detach.vs_ack', value: detach / acknowledged, unit: 'ratio', better: 'lower', goal: 0.2 },
  ];
}

/** Calls per second of that many callers together, each taking the next pod as soon as it is answered. */
async function stormRate(pods: readonly WantedPod[], call: (pod: WantedPod) => Promise<void>): Promise<number> {
  let next = 0;
  const run = async (): Promise<void> => {
    for (let pod = pods[next++]; pod; pod = pods[next++]) await call(pod);
  };
  const elapsedMs = await timed(() => Promise.all(Array.from({ length: STORM_CALLERS }, run)));
  return (pods.length / elapsedMs) * 1000;
}

async function measureStorms(caller: DataplaneCaller, report: Report): Promise<Figure[]> {
  const [attached, detached]: [number[], number[]] = [[], []];
  for (let round = 0; round < STORM_ROUNDS; round++) {
    const pods = Array.from({ length: STORM_PODS }, (_, number) => makePod(`storm-${round}-${number}`));
    const wanted = pods.map((pod) => caller.wanted(pod));
    attached.push(await stormRate(wanted, (pod) => caller.attach(pod)));
    detached.push(await stormRate(wanted, (pod) => caller.detach(pod)));
    for (const pod of pods) removePod(pod);
  }
  report(
    `${STORM_PODS} pods, ${STORM_CALLERS} callers: ${median(attached).toFixed(0)} attached, ${median(detached).toFixed(0)} detached per second`,
  );
  return [
    { name: 'dataplane.attach.rate_16', value: median(attached), unit: '1/s', better: 'higher', goal: 400 },
    { name: 'dataplane.detach.rate_16', value: median(detached), unit: '1/s', better: 'higher', goal: 300 },
  ];
}

/** Pods: one after another beside the kernel's minimum, and a node's worth of them at once. Then routes between nodes. */
export async function measureDataplane(report: Report): Promise<Figure[]> {
  const routes = [...(await measureRoutes(report)), ...(await measureConvergence(report))];
  return [...(await measurePods(report)), ...routes];
}

async function measurePods(report: Report): Promise<Figure[]> {
  const stack = new Stack();
  try {
    await stack.start('ipam', 'node');
    const caller = new DataplaneCaller(stack.sockets.dataplane);
    const figures = [...(await measureSingly(stack, caller, report)), ...(await measureStorms(caller, report))];
    caller.close();
    return figures;
  } finally {
    await stack.destroy();
  }
}
