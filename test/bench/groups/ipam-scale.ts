import { performance } from 'node:perf_hooks';
import process from 'node:process';

import { EmbeddedStore } from '@podwire/ipam/store/embedded/embedded-store';

import { median, type Figure } from '../figure.js';
import { IpamCaller, newContainerId, timed, untilServing } from '../ipam/load.js';
import { populate } from '../ipam/population.js';
import { Place, startIpam, type IpamProcess } from '../ipam/processes.js';
import { measureWatch } from '../ipam/watch.js';

const NODES = 5000;
const CONTAINERS_PER_NODE = 50;
const POOL = '10.0.0.0/8';
const NODES_PER_TRANSACTION = 50;

const WARM_UP_CALLS = 300;
const MEASURED_CALLS = 300;

/** Pairs of Allocate and Release before memory is measured, and once more. */
const EARLY_PAIRS = 20_000;
const LATE_PAIRS = 200_000;
const CALLERS = 64;

type Report = (line: string) => void;

/** What a large datastore costs, beside an empty one, and whether memory grows with use. */
export async function measureIpamScale(report: Report): Promise<Figure[]> {
  return [...(await measureScale(report)), ...(await measureWatch(report)), await measureGrowth(report)];
}

async function measureScale(report: Report): Promise<Figure[]> {
  const [place, emptyPlace] = [new Place(), new Place()];
  const running: IpamProcess[] = [];
  try {
    const empty = await startIpam(emptyPlace, { PODWIRE_IPAM_STORE_DIRECTORY: emptyPlace.path('store') });
    running.push(empty);
    const env = { PODWIRE_IPAM_STORE_DIRECTORY: place.path('store') };
    await fill(place, { env, report });
    const startMs = performance.now();
    const full = await startIpam(place, env);
    running.push(full);
    const callers = { full: new IpamCaller(full.socket), empty: new IpamCaller(empty.socket) };
    await untilServing(callers.full);
    const coldStartS = (performance.now() - startMs) / 1000;
    const allocate = await compare(callers, (call) => (call < 10 ? 'node-a' : `node-${call % 10}`));
    const claim = await compare(callers, (call) => `claiming-${call}`);
    const [ownMib, residentMib] = [full.process.residentOwnMib(), full.process.residentMib()];
    report(`cold start ${coldStartS.toFixed(1)} s; allocate ${allocate.text}; claim ${claim.text}`);
    // The datastore's file is mapped, and read once at the start: its pages are the kernel's cache, not what the service needs.
    report(`${ownMib.toFixed(0)} MiB resident, and ${(residentMib - ownMib).toFixed(0)} MiB of pages of files`);
    for (const caller of Object.values(callers)) caller.close();
    const lower = { unit: 'ratio', better: 'lower' } as const;
    return [
      { name: 'ipam.scale.cold_start_s', value: coldStartS, unit: 's', better: 'lower', goal: 15 },
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

/** Has the service make its pool at a first start, and writes all else past it. */
async function fill(
  place: Place,
  { env, report }: { readonly env: Readonly<Record<string, string>>; readonly report: Report },
): Promise<void> {
  const first = await startIpam(place, env);
  const caller = new IpamCaller(first.socket);
  await caller.release(newContainerId());
  caller.close();
  await first.process.stop();
  const store = await EmbeddedStore.open({ directory: place.path('store'), pid: process.pid });
  const population = { nodes: NODES, containersPerNode: CONTAINERS_PER_NODE, pool: POOL };
  const populatedMs = await timed(() => populate(store, { ...population, nodesPerTransaction: NODES_PER_TRANSACTION }));
  await store.close();
  report(`${NODES * CONTAINERS_PER_NODE} addresses written in ${(populatedMs / 1000).toFixed(1)} s`);
}

interface Pair<Value> {
  readonly full: Value;
  readonly empty: Value;
}

/** One caller's allocations in a full datastore and an empty one, in turns. */
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

async function measureGrowth(report: Report): Promise<Figure> {
  const place = new Place();
  const ipam = await startIpam(place, { PODWIRE_IPAM_STORE_DIRECTORY: place.path('store') });
  try {
    const caller = new IpamCaller(ipam.socket);
    await pairs(caller, EARLY_PAIRS);
    const earlyMib = ipam.process.residentOwnMib();
    await pairs(caller, LATE_PAIRS - EARLY_PAIRS);
    const lateMib = ipam.process.residentOwnMib();
    report(`${earlyMib.toFixed(0)} MiB after ${EARLY_PAIRS} pairs, ${lateMib.toFixed(0)} MiB after ${LATE_PAIRS}`);
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
