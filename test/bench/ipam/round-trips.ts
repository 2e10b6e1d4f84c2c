import { randomUUID } from 'node:crypto';
import { Writable } from 'node:stream';

import type { RequestedAllocation } from '@podwire/ipam/addresses/allocate/allocate';
import { Events } from '@podwire/ipam/engine/events';
import { Mirror } from '@podwire/ipam/engine/mirror/mirror';
import { MemoryStore, type Operation } from '@podwire/ipam/engine/testing/memory-store';
import { Updater } from '@podwire/ipam/engine/updates/update-loop';
import { HistoryLog } from '@podwire/ipam/history/history-log';
import { Ipam } from '@podwire/ipam/ipam';
import { checkPool } from '@podwire/ipam/pools/rules';
import { RecordKeys } from '@podwire/ipam/records/json/keys';
import { NO_REQUESTS } from '@podwire/ipam/records/request-policy';
import { systemClock } from '@podwire/shared/runtime/clock';
import { createLogger } from '@podwire/shared/runtime/log';

/** Round trips to the datastore for each kind of request, counted at the store. */
export interface RoundTrips {
  readonly allocate: number;
  readonly allocateFirstOfNode: number;
  readonly release: number;
}

/** An event of the watch is not a round trip: no caller waits for it. */
const UNASKED: readonly Operation[] = ['watch'];

/** One caller at a time on an otherwise idle datastore. */
export async function countRoundTrips(): Promise<RoundTrips> {
  let count = 0;
  const before = (operation: Operation): Promise<void> => {
    if (!UNASKED.includes(operation)) count++;
    return Promise.resolve();
  };
  const store = new MemoryStore({ before });
  const keys = new RecordKeys('/calico');
  const shared = { store, keys, clock: systemClock, random: Math.random };
  const signal = new AbortController().signal;
  const mirror = await Mirror.start({ ...shared, report: failOnEvent }, signal);
  const updater = new Updater({ ...shared, mirror });
  const log = createLogger({ service: 'bench', level: 'error', destination: new Writable() });
  const ipam = new Ipam({
    updates: updater,
    events: new Events(log),
    clock: systemClock,
    newUid: randomUUID,
    history: { log: new HistoryLog(store, keys), retentionHours: 168 },
    unknownNodes: 'register',
  });
  const checked = checkPool({ name: 'default', cidr: '10.0.0.0/16', blockSizeBits: 0, disabled: false });
  if (!checked.ok) throw new Error('the pool of the benchmark is refused');
  await ipam.pools.create(checked.spec, signal);
  const counted = async (call: () => Promise<unknown>): Promise<number> => {
    count = 0;
    await call();
    return count;
  };
  const trips = {
    allocateFirstOfNode: await counted(() => ipam.addresses.allocate(request('a'), signal)),
    allocate: await counted(() => ipam.addresses.allocate(request('b'), signal)),
    release: await counted(() => ipam.addresses.release(request('a').attachment, signal)),
  };
  await updater.close();
  await mirror.close();
  await store.close();
  return trips;
}

function request(containerId: string): RequestedAllocation {
  const attachment = { network: 'podwire', containerId, interfaceName: 'eth0' };
  return {
    attachment,
    nodeName: 'node-1',
    pod: undefined,
    netns: undefined,
    families: [4],
    addresses: [],
    pools: [],
    poolChoices: [],
    requests: NO_REQUESTS,
    namespaceLabels: {},
    maxBlocksCount: 0,
  };
}

function failOnEvent({ type }: { readonly type: string }): void {
  throw new Error(`the mirror reports ${type}`);
}
