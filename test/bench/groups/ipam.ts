import process from 'node:process';

import { EmbeddedStore } from '@podwire/ipam/engine/embedded/embedded-store';
import type { Store } from '@podwire/ipam/engine/store';

import { median, type Figure } from '../figure.js';
import { bareTransaction } from '../ipam/bare-transaction.js';
import { openEtcdStore, startEtcd, type Etcd } from '../ipam/etcd.js';
import { allocationRate, callRate, IpamCaller, newContainerId, timed, type Load } from '../ipam/load.js';
import { Place, startIpam } from '../ipam/processes.js';
import { countRoundTrips } from '../ipam/round-trips.js';

const ROUNDS = 3;
const CALLERS = 64;
const LOAD: Omit<Load, 'nodes'> = { callers: CALLERS, warmUpMs: 1000, measureMs: 2000 };

/** Calls of one caller before and while its latency is measured. */
const WARM_UP_CALLS = 500;
const MEASURED_CALLS = 500;

type Report = (line: string) => void;

/** Rates and latencies of podwire-ipam over gRPC, with its callers and its datastore on the same machine. */
export async function measureIpam(report: Report): Promise<Figure[]> {
  const trips = await countRoundTrips();
  report(`round trips: ${JSON.stringify(trips)}`);
  const roundTrips = { unit: 'count', better: 'lower' } as const;
  return [
    { name: 'ipam.roundtrips.allocate', value: trips.allocate, goal: 1, ...roundTrips },
    { name: 'ipam.roundtrips.allocate_first_of_node', value: trips.allocateFirstOfNode, goal: 2, ...roundTrips },
    { name: 'ipam.roundtrips.release', value: trips.release, goal: 1, ...roundTrips },
    ...(await measureEmbedded(report)),
    ...(await measureEtcd(report)),
  ];
}

async function measureEmbedded(report: Report): Promise<Figure[]> {
  const place = new Place();
  try {
    const ipam = await startIpam(place, { PODWIRE_IPAM_STORE_DIRECTORY: place.path('store') });
    const caller = new IpamCaller(ipam.socket);
    const rate64 = await medianRate([caller], { ...LOAD, nodes: CALLERS });
    const rate1 = await medianRate([caller], { ...LOAD, nodes: 1 });
    const emptyRate = await callRate(LOAD, () => caller.checkHealth());
    report(
      `embedded: ${rate64.toFixed(0)}/s of 64 nodes, ${rate1.toFixed(0)}/s of one, ${emptyRate.toFixed(0)}/s that do nothing`,
    );
    const bare = await EmbeddedStore.open({ directory: place.path('bare'), pid: process.pid });
    const latency = await compareLatency(caller, bare);
    await bare.close();
    report(
      `embedded: allocate p50 ${latency.allocateMs.toFixed(3)} ms, durable put ${latency.bareMs.toFixed(3)} ms, a call that does nothing ${latency.emptyMs.toFixed(3)} ms`,
    );
    caller.close();
    await ipam.process.stop();
    return [
      { name: 'ipam.embedded.rate.64_nodes', value: rate64, unit: '1/s', better: 'higher', goal: 5000 },
      { name: 'ipam.embedded.rate.vs_empty', value: rate64 / emptyRate, unit: 'ratio', better: 'higher', goal: 0.67 },
      { name: 'ipam.embedded.allocate.vs_put', value: latency.ratio, unit: 'ratio', better: 'lower', goal: 2 },
    ];
  } finally {
    place.remove();
  }
}

/** Replicas on one etcd; each caller, which is a node, stays with one of them. */
const REPLICAS = 3;
const REPLICAS_ROUNDS = 7;
const REPLICAS_WARM_UP_MS = 6000;

async function measureEtcd(report: Report): Promise<Figure[]> {
  const place = new Place();
  const stops: (() => Promise<void>)[] = [];
  try {
    const etcd = await startEtcd(place);
    stops.push(() => etcd.process.stop());
    const startReplica = async (): Promise<IpamCaller> => {
      const env = { PODWIRE_IPAM_STORE: 'etcd', PODWIRE_IPAM_ETCD_ENDPOINTS: etcd.url };
      const ipam = await startIpam(place, env);
      const caller = new IpamCaller(ipam.socket);
      stops.push(async () => {
        caller.close();
        await ipam.process.stop();
      });
      return caller;
    };
    const first = await startReplica();
    await first.allocate(newContainerId(), 'node-0');
    const rate64 = await medianRate([first], { ...LOAD, nodes: CALLERS });
    const rate1 = await medianRate([first], { ...LOAD, nodes: 1 });
    report(`etcd: ${rate64.toFixed(0)}/s of 64 nodes, ${rate1.toFixed(0)}/s of one`);
    const latency = await compareWithBareEtcd(first, etcd);
    report(
      `etcd: allocate p50 ${latency.allocateMs.toFixed(3)} ms, transaction ${latency.bareMs.toFixed(3)} ms, a call that does nothing ${latency.emptyMs.toFixed(3)} ms`,
    );
    const callers = [first];
    while (callers.length < REPLICAS) callers.push(await startReplica());
    const ratios = await ratiosSideBySide(callers, report);
    return [
      { name: 'ipam.etcd.rate.64_nodes', value: rate64, unit: '1/s', better: 'higher', goal: 3000 },
      { name: 'ipam.etcd.rate.1_node', value: rate1, unit: '1/s', better: 'higher', goal: 2500 },
      { name: 'ipam.etcd.rate.3_replicas_vs_1', value: median(ratios), unit: 'ratio', better: 'higher', goal: 0.9 },
      { name: 'ipam.etcd.allocate.vs_txn', value: latency.ratio, unit: 'ratio', better: 'lower', goal: 1.6 },
    ];
  } finally {
    for (const stop of stops.reverse()) await stop();
    place.remove();
  }
}

/**
 * All replicas serving all callers, and one of them serving all, alternating. The idle ones watch all the same.
 * @returns for each round how many times as fast all were
 */
async function ratiosSideBySide(replicas: readonly IpamCaller[], report: Report): Promise<readonly number[]> {
  const load = { ...LOAD, nodes: CALLERS };
  // Processes that have just started run code that is not compiled yet.
  await allocationRate(replicas, { ...load, warmUpMs: REPLICAS_WARM_UP_MS });
  const ratios: number[] = [];
  for (let round = 0; round < REPLICAS_ROUNDS; round++) {
    const single = await allocationRate(replicas.slice(0, 1), load);
    const several = await allocationRate(replicas, load);
    report(`etcd: ${single.toFixed(0)}/s by one of ${REPLICAS} replicas, ${several.toFixed(0)}/s by all`);
    ratios.push(several / single);
  }
  return ratios;
}

async function compareWithBareEtcd(caller: IpamCaller, etcd: Etcd): Promise<Latency> {
  const store = await openEtcdStore(etcd, '/bench');
  const latency = await compareLatency(caller, store);
  await store.close();
  return latency;
}

async function medianRate(services: readonly IpamCaller[], load: Load): Promise<number> {
  const rates: number[] = [];
  for (let round = 0; round < ROUNDS; round++) rates.push(await allocationRate(services, load));
  return median(rates);
}

interface Latency {
  readonly allocateMs: number;
  readonly bareMs: number;
  /** Time of an empty call, by the same client. */
  readonly emptyMs: number;
  readonly ratio: number;
}

/** One caller's allocation beside a bare transaction of the same size, alternating. */
async function compareLatency(caller: IpamCaller, store: Store): Promise<Latency> {
  const signal = new AbortController().signal;
  const allocate: number[] = [];
  const bare: number[] = [];
  const empty: number[] = [];
  for (let call = 0; call < WARM_UP_CALLS + MEASURED_CALLS; call++) {
    const allocateMs = await timed(() => caller.allocate(newContainerId(), 'node-latency'));
    const bareMs = await timed(() => store.commit(bareTransaction(call), signal));
    const emptyMs = await timed(() => caller.checkHealth());
    if (call < WARM_UP_CALLS) continue;
    allocate.push(allocateMs);
    bare.push(bareMs);
    empty.push(emptyMs);
  }
  const [allocateMs, bareMs, emptyMs] = [median(allocate), median(bare), median(empty)];
  return { allocateMs, bareMs, emptyMs, ratio: allocateMs / bareMs };
}
