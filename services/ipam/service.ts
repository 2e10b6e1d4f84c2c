import { metrics } from '@opentelemetry/api';
import { RpcServer } from '@podwire/shared/rpc/server';
import type { Clock } from '@podwire/shared/runtime/clock';
import type { Running } from '@podwire/shared/runtime/lifecycle';
import type { Logger } from '@podwire/shared/runtime/log';

import { AuditEvents } from './audit/audit-operations.js';
import { observeUsage } from './audit/usage-operations.js';
import type { Config } from './config.js';
import { CertificateLife } from './engine/etcd/credentials.js';
import { Events } from './engine/events.js';
import { Mirror, type MirrorEvent } from './engine/mirror/mirror.js';
import { MarkExpiry } from './engine/release-marks.js';
import type { Store } from './engine/store.js';
import { timedStore } from './engine/timed-store.js';
import { throwIfAborted } from './engine/transaction.js';
import type { IpamOptions } from './engine/updates/operation.js';
import { Updater } from './engine/updates/update-loop.js';
import { HistoryEvents, HistoryExpiry } from './history/expiry-operations.js';
import { HistoryLog } from './history/history-log.js';
import type { HistoryOptions } from './history/history-operations.js';
import { Ipam, ipamServices } from './ipam.js';
import { PoolEvents } from './pools/pools-operations.js';
import { RecordKeys } from './records/json/keys.js';
import { beginDatastore, openStore, untilAvailable, type OpenStore, type Patience } from './startup.js';
import { requireWhole } from './transfer/scope.js';
import { garbageTask, LockPause, Upkeep, type UpkeepTask } from './upkeep.js';
import { WatchHub, type Watches } from './watch/hub.js';
import { watchCodec, watchService } from './watch/watch-rpc.js';

/** What the service takes from the process it runs in. */
export interface Surroundings {
  readonly log: Logger;
  readonly clock: Clock;
  /** A number from 0 (included) to 1 (excluded). */
  readonly random: () => number;
  /** Makes a UUID. */
  readonly newUid: () => string;
  readonly pid: number;
  /** Fires when the process has to stop, also during the start. Default: never. */
  readonly signal?: AbortSignal;
}

/** A service that answers. */
export interface RunningService extends Running {
  /** The addresses it listens on, with the actual port in place of port 0. */
  readonly addresses: readonly string[];
}

/**
 * Starts podwire-ipam: the datastore, the decisions on it, and the gRPC server. Waits for a datastore that does not
 * answer, and listens once it does. Health checks report serving from the first complete read of the datastore until
 * the datastore is permanently refused; requests wait for that first read.
 * @throws Failure STORE_IN_USE, STORE_CORRUPT, STORE_UNAVAILABLE when the signal fired first, STORE_DENIED, or
 * INVALID_SETTINGS when an address is taken or a file cannot be read
 */
export async function startService(config: Config, surroundings: Surroundings): Promise<RunningService> {
  const { log, clock, pid, newUid } = surroundings;
  const events = new Events(log);
  const patience = patienceOf(surroundings, events);
  const untimed = await untilAvailable(() => openStore(config, { pid, newUid, events }), patience);
  const store = timedStore(untimed.store, { clock, told: (answer) => events.storeAnswered(answer) });
  const opened = { ...untimed, store };
  const { refused } = opened;
  const loading = untilAvailable(() => loadDatastore(opened, { config, surroundings, events }), patience);
  // Awaited below; a failure must not count as unhandled before.
  loading.catch(() => undefined);
  const updates = updatesOf(loading.then(({ updater }) => updater));
  const history = historyOptions(store, config);
  const ipam = new Ipam({ updates, events, clock, newUid, history, unknownNodes: config.unknownNodes });
  const server = new RpcServer({
    addresses: config.listen,
    log,
    clock,
    defaultCallTimeoutMs: config.callTimeoutMs,
    drainTimeoutMs: config.drainTimeoutMs,
    services: (unary, streaming) => [
      ...ipamServices(ipam, unary),
      watchService(watchesOf(loading, refused), streaming),
    ],
  });
  const pause = new LockPause({ isLocked: () => ipam.configuration.isLocked(), log });
  const upkeeps: Upkeep[] = [];
  let stopMetrics = (): void => undefined;
  const stop = async (): Promise<void> => {
    stopMetrics();
    await Promise.all([server.stop(), ...upkeeps.map((upkeep) => upkeep.stop())]);
    await loading.then(closeDatastore, () => undefined);
    await store.close();
  };
  try {
    const addresses = await server.listen();
    await loading;
    stopMetrics = observeUsage(metrics.getMeter('podwire-ipam'), () => ipam.audits.usage());
    upkeeps.push(
      startUpkeep(ipam, { config, events, surroundings, history, store, pause }),
      ...startMaintenance(ipam, { config, events, surroundings, pause }),
    );
    serveUnless(refused, server);
    return { addresses, stop };
  } catch (error) {
    await stop();
    throw error;
  }
}

/** The update loop, which is waited for until it is there. */
function updatesOf(loading: Promise<Updater>): IpamOptions['updates'] {
  let loaded: Updater | undefined;
  void loading.then(
    (updater) => (loaded = updater),
    () => undefined,
  );
  return {
    update: (lane, decide, options) =>
      loaded ? loaded.update(lane, decide, options) : loading.then((updater) => updater.update(lane, decide, options)),
    read: async (look, options) => (loaded ?? (await loading)).read(look, options),
    peek: async (look) => (loaded ?? (await loading)).peek(look),
  };
}

const NEVER = new AbortController().signal;

function patienceOf({ clock, random, signal = NEVER }: Surroundings, events: Events): Patience {
  return { clock, random, signal, report: (failure) => events.datastoreAwaited(failure) };
}

/** Looks for garbage at its own pace, where it is to be looked for. */
function startMaintenance(ipam: Ipam, { config, events, surroundings, pause }: Pausing): Upkeep[] {
  const { clock, random } = surroundings;
  const intervalMs = config.maintenanceIntervalSeconds * 1000;
  if (intervalMs === 0) return [];
  const tasks = [pause.unlessLocked(garbageTask({ audits: ipam.audits, events: new AuditEvents(events) }))];
  const failed = (task: string, error: unknown): void => events.upkeepFailed(task, error);
  return [new Upkeep({ tasks, clock, random, failed, intervalMs })];
}

/** What has to be done without being asked. */
function startUpkeep(ipam: Ipam, upkeep: UpkeepSurroundings): Upkeep {
  const { config, events, surroundings, history, store, pause } = upkeep;
  const { clock, random } = surroundings;
  const keys = new RecordKeys(config.datastorePrefix);
  const expiry = new HistoryExpiry({ ...history, events: new HistoryEvents(events), clock });
  const clocksDiffer = (aheadMs: number): void => events.clocksDiffer(aheadMs);
  const marks = new MarkExpiry({ store, keys, clock, clocksDiffer });
  const tasks = [
    pause.unlessLocked({ name: 'finish pool deletions', run: (signal) => ipam.pools.finishDeletions(signal) }),
    pause.unlessLocked({ name: 'finish node deletions', run: (signal) => ipam.nodes.finishDeletions(signal) }),
    { name: 'remove old history', run: (signal: AbortSignal) => expiry.run(signal) },
    { name: 'remove old marks of releases', run: (signal: AbortSignal) => marks.run(signal) },
    ...certificateTasks({ config, events, surroundings }),
  ];
  return new Upkeep({ tasks, clock, random, failed: (task, error) => events.upkeepFailed(task, error) });
}

function certificateTasks({ config, events, surroundings }: Loading): UpkeepTask[] {
  const { store, etcdCertFile: file } = config;
  if (store !== 'etcd' || file === '') return [];
  const ending = (end: Date, hasEnded: boolean): void => events.storeCertificateEnding(end, hasEnded);
  const life = new CertificateLife({ file, clock: surroundings.clock, ending });
  return [{ name: 'look at the certificate for etcd', run: () => Promise.resolve().then(() => life.run()) }];
}

interface Pausing extends Loading {
  readonly pause: LockPause;
}

interface UpkeepSurroundings extends Pausing {
  readonly history: HistoryOptions;
  readonly store: Store;
}

function historyOptions(store: Store, { datastorePrefix, historyHours }: Config): HistoryOptions {
  const log = new HistoryLog(store, new RecordKeys(datastorePrefix));
  return { log, keptHoursCount: historyHours };
}

interface Datastore {
  readonly mirror: Mirror;
  readonly updater: Updater;
  readonly hub: WatchHub;
}

interface Loading {
  readonly config: Config;
  readonly surroundings: Surroundings;
  readonly events: Events;
}

async function loadDatastore(
  { store, ...limits }: OpenStore,
  { config, surroundings, events }: Loading,
): Promise<Datastore> {
  const { clock, random, newUid } = surroundings;
  const keys = new RecordKeys(config.datastorePrefix, { hasLock: config.store === 'etcd' });
  const keepsHistory = config.historyHours > 0;
  const never = new AbortController().signal;
  const datastore = await requireWhole(store, config.datastorePrefix, never);
  const first = { store, keys, defaultPool: config.defaultPool, nowMs: clock.nowMs(), newUid };
  const defaultPool = await beginDatastore(first, never);
  if (defaultPool) new PoolEvents(events).poolCreated(defaultPool);
  const currentRevision = (signal: AbortSignal): Promise<number> => store.revision(signal);
  const hub = new WatchHub({ keys, codec: watchCodec, clock, datastore, currentRevision });
  const report = (event: MirrorEvent): void => tell(events, event);
  const mirror = await Mirror.start({ store, keys, clock, random, report, observe: hub.observe }, never);
  return { mirror, hub, updater: new Updater({ store, mirror, keys, clock, random, ...limits, keepsHistory }) };
}

/** Watches begin when the datastore has been read, and fail once it is refused. */
function watchesOf(loading: Promise<Datastore>, refused: AbortSignal): Watches {
  return {
    async *watch(request, signal) {
      const { hub } = await loading;
      yield* hub.watch(request, AbortSignal.any([signal, refused]));
      if (!signal.aborted) throwIfAborted(refused);
    },
  };
}

/** Health checks report serving until the datastore is refused. */
function serveUnless(refused: AbortSignal, server: RpcServer): void {
  refused.addEventListener('abort', () => server.setNotServing(), { once: true });
  if (!refused.aborted) server.setServing();
}

async function closeDatastore({ mirror, updater, hub }: Datastore): Promise<void> {
  hub.close();
  await updater.close();
  await mirror.close();
}

function tell(events: Events, event: MirrorEvent): void {
  switch (event.type) {
    case 'unreadable':
      events.recordUnreadable(event.key, event.failure);
      break;
    case 'watchFailed':
      events.watchFailed(event.error, event.retryInMs);
      break;
    case 'listedAgain':
      events.listedAgain(event.revision);
      break;
  }
}
