import { performance } from 'node:perf_hooks';
import { setTimeout as sleep } from 'node:timers/promises';

import { quantile, type Figure } from '../figure.js';
import { LightClient } from '../ipam/light-client.js';
import { IpamCaller, newContainerId, timed, untilServing } from '../ipam/load.js';
import { Announcements, allocateSteadily } from '../policies/announcements.js';
import { allowPolicy, namespaceName } from '../policies/cluster.js';
import { PolicyNodes } from '../policies/policy-nodes.js';
import { nodeNameOf, POLICIES, Scene, untilFollowed } from '../policies/scene.js';

const SIZE = { nodes: Number(process.env.NODES ?? 500), namespaces: Number(process.env.NS ?? 50), podsPerNode: 10 };
const PARTS = (process.env.PARTS ?? 'memory,follow,announce,shared,policy').split(',');
const q = (values: readonly number[]) =>
  `p50 ${quantile(values, 0.5).toFixed(1)} p99 ${quantile(values, 0.99).toFixed(1)} max ${Math.max(...values).toFixed(1)} ms`;

export async function measurePolicies(report: (line: string) => void): Promise<Figure[]> {
  let startMs = performance.now();
  const scene = await Scene.create(SIZE);
  report(`scene in ${((performance.now() - startMs) / 1000).toFixed(1)} s`);
  try {
    for (const policies of PARTS.includes('memory') ? ['false', 'true'] : []) {
      startMs = performance.now();
      const ipam = await scene.start({ PODWIRE_IPAM_NETWORK_POLICIES: policies });
      const caller = new IpamCaller(ipam.socket);
      await untilServing(caller);
      const servingMs = performance.now() - startMs;
      const followedMs = policies === 'true' ? await untilFollowed(ipam, startMs) : 0;
      const cpuS = ipam.process.processorMs() / 1000;
      const at = ipam.process.residentOwnMib();
      await sleep(3000);
      report(
        `policies ${policies}: serving ${servingMs.toFixed(0)} ms, followed ${followedMs.toFixed(0)} ms, cpu ${cpuS} s, ${at.toFixed(0)} MiB, later ${ipam.process.residentOwnMib().toFixed(0)} MiB, cpu ${ipam.process.processorMs() / 1000}`,
      );
      caller.close();
      await ipam.process.stop();
    }
    const ipam = await scene.start();
    const caller = new IpamCaller(ipam.socket);
    await untilServing(caller);
    await untilFollowed(ipam, performance.now());
    report(`before the nodes ${ipam.process.residentOwnMib().toFixed(0)} MiB`);
    let received = (node: number) => void node;
    let announcements: Announcements | undefined;
    startMs = performance.now();
    await scene.issue('other');
    report(`certificates in ${((performance.now() - startMs) / 1000).toFixed(1)} s`);
    const other = new IpamCaller(await scene.connect('other', SIZE.nodes));
    const connect = async (node: number) => new LightClient(await scene.connect(nodeNameOf(node), node));
    const nodes = new PolicyNodes(SIZE.nodes, connect, {
      added: (address) => announcements?.added(address),
      received: (node) => received(node),
    });
    announcements = new Announcements(scene, nodes, ipam);
    await sleep(1000);
    let stalls: number[] = [];
    let probing = true;
    const probe = (async () => {
      while (probing) {
        stalls.push(await timed(() => other.allocate(newContainerId(), 'other')));
        await sleep(5);
      }
    })();
    await sleep(2000);
    report(`allocate before: ${q(stalls)}`);
    stalls = [];
    startMs = performance.now();
    let cpu = ipam.process.processorMs();
    await nodes.follow();
    await nodes.untilComplete();
    report(
      `${SIZE.nodes} nodes follow in ${(performance.now() - startMs).toFixed(0)} ms, cpu ${ipam.process.processorMs() - cpu} ms, ${(nodes.bytes / 2 ** 20).toFixed(0)} MiB sent`,
    );
    probing = false;
    await probe;
    report(`allocate meanwhile: ${q(stalls)}`);
    await sleep(3000);
    report(`after the nodes ${ipam.process.residentOwnMib().toFixed(0)} MiB`);
    if (PARTS.includes('announce'))
      for (const rate of (process.env.RATES ?? '1,20,100').split(',').map(Number)) {
        const result = await announcements.run({ rate, count: Math.max(10, rate * 4), isShared: false });
        report(
          `${rate}/s: answer ${q(result.answersMs)}; last ${q(result.lastMs)}; nodes ${result.nodes}, receivers ${result.receivers}, cpu ${((100 * result.processorMs) / result.seconds / 1000).toFixed(0)} %`,
        );
      }
    if (PARTS.includes('shared'))
      for (const rate of [1, 5]) {
        const result = await announcements.run({ rate, count: rate * 10, isShared: true });
        report(
          `shared ${rate}/s: answer ${q(result.answersMs)}; last ${q(result.lastMs)}; nodes ${result.nodes}, receivers ${result.receivers}, cpu ${((100 * result.processorMs) / result.seconds / 1000).toFixed(0)} %, per pod ${(result.processorMs / (rate * 10)).toFixed(0)} ms`,
        );
      }
    if (PARTS.includes('beside'))
      for (const round of [0, 1, 2]) {
        for (const load of [false, true]) {
          const run = load ? announcements.run({ rate: 20, count: 160, isShared: false }) : sleep(12_000);
          await sleep(load ? 4000 : 1000);
          const stop = allocateSteadily(other, 20);
          await sleep(7000);
          report(`allocate ${round} ${load ? 'with announcements' : 'alone'}: ${q(await stop())}`);
          await run;
        }
      }
    if (PARTS.includes('policy')) {
      const times: number[] = [];
      const counts: number[] = [];
      cpu = ipam.process.processorMs();
      for (let change = 0; change < 40; change++) {
        let [last, count] = [0, 0];
        received = () => {
          last = performance.now();
          count++;
        };
        startMs = performance.now();
        scene.api.notify(POLICIES, 'MODIFIED', allowPolicy(namespaceName(11 + (change % 30)), 8000 + change));
        await sleep(250);
        times.push(last - startMs);
        counts.push(count);
      }
      report(
        `policy change: ${q(times)}, nodes ${quantile(counts, 0.5)}, cpu ${(ipam.process.processorMs() - cpu) / 40} ms each`,
      );
    }
    nodes.close();
    other.close();
    caller.close();
    await ipam.process.stop();
  } catch (error) {
    report(scene.logs());
    setTimeout(() => process.exit(1), 500).unref();
    throw error;
  } finally {
    await scene.remove();
  }
  return [];
}
