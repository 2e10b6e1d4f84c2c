import { existsSync } from 'node:fs';
import { performance } from 'node:perf_hooks';
import process from 'node:process';

import { EmbeddedStore } from '@podwire/ipam/engine/embedded/embedded-store';
import type { Store } from '@podwire/ipam/engine/store';

import { median, type Figure } from '../figure.js';
import { openEtcdStore, startEtcd } from '../ipam/etcd.js';
import { IpamCaller, newContainerId, timed, untilServing } from '../ipam/load.js';
import { populate } from '../ipam/population.js';
import { Place, startIpam, type IpamProcess } from '../ipam/processes.js';
import { measureWatch } from '../ipam/watch.js';
import { measureWatchers } from '../ipam/watchers.js';

const NODES = 5000;
const CONTAINERS_PER_NODE = 50;
const POOL = '10.0.0.0/8';
const NODES_PER_TRANSACTION = 50;

const WARM_UP_CALLS = 300;
const MEASURED_CALLS = 300;

/** Pairs of Allocate and Release before memory is measured, and once more. */
const EARLY_PAIRS = 20_000;
const LATE_PAIRS = 200_000;
const PAIRS_PER_LOOK = 4_000;
/** Readings of memory; the lowest counts. */
const LOOKS = 5;
const CALLERS = 64;

/** A file system in memory. */
const MEMORY_FOLDER = '/dev/shm';

type Report = (line: string) => void;

/** The cost of a large datastore, beside an empty one, and whether memory grows with use. */
export async function measureIpamScale(report: Report): Promise<Figure[]> {
  return [
    ...(await measureScale(report)),
    ...(await measureEtcdScale(report)),
    ...(await measureWatch(report)),
    ...(await measureWatchers(report)),
    await measureGrowth(report),
  ];
}

async function measureScale(report: Report): Promise<Figure[]> {
  const [place, emptyPlace] = [new Place(), new Place()];
  const running: IpamProcess[] = [];
  try {
    const empty = await startIpam(emptyPlace, { PODWIRE_IPAM_STORE_DIRECTORY: emptyPlace.path('store') });
    running.push(empty);
    const directory = place.path('store');
    const env = { PODWIRE_IPAM_STORE_DIRECTORY: directory };
    const open = () => EmbeddedStore.open({ directory, pid: process.pid });
    await fill(place, { env, open, nodesPerTransaction: NODES_PER_TRANSACTION, report });
    const full = await startFull(place, env);
    running.push(full.ipam);
    const callers = { full: full.caller, empty: new IpamCaller(empty.socket) };
    const allocate = await compare(callers, (call) => (call < 10 ? 'node-a' : `node-${call % 10}`));
    const claim = await compare(callers, (call) => `claiming-${call}`);
    const [ownMib, residentMib] = [full.ipam.process.residentOwnMib(), full.ipam.process.residentMib()];
    report(`${full.text}; allocate ${allocate.text}; claim ${claim.text}`);
    // The datastore's file is mapped, and read once at the start: its pages are the kernel's cache, not the service's memory.
    report(`${ownMib.toFixed(0)} MiB resident, and ${(residentMib - ownMib).toFixed(0)} MiB of pages of files`);
    for (const caller of Object.values(callers)) caller.close();
    const lower = { unit: 'ratio', better: 'lower' } as const;
    return [
      { name: 'ipam.scale.cold_start_s', value: full.coldStartS, unit: 's', better: 'lower', goal: 15 },
      { name: 'ipam.scale.rss_mib', value: ownMib, unit: 'MiB', better: 'lower', goal: 1024 },
      { name: 'ipam.scale.allocate_vs_empty', value: allocate.ratio, goal: 1.3, ...lower },
      { name: 'ipam.scale.claim_vs_empty', value: claim.ratio, goal: 1.3, ...lower },
    ];
  } finally {
    for (const { process } of running) await process.stop();
    place.remove();
    emptyPlace.remove();
  }
}

/** The same datastore on etcd, whose whole list comes through its connection. */
async function measureEtcdScale(report: Report): Promise<Figure[]> {
  const place = new Place();
  const stops: (() => Promise<void>)[] = [];
  try {
    const etcd = await startEtcd(place);
    stops.push(() => etcd.process.stop());
    const env = { PODWIRE_IPAM_STORE: 'etcd', PODWIRE_IPAM_ETCD_ENDPOINTS: etcd.url };
    const open = () => openEtcdStore(etcd, '/calico');
    await fill(place, { env, open, nodesPerTransaction: 1, report });
    const full = await startFull(place, env);
    stops.unshift(() => full.ipam.process.stop());
    full.caller.close();
    const ownMib = full.ipam.process.residentOwnMib();
    report(`etcd: ${full.text}; ${ownMib.toFixed(0)} MiB resident`);
    return [
      { name: 'ipam.scale.etcd_cold_start_s', value: full.coldStartS, unit: 's', better: 'lower', goal: 15 },
      { name: 'ipam.scale.etcd_rss_mib', value: ownMib, unit: 'MiB', better: 'lower', goal: 1024 },
    ];
  } finally {
    for (const stop of stops) await stop();
    place.remove();
  }
}

interface FullIpam {
  readonly ipam: IpamProcess;
  readonly caller: IpamCaller;
  readonly coldStartS: number;
  readonly text: string;
}

/** Starts a service on a full datastore, up to its first answer. */
async function startFull(place: Place, env: Readonly<Record<string, string>>): Promise<FullIpam> {
  const startMs = performance.now();
  const ipam = await startIpam(place, env);
  const caller = new IpamCaller(ipam.socket);
  await untilServing(caller);
  const coldStartS = (performance.now() - startMs) / 1000;
  const processorS = ipam.process.processorMs() / 1000;
  const text = `cold start ${coldStartS.toFixed(1)} s, of which ${processorS.toFixed(1)} s of processor time`;
  return { ipam, caller, coldStartS, text };
}

interface Filling {
  readonly env: Readonly<Record<string, string>>;
  readonly open: () => Promise<Store>;
  readonly nodesPerTransaction: number;
  readonly report: Report;
}

/** Has the service create its pool at a first start, and writes the rest directly. */
async function fill(place: Place, { env, open, nodesPerTransaction, report }: Filling): Promise<void> {
  const first = await startIpam(place, env);
  const caller = new IpamCaller(first.socket);
  await untilServing(caller);
  caller.close();
  await first.process.stop();
  const store = await open();
  const population = { nodes: NODES, containersPerNode: CONTAINERS_PER_NODE, pool: POOL };
  const populatedMs = await timed(() => populate(store, { ...population, nodesPerTransaction }));
  await store.close();
  report(`${NODES * CONTAINERS_PER_NODE} addresses written in ${(populatedMs / 1000).toFixed(1)} s`);
}

interface Pair<Value> {
  readonly full: Value;
  readonly empty: Value;
}

/** One caller's allocations in a full datastore and an empty one, alternating. */
async function compare(
  { full, empty }: Pair<IpamCaller>,
  nodeOf: (call: number) => string,
): Promise<{ readonly ratio: number; readonly text: string }> {
  const times: Pair<number[]> = { full: [], empty: [] };
  for (let call = 0; call < WARM_UP_CALLS + MEASURED_CALLS; call++) {
    const fullMs = await timed(() => full.allocate(newContainerId(), nodeOf(call)));
    const emptyMs = await timed(() => empty.allocate(newContainerId(), nodeOf(call)));
    if (call < WARM_UP_CALLS) continue;
    times.full.push(fullMs);
    times.empty.push(emptyMs);
  }
  const [fullMs, emptyMs] = [median(times.full), median(times.empty)];
  return { ratio: fullMs / emptyMs, text: `${fullMs.toFixed(3)} ms, ${emptyMs.toFixed(3)} ms when empty` };
}

/**
 * The store is in memory: with a disk, 400,000 transactions would take nearly all of the time, and none of the memory. The
 * memory is the lowest of several readings, from one point on and up to the other: between two collections of garbage it varies by
 * a third.
 */
async function measureGrowth(report: Report): Promise<Figure> {
  const place = new Place(existsSync(MEMORY_FOLDER) ? MEMORY_FOLDER : undefined);
  const ipam = await startIpam(place, { PODWIRE_IPAM_STORE_DIRECTORY: place.path('store') });
  try {
    const caller = new IpamCaller(ipam.socket);
    const looks: number[] = [];
    for (let done = 0; done < LATE_PAIRS; done += PAIRS_PER_LOOK) {
      await pairs(caller, PAIRS_PER_LOOK);
      if (done + PAIRS_PER_LOOK < EARLY_PAIRS) continue;
      looks.push(ipam.process.residentOwnMib());
      report(`${done + PAIRS_PER_LOOK} pairs: ${looks.at(-1)?.toFixed(0)} MiB`);
    }
    const [earlyMib, lateMib] = [Math.min(...looks.slice(0, LOOKS)), Math.min(...looks.slice(-LOOKS))];
    caller.close();
    return { name: 'ipam.heap_growth', value: lateMib / earlyMib, unit: 'ratio', better: 'lower', goal: 1.1 };
  } finally {
    await ipam.process.stop();
    place.remove();
  }
}

/** Allocates and releases that often, by callers of one node each. */
async function pairs(caller: IpamCaller, count: number): Promise<void> {
  let begun = 0;
  const run = async (number: number): Promise<void> => {
    while (begun++ < count) {
      const containerId = newContainerId();
      await caller.allocate(containerId, `node-${number}`);
      await caller.release(containerId);
    }
  };
  await Promise.all(Array.from({ length: CALLERS }, (_, number) => run(number)));
}
