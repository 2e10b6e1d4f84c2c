import process from 'node:process';

import { EmbeddedStore } from '@podwire/ipam/engine/embedded/embedded-store';

import { median, type Figure } from '../figure.js';
import { bareTransaction } from '../ipam/bare-transaction.js';
import { startEtcd } from '../ipam/etcd.js';
import { LightClient } from '../ipam/light-client.js';
import { allocationRate, callRate, IpamCaller, timed, untilServing } from '../ipam/load.js';
import { Place, startIpam } from '../ipam/processes.js';
import { DO } from './method.js';
import { FloorProcesses } from './processes.js';

const NODES = 64;
const LOAD = { callers: NODES, warmUpMs: 1000, measureMs: 3000 };
const WARM_UP_ROUNDS = 2;
const ROUNDS = 5;

const WARM_UP_CALLS = 2000;
const MEASURED_CALLS = 200;

type Report = (line: string) => void;

/**
 * The floors of podwire-ipam's figures, as if its own code took no time, beside the figures: allocations that only write. Rates
 * alternate, as the machine may be twice as fast in another minute.
 */
export async function measureIpamFloors(report: Report): Promise<Figure[]> {
  return [...(await measureEmbedded(report)), ...(await measureEtcd(report))];
}

async function measureEmbedded(report: Report): Promise<Figure[]> {
  const place = new Place();
  const processes = new FloorProcesses(place.folder);
  try {
    const client = new LightClient(await processes.start('service', 'ipam', ['embedded', place.path('floor-store')]));
    const ipam = await startIpam(place, { PODWIRE_IPAM_STORE_DIRECTORY: place.path('store') });
    processes.add(ipam.process);
    const caller = new IpamCaller(ipam.socket);
    const rates = await ratesInTurns(client, caller);
    caller.close();
    const ratio = await compareWithPut(client, place, report);
    client.close();
    return [
      ...figuresOf('embedded', { rates, goal: 5000, report }),
      { name: 'floors.ipam.embedded.allocate.vs_put', value: ratio, unit: 'ratio', better: 'lower', goal: 2 },
    ];
  } finally {
    await processes.stop();
    place.remove();
  }
}

/** One caller's call beside a durable put of the same size, alternating. @returns its part of the put's time */
async function compareWithPut(client: LightClient, place: Place, report: Report): Promise<number> {
  const bare = await EmbeddedStore.open({ directory: place.path('bare'), pid: process.pid });
  const { signal } = new AbortController();
  const [calls, puts]: [number[], number[]] = [[], []];
  for (let number = -WARM_UP_CALLS; number < MEASURED_CALLS; number++) {
    const callMs = await timed(() => client.call(DO.path, Buffer.from('one')));
    const putMs = await timed(() => bare.commit(bareTransaction(number), signal));
    if (number < 0) continue;
    calls.push(callMs);
    puts.push(putMs);
  }
  await bare.close();
  report(`embedded: call p50 ${median(calls).toFixed(3)} ms, durable put ${median(puts).toFixed(3)} ms`);
  return median(calls) / median(puts);
}

/** The same rates on etcd, each on a separate one. */
async function measureEtcd(report: Report): Promise<Figure[]> {
  const [place, floorPlace] = [new Place(), new Place()];
  const processes = new FloorProcesses(floorPlace.folder);
  try {
    const etcd = await startEtcd(place);
    processes.add(etcd.process);
    const floorEtcd = await startEtcd(floorPlace);
    processes.add(floorEtcd.process);
    const client = new LightClient(await processes.start('service', 'ipam', ['etcd', floorEtcd.url]));
    const env = { PODWIRE_IPAM_STORE: 'etcd', PODWIRE_IPAM_ETCD_ENDPOINTS: etcd.url };
    const ipam = await startIpam(place, env);
    processes.add(ipam.process);
    const caller = new IpamCaller(ipam.socket);
    await untilServing(caller);
    const rates = await ratesInTurns(client, caller);
    for (const one of [client, caller]) one.close();
    return figuresOf('etcd', { rates, goal: 3000, report });
  } finally {
    await processes.stop();
    for (const one of [place, floorPlace]) one.remove();
  }
}

/** Calls per second. */
interface Rates {
  readonly floor: number;
  readonly own: number;
}

async function ratesInTurns(client: LightClient, caller: IpamCaller): Promise<Rates> {
  const [floor, own]: [number[], number[]] = [[], []];
  for (let round = -WARM_UP_ROUNDS; round < ROUNDS; round++) {
    const floorRate = await callRate(LOAD, (number) => client.call(DO.path, Buffer.from(`node-${number}`)));
    const ownRate = await allocationRate([caller], { ...LOAD, nodes: NODES });
    if (round < 0) continue;
    floor.push(floorRate);
    own.push(ownRate);
  }
  return { floor: median(floor), own: median(own) };
}

interface Measured {
  readonly rates: Rates;
  readonly goal: number;
  readonly report: Report;
}

function figuresOf(store: string, { rates: { floor, own }, goal, report }: Measured): Figure[] {
  const name = `floors.ipam.${store}.rate.64_nodes`;
  report(`${store}: floor ${floor.toFixed(0)}/s, podwire-ipam ${own.toFixed(0)}/s in turns with it`);
  return [
    { name, value: floor, unit: '1/s', better: 'higher', goal },
    { name: `${name}.reached`, value: own / floor, unit: 'ratio', better: 'higher', goal: 1 },
  ];
}
