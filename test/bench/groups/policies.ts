import { performance } from 'node:perf_hooks';
import { setTimeout as sleep } from 'node:timers/promises';

import { median, quantile, type Figure } from '../figure.js';
import { LightClient } from '../ipam/light-client.js';
import { IpamCaller, newContainerId, timed, untilServing } from '../ipam/load.js';
import { nodeNameOf } from '../ipam/population.js';
import type { IpamProcess } from '../ipam/processes.js';
import { Announcements, type AnnouncementTimes, type Arrivals } from '../policies/announcements.js';
import { frontendPolicy, namespaceName, SHARED_NAMESPACES, type ClusterSize } from '../policies/cluster.js';
import { PolicyNode, PolicyNodes } from '../policies/policy-nodes.js';
import { Scene } from '../policies/scene.js';

const SMALL: ClusterSize = { nodes: 500, namespaces: 250, podsPerNode: 10 };
const LARGE: ClusterSize = { nodes: 5000, namespaces: 500, podsPerNode: 10 };

/** Readings of memory, a second apart; the lowest counts. */
const LOOKS = 5;

/** The certificate's name of a caller that allocates. */
const OTHER = 'other';

const ROUNDS = 3;
const ROUND_SECONDS = 8;
const ALLOCATIONS_PER_SECOND = 20;
const MAX_OPEN = 32;

const CHANGES = 50;
const CHANGE_INTERVAL_MS = 300;

const MS = { unit: 'ms', better: 'lower' } as const;

type Report = (line: string) => void;

/** Network policies of one podwire-ipam: memory and start, nodes that follow, announcements of pods, changes of policies. */
export async function measurePolicies(report: Report): Promise<Figure[]> {
  return [...(await measureSmall(report)), ...(await measureLarge(report))];
}

async function measureSmall(report: Report): Promise<Figure[]> {
  const scene = await createScene(SMALL, report);
  try {
    const { policiesMib } = await compareStarts(scene, report);
    return [
      { name: 'policies.pods_5k_mib', value: policiesMib, unit: 'MiB', better: 'lower', goal: 60 },
      ...(await withNodes(scene, report, async (cluster) => [
        { name: 'policies.change_5k_p99_ms', value: await changePolicies(cluster, report), goal: 200, ...MS },
      ])),
    ];
  } finally {
    await scene.remove();
  }
}

async function measureLarge(report: Report): Promise<Figure[]> {
  const scene = await createScene(LARGE, report);
  try {
    const { policiesMib, followedS } = await compareStarts(scene, report);
    return [
      { name: 'policies.pods_50k_mib', value: policiesMib, unit: 'MiB', better: 'lower', goal: 600 },
      { name: 'policies.cold_start_s', value: followedS, unit: 's', better: 'lower', goal: 30 },
      ...(await withNodes(scene, report, async (cluster) => [
        ...(await announceToNamespaces(cluster, report)),
        ...(await allocateBesideAnnouncements(cluster, report)),
        { name: 'policies.change_50k_p99_ms', value: await changePolicies(cluster, report), goal: 200, ...MS },
        await announceToAll(cluster, report),
      ])),
    ];
  } finally {
    await scene.remove();
  }
}

async function createScene(size: ClusterSize, report: Report): Promise<Scene> {
  const { nodes, podsPerNode, namespaces } = size;
  report(`${nodes * podsPerNode} pods, ${nodes} nodes, ${2 * namespaces + 1} policies`);
  return Scene.create(size);
}

/** A start with policies beside one without. */
async function compareStarts(scene: Scene, report: Report) {
  const [without, own] = [await coldStart(scene, false), await coldStart(scene, true)];
  const policiesMib = own.mib - without.mib;
  report(`start without policies: ${without.text}`);
  report(`start with policies: ${own.text}, ${policiesMib.toFixed(0)} MiB more`);
  return { policiesMib, followedS: own.readyMs / 1000 };
}

async function coldStart(scene: Scene, policies: boolean) {
  const startMs = performance.now();
  const ipam = await scene.start({ policies });
  const caller = new IpamCaller(ipam.socket);
  await untilServing(caller);
  const servingMs = performance.now() - startMs;
  if (policies) await untilFollowed(ipam);
  const [readyMs, processorMs] = [performance.now() - startMs, ipam.process.processorMs()];
  const looks: number[] = [];
  for (let look = 0; look < LOOKS; look++) {
    await sleep(1000);
    looks.push(ipam.process.residentOwnMib());
  }
  const mib = Math.min(...looks);
  caller.close();
  await ipam.process.stop();
  const seconds = [servingMs, readyMs, processorMs].map((ms) => (ms / 1000).toFixed(1));
  const text = `addresses after ${seconds[0]} s, policies after ${seconds[1]} s, ${seconds[2]} s of processor time, ${mib.toFixed(0)} MiB`;
  return { readyMs, mib, text };
}

/** Waits until a node gets its policies. */
async function untilFollowed(ipam: IpamProcess): Promise<void> {
  for (;;) {
    const events = { received: () => undefined, added: () => undefined };
    const node = new PolicyNode(0, () => Promise.resolve(new LightClient(ipam.socket)), events);
    await node.connect();
    node.follow();
    while (!node.isComplete && node.failure === undefined) await sleep(5);
    node.close();
    if (node.isComplete) return;
    await sleep(50);
  }
}

/** A running podwire-ipam whose nodes follow, and a caller of Allocate. */
interface FollowedCluster {
  readonly scene: Scene;
  readonly ipam: IpamProcess;
  readonly nodes: PolicyNodes;
  readonly announcements: Announcements;
  readonly caller: IpamCaller;
}

async function withNodes(
  scene: Scene,
  report: Report,
  measure: (cluster: FollowedCluster) => Promise<readonly Figure[]>,
): Promise<Figure[]> {
  await scene.issueCertificates(OTHER);
  const ipam = await scene.start({ policies: true });
  const nodes = new PolicyNodes(
    scene.size.nodes,
    async (node) => new LightClient(await scene.connect(nodeNameOf(node), node)),
  );
  try {
    await untilFollowed(ipam);
    const connecting = ipam.process.processorMs();
    const connectedMs = await timed(() => nodes.connect());
    const handshakesS = (ipam.process.processorMs() - connecting) / 1000;
    report(`nodes connected in ${(connectedMs / 1000).toFixed(1)} s, ${handshakesS.toFixed(1)} s of processor time`);
    const caller = new IpamCaller(await scene.connect(OTHER, scene.size.nodes));
    const followed = await followAtOnce({ ipam, nodes, caller, report });
    const measured = await measure({
      scene,
      ipam,
      nodes,
      caller,
      announcements: new Announcements(scene, nodes, ipam),
    });
    caller.close();
    return [...(scene.size === LARGE ? followed : []), ...measured];
  } finally {
    nodes.close();
    await ipam.process.stop();
  }
}

interface Following {
  readonly ipam: IpamProcess;
  readonly nodes: PolicyNodes;
  readonly caller: IpamCaller;
  readonly report: Report;
}

/** All nodes follow at once, as after a restart of podwire-ipam, while another node allocates. They are connected before. */
async function followAtOnce({ ipam, nodes, caller, report }: Following): Promise<Figure[]> {
  const mib = ipam.process.residentOwnMib();
  const stop = allocateSteadily(caller);
  await sleep(1000);
  const processorMs = ipam.process.processorMs();
  const followedMs = await timed(() => nodes.follow());
  const spentS = (ipam.process.processorMs() - processorMs) / 1000;
  const stallMs = Math.max(...(await stop()));
  const sentMib = nodes.snapshotBytes / 2 ** 20;
  const kib = ((ipam.process.residentOwnMib() - mib) * 1024) / nodes.nodes.length;
  const seconds = (followedMs / 1000).toFixed(1);
  report(`${nodes.nodes.length} nodes follow in ${seconds} s, ${spentS.toFixed(1)} s of processor time`);
  report(
    `they get ${sentMib.toFixed(0)} MiB, ${kib.toFixed(0)} KiB resident each; longest Allocate ${stallMs.toFixed(0)} ms`,
  );
  return [
    { name: 'policies.follow_5k_s', value: followedMs / 1000, unit: 's', better: 'lower', goal: 30 },
    { name: 'policies.follow_5k_allocate_max_ms', value: stallMs, goal: 1000, ...MS },
  ];
}

async function announceToNamespaces({ announcements }: FollowedCluster, report: Report): Promise<Figure[]> {
  const figures: Figure[] = [];
  for (const [podsPerSecond, seconds] of [
    [1, 30],
    [20, 15],
    [100, 5],
  ] as const) {
    const arrivals = { podsPerSecond, seconds, audience: 'namespace' } as const;
    const announce = await announcements.prepare(arrivals);
    const times = await announce();
    report(describe(arrivals, times));
    const name = `policies.announce_${podsPerSecond}_p99_ms`;
    figures.push({ name, value: quantile(times.answered, 0.99), goal: 50, ...MS });
  }
  return figures;
}

async function announceToAll({ announcements }: FollowedCluster, report: Report): Promise<Figure> {
  const arrivals = { podsPerSecond: 1, seconds: 20, audience: 'all nodes' } as const;
  const announce = await announcements.prepare(arrivals);
  const times = await announce();
  report(describe(arrivals, times));
  return { name: 'policies.announce_to_5k_p50_ms', value: median(times.answered), goal: 2000, ...MS };
}

function describe({ podsPerSecond, audience }: Arrivals, times: AnnouncementTimes): string {
  const { answered, known, awaitedNodes, reachedNodes, processorMsPerPod, processorShare } = times;
  const share = `${(100 * processorShare).toFixed(0)} % of a processor, ${processorMsPerPod.toFixed(0)} ms each`;
  const nodes = `${awaitedNodes} of ${reachedNodes} nodes awaited`;
  return `${podsPerSecond} pods/s (${audience}): answer ${spread(answered)}; known ${spread(known)}; ${nodes}; ${share}`;
}

function spread(times: readonly number[]): string {
  return `p50 ${median(times).toFixed(1)}, p99 ${quantile(times, 0.99).toFixed(1)} ms`;
}

/** Another node allocates, in turns with and without announcements. */
async function allocateBesideAnnouncements(cluster: FollowedCluster, report: Report): Promise<Figure[]> {
  const { announcements, caller } = cluster;
  const rounds: { readonly alone: number[]; readonly beside: number[] }[] = [];
  const allocateDuring = async (work: () => Promise<unknown>): Promise<number[]> => {
    const stop = allocateSteadily(caller);
    await work();
    return stop();
  };
  for (let round = 0; round < ROUNDS; round++) {
    const alone = await allocateDuring(() => sleep(ROUND_SECONDS * 1000));
    const arrivals = { podsPerSecond: 20, seconds: ROUND_SECONDS, audience: 'namespace' } as const;
    const announce = await announcements.prepare(arrivals);
    const beside = await allocateDuring(announce);
    rounds.push({ alone, beside });
    report(`Allocate alone ${spread(alone)}; beside 20 announcements per second ${spread(beside)}`);
  }
  const ratioAt = (share: number): number =>
    median(rounds.map(({ alone, beside }) => quantile(beside, share) / quantile(alone, share)));
  return [
    { name: 'policies.allocate_p50_vs_alone', value: ratioAt(0.5), unit: 'ratio', better: 'lower', goal: 1.2 },
    { name: 'policies.allocate_p99_vs_alone', value: ratioAt(0.99), unit: 'ratio', better: 'lower', goal: 1.2 },
  ];
}

/** @returns a function that stops the allocations and returns their times, in milliseconds */
function allocateSteadily(caller: IpamCaller): () => Promise<number[]> {
  const calls: Promise<number>[] = [];
  const stopping = new AbortController();
  const running = (async () => {
    while (!stopping.signal.aborted) {
      const call = timed(() => caller.allocate(newContainerId(), OTHER));
      // The caller of this function learns of a failure at the end.
      call.catch(() => stopping.abort());
      calls.push(call);
      await sleep(1000 / ALLOCATIONS_PER_SECOND);
      // podwire-ipam ends a connection with more than 64 open calls.
      if (calls.length >= MAX_OPEN) await calls.at(-MAX_OPEN)?.catch(() => undefined);
    }
  })();
  return async () => {
    stopping.abort();
    await running;
    return Promise.all(calls);
  };
}

/** @returns the p99 of the milliseconds from the event of a changed policy to the last message of a node */
async function changePolicies({ scene, ipam, nodes }: FollowedCluster, report: Report): Promise<number> {
  const times: number[] = [];
  const reached: number[] = [];
  const processorMs = ipam.process.processorMs();
  for (let change = 0; change < CHANGES; change++) {
    const startMs = performance.now();
    let [lastMs, count] = [startMs, 0];
    nodes.events.received = () => {
      lastMs = performance.now();
      count++;
    };
    const index = SHARED_NAMESPACES + (change % (scene.size.namespaces - SHARED_NAMESPACES));
    scene.reportPolicy(frontendPolicy(namespaceName(index), 9000 + change));
    do await sleep(CHANGE_INTERVAL_MS);
    while (count === 0);
    times.push(lastMs - startMs);
    reached.push(count);
  }
  nodes.events.received = () => undefined;
  const spentMs = (ipam.process.processorMs() - processorMs) / CHANGES;
  report(
    `change of a policy: with ${median(reached)} nodes ${spread(times)}; ${spentMs.toFixed(0)} ms of processor time`,
  );
  return quantile(times, 0.99);
}
