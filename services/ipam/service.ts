import { hostname } from 'node:os';

import { FAILURE_CODES, type FailureCode } from '@podwire/shared/failure/codes';
import { Failure } from '@podwire/shared/failure/failure';
import { diagnosticsService } from '@podwire/shared/common-services/diagnostics-service';
import type { RecentLines } from '@podwire/shared/runtime/recent-lines';
import { releaseService } from '@podwire/shared/common-services/release-service';
import { RpcServer } from '@podwire/shared/rpc/server';
import { UNIX } from '@podwire/shared/sockets/listen';
import type { Clock } from '@podwire/shared/runtime/clock';
import type { Running } from '@podwire/shared/runtime/lifecycle';
import type { Logger } from '@podwire/shared/runtime/log';
import { parseAddress } from '@podwire/shared/net/address';
import { readProcessRelease, type ProcessRelease } from '@podwire/shared/runtime/process-release';
import { observeReadiness } from '@podwire/shared/telemetry/instruments';
import type { UpkeepTaskName } from '@podwire/shared/telemetry/catalog/metrics-ipam';
import { ExpiryWarning } from '@podwire/shared/tls/certificate-expiry';

import { REPORTED_CODES } from './addresses/allocate/allocate-rpc.js';
import { authorizer } from './access/access-rpc.js';
import { AuditEvents } from './audit/audit-operations.js';
import { observeFindings } from './audit/findings-operations.js';
import { observeSessions } from './audit/sessions-operations.js';
import { observeUsage } from './audit/usage-operations.js';
import { clusterService, type ClusterOptions } from './cluster/cluster-rpc.js';
import { dryRunService } from './dry-run/dry-run-rpc.js';
import { beginEpoch } from './blocks/epoch.js';
import type { Config } from './config.js';
import { etcdCertificate } from './engine/etcd/credentials.js';
import { Events } from './engine/events.js';
import { Mirror, type MirrorEvent, type Observed } from './engine/mirror/mirror.js';
import { MarkExpiry } from './engine/release-marks.js';
import type { SettlementInterval, Store } from './engine/store.js';
import { StreamHub, type StreamSource } from './engine/streams/hub.js';
import { timedStore } from './engine/timed-store.js';
import { throwIfAborted } from './engine/transaction.js';
import type { IpamOptions } from './engine/updates/operation.js';
import { Updater } from './engine/updates/update-loop.js';
import { HistoryEvents, HistoryExpiry } from './history/expiry-operations.js';
import { HistoryLog } from './history/history-log.js';
import type { HistoryIpamOptions, HistoryOptions } from './history/history-operations.js';
import { Ipam, ipamServices } from './ipam.js';
import type { KubernetesApi } from './api-server/api.js';
import type { NodeTokens, NodeTokensOptions } from './api-server/node-tokens.js';
import { ObjectEvents, type ObjectEvent } from './api-server/object-events.js';
import { podCidrsOf, PodNodes } from './api-server/pod-nodes.js';
import { networkPolicyService, type NetworkPolicyServer } from './network-policies/network-policies-rpc.js';
import { PoolAdmission } from './pools/admission.js';
import { PoolEvents } from './pools/pools-operations.js';
import type { PodIdentity } from './records/attributes.js';
import type { ServiceAddress } from './records/pool.js';
import { RecordKeys } from './records/json/keys.js';
import {
  initializeDatastore,
  openStore,
  retryUntilAvailable,
  type OpenStore,
  type OpenStoreDeps,
  type StartRetry,
} from './startup/datastore.js';
import { readDefaultPools } from './startup/default-pools.js';
import { PoolConditions } from './startup/pool-conditions.js';
import { dateOf } from './messages/parts.js';
import { openNetworkIdentity, type NetworkIdentity } from './startup/network-identity.js';
import { NO_POLICIES, startNetworkPolicies, type ServedPolicies } from './startup/network-policies.js';
import { startNodeController } from './startup/start-controller.js';
import { requireCompleteImport } from './transfer/scope.js';
import { garbageTask, LockGuard, Upkeep, type UpkeepTask } from './upkeep.js';
import { Catalog } from './watch/catalog.js';
import { encodeChange, encodeMessage, watchService } from './watch/watch-rpc.js';

/** Process dependencies of the service. */
export interface ServiceDeps {
  readonly log: Logger;
  readonly clock: Clock;
  /** A number from 0 (included) to 1 (excluded). */
  readonly random: () => number;
  /** Makes a UUID. */
  readonly newUid: () => string;
  readonly pid: number;
  /** The API server of the cluster. @throws Failure INVALID_SETTINGS outside of a cluster */
  readonly kubernetes: () => KubernetesApi;
  /** The last lines of {@link log}. */
  readonly recentLines: RecentLines;
  /** The environment of the process. */
  readonly env: Readonly<Record<string, string | undefined>>;
  /** Ends this process, so that it starts again: another podwire-ipam leads. */
  readonly endProcess: () => void;
  /** Fires when the process has to stop, also during the start. Default: never. */
  readonly signal?: AbortSignal;
}

/** A started service. */
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
export async function startService(config: Config, deps: ServiceDeps): Promise<RunningService> {
  const { log, clock, newUid } = deps;
  const release = await readProcessRelease();
  const events = new Events(log);
  const retry = startRetryOptions(deps, events);
  const api = config.nodeTokens || config.nodeController ? deps.kubernetes() : undefined;
  const identity = await openNetworkIdentity(config, { clock, log, retry, api });
  const instance = `${hostname()}_${newUid()}`;
  const raw = await retryUntilAvailable(() => openStore(config, storeDeps(deps, events, instance)), retry);
  const opened = { ...raw, store: timedStore(raw.store, { clock, events }) };
  const { store, refused, traits } = opened;
  if (config.store === 'kubernetes') refused.addEventListener('abort', deps.endProcess);
  const services = serviceAddresses(config, api);
  const place = { isShared: config.store === 'etcd', instance };
  const policies = api && config.networkPolicies ? startNetworkPolicies(api, deps, place) : undefined;
  const loading = retryUntilAvailable(
    () => loadDatastore(opened, { config, deps, events, services, policies, signal: retry.signal }),
    retry,
  );
  // Awaited below; a failure must not count as unhandled before.
  loading.catch(() => undefined);
  const updates = deferredUpdates(loading.then(({ updater }) => updater));
  const history = historyOptions(opened, config);
  const options = { updates, events, clock, newUid, history, unknownNodes: config.unknownNodes, services };
  const { ipam, dryRun } = makeIpam(options, loading);
  const tokens = config.nodeTokens && api ? await openNodeTokens({ api, clock, log }) : undefined;
  const streams = { watches: deferredStreamSource(loading, refused), policies: servedPolicies(policies, refused) };
  const described = { config, identity, policies, release, instance, clock, store, loading, nodes: ipam.nodes };
  const parts = { ipam, dryRun, updates, settlement: traits.settlement, identity, release, tokens, api };
  const server = ipamServer({ ...parts, ...streams, cluster: clusterOptions(described) }, config, deps);
  const pause = new LockGuard({ isLocked: () => ipam.configuration.isLocked(), log });
  const upkeeps: Pick<Upkeep, 'stop'>[] = [];
  let stopMetrics = (): void => undefined;
  const stop = async (): Promise<void> => {
    stopMetrics();
    await Promise.all([server.stop(), policies?.stop(), ...upkeeps.map((upkeep) => upkeep.stop())]);
    api?.close();
    await loading.then(closeDatastore, () => undefined);
    await opened.close();
  };
  try {
    upkeeps.push(...startIdentityUpkeep(identity, tokens, { events, deps }));
    const early = config.listen.filter((address) => !opensWhenLeading(address, config));
    const addresses = [...(await server.listen(early))];
    const { conditions } = await loading;
    addresses.push(...(await server.listen(config.listen.filter((address) => opensWhenLeading(address, config)))));
    conditions?.begin(pause.unlessLocked(poolDeletions(ipam)).run);
    stopMetrics = observeIpam(ipam, server);
    upkeeps.push(
      startUpkeep(ipam, { config, events, deps, history, store, pause }),
      ...startMaintenance(ipam, { config, events, deps, pause }),
      ...startController(ipam, { config, events, deps, pause, api }),
    );
    serveUntilRefused(refused, server);
    return { addresses, stop };
  } catch (error) {
    await stop();
    throw error;
  }
}

function makeIpam(
  options: HistoryIpamOptions,
  loading: Promise<Pick<Datastore, 'updater'>>,
): Pick<ServedParts, 'ipam' | 'dryRun'> {
  const dryRun = (): Ipam => {
    const updates = deferredUpdates(loading.then(({ updater }) => updater.preview()));
    return new Ipam({ ...options, updates, events: new Events(options.events.log, true), isDryRun: true });
  };
  return { ipam: new Ipam(options), dryRun };
}

interface DescribedParts extends Pick<ClusterOptions, 'nodes' | 'instance' | 'clock'> {
  readonly config: Config;
  readonly identity: NetworkIdentity;
  readonly policies: ServedPolicies | undefined;
  readonly release: ProcessRelease;
  readonly store: Store;
  /** The first complete read of the datastore. */
  readonly loading: Promise<unknown>;
}

function clusterOptions(parts: DescribedParts): ServedParts['cluster'] {
  const { config, identity, policies, release, nodes, instance, store, loading, clock } = parts;
  const info: ClusterOptions['info'] = async (signal) => {
    await loading;
    const startedMs = clock.monotonicMs();
    const storeRevision = BigInt(await store.revision(signal));
    const storeReadUs = Math.round((clock.monotonicMs() - startedMs) * 1000);
    const leader = config.store === 'kubernetes' ? instance : (policies?.leader() ?? '');
    const certificateEndTime = dateOf(identity.certificates?.endMs);
    return { ...release, store: config.store, storeRevision, storeReadUs, instance, leader, certificateEndTime };
  };
  return { nodes, instance, hasReplicas: config.store === 'etcd', info, clock };
}

/**
 * Whether the port waits for the lease. A node with a connection to a process that waits would not look for the leader: a Service
 * ends no connection when its endpoints change.
 */
function opensWhenLeading(address: string, { store }: Config): boolean {
  return store === 'kubernetes' && !address.startsWith(UNIX);
}

function storeDeps(
  { clock, random, pid, newUid, kubernetes, signal = NEVER }: ServiceDeps,
  events: Events,
  identity: string,
): OpenStoreDeps {
  return { clock, random, pid, newUid, kubernetes, events, signal, identity };
}

/** @returns a function that removes the gauges */
function observeIpam(ipam: Ipam, server: RpcServer): () => void {
  const ends = [
    observeReadiness(() => server.isServing),
    observeUsage(() => ipam.audits.usage()),
    observeSessions(() => ipam.audits.sessions()),
    observeFindings(() => ipam.audits.latestFindings),
  ];
  return () => ends.forEach((end) => end());
}

interface ServedParts extends Pick<IpamOptions, 'updates'> {
  readonly ipam: Ipam;
  /** Makes the operations for one call that stores nothing. */
  readonly dryRun: () => Ipam;
  readonly watches: StreamSource;
  readonly policies: NetworkPolicyServer['policies'];
  readonly cluster: Omit<ClusterOptions, 'conditionChanged' | 'podFailed'>;
  readonly settlement: SettlementInterval;
  readonly identity: NetworkIdentity;
  readonly release: ProcessRelease;
  readonly tokens: NodeTokens | undefined;
  readonly api: KubernetesApi | undefined;
}

function ipamServer(
  { ipam, dryRun, updates, watches, policies, cluster, settlement, identity, release, tokens, api }: ServedParts,
  { listen: addresses, callTimeoutMs, drainTimeoutMs }: Config,
  { log, clock, env, recentLines: lines }: ServiceDeps,
): RpcServer {
  const pods = api && new PodNodes({ api, clock, log });
  const objectEvents = api && new ObjectEvents({ api, clock, log, instance: hostname() });
  const conditionChanged: ClusterOptions['conditionChanged'] = (...change) => objectEvents?.conditionChanged(...change);
  const ipamDeps: Omit<Parameters<typeof ipamServices>[2], 'reportRefusal'> = {
    requirePod: async (caller, pod, signal) => pods?.require(caller, pod, signal),
    settlement,
    readPodCidrs: async (name, signal) => (api ? podCidrsOf(api, name, signal) : []),
  };
  const podFailed: ClusterOptions['podFailed'] = (name, pod, { count, ...failure }) => {
    if (!isFoundByNode(failure.code)) return;
    const event = podEvent(pod, 'Attach', failure);
    pods?.require({ kind: 'network', role: 'node', name }, pod, NEVER).then(
      () => objectEvents?.report(event, count),
      () => undefined,
    );
  };
  return new RpcServer({
    addresses,
    log,
    clock,
    defaultCallTimeoutMs: callTimeoutMs,
    drainTimeoutMs,
    certificates: identity.certificates,
    proofs: { tokens, isRevoked: (serialNumber) => ipam.revocations.isRevoked(serialNumber) },
    authorize: authorizer({ updates }),
    services: (unary, streaming) => [
      ...ipamServices(ipam, unary, {
        ...ipamDeps,
        reportRefusal: (pod, failure) => void objectEvents?.report(podEvent(pod, 'Allocate', failure)),
      }),
      dryRunService((each) => ipamServices(dryRun(), each, { ...ipamDeps, reportRefusal: () => undefined }), unary),
      watchService(watches, streaming),
      networkPolicyService({ policies, clock }, unary, streaming),
      clusterService({ ...cluster, conditionChanged, podFailed }, unary, streaming),
      diagnosticsService({ release, lines, env, files: () => Promise.resolve([]) }, streaming),
      releaseService(release, unary),
    ],
  });
}

/** Whether podwire-ipam has not reported the failure itself, and it does not end by a repetition alone. */
function isFoundByNode(code: FailureCode): boolean {
  const { retryable } = FAILURE_CODES[code];
  return !REPORTED_CODES.includes(code) && (!retryable || LASTING_CODES.includes(code));
}

/** Retryable failures that persist until something else changes. */
const LASTING_CODES: readonly FailureCode[] = ['DEADLINE_EXCEEDED', 'HOST_PORT_TAKEN'];

function podEvent(
  { namespace, name, uid }: PodIdentity,
  action: string,
  { code, message }: Pick<Failure, 'code' | 'message'>,
): ObjectEvent {
  const reason = code.toLowerCase().replace(/(?:^|_)([a-z])/g, (_, letter: string) => letter.toUpperCase());
  const pod = { kind: 'Pod', namespace, name, uid } as const;
  return { ...pod, type: 'Warning', reason, action, note: message };
}

/** How often the tokens of nodes are looked at, on average, in milliseconds. */
const TOKENS_INTERVAL_MS = 5000;

function startIdentityUpkeep(
  { tasks }: NetworkIdentity,
  tokens: NodeTokens | undefined,
  { events, deps: { clock, random } }: Pick<LoadDeps, 'events' | 'deps'>,
): Upkeep[] {
  const options = {
    clock,
    random,
    reportFailure: (task: UpkeepTaskName, error: unknown) => events.upkeepFailed(task, error),
  };
  const renewal = new Upkeep({ ...options, tasks });
  if (!tokens) return [renewal];
  const reviews: UpkeepTask = { name: 'review-node-tokens', run: (signal) => tokens.review(signal) };
  return [renewal, new Upkeep({ ...options, tasks: [reviews], intervalMs: TOKENS_INTERVAL_MS })];
}

/** Loads the library for tokens only where it is needed. */
async function openNodeTokens(options: NodeTokensOptions): Promise<NodeTokens> {
  const { NodeTokens } = await import('./api-server/node-tokens.js');
  return new NodeTokens(options);
}

/** Gives access to the update loop; calls wait until it is loaded. */
function deferredUpdates(loading: Promise<IpamOptions['updates']>): IpamOptions['updates'] {
  let loaded: IpamOptions['updates'] | undefined;
  void loading.then(
    (updater) => (loaded = updater),
    () => undefined,
  );
  return {
    update: (lane, decide, options) =>
      loaded ? loaded.update(lane, decide, options) : loading.then((updater) => updater.update(lane, decide, options)),
    read: async (query, options) => (loaded ?? (await loading)).read(query, options),
    peek: async (query) => (loaded ?? (await loading)).peek(query),
  };
}

/** The addresses of podwire-ipam, etcd and the API server as settings and environment have them; names are not resolved. */
function serviceAddresses({ listen, store, etcdEndpoints }: Config, api: KubernetesApi | undefined): ServiceAddress[] {
  const hostOf = (url: string): string => new URL(url).hostname.replace(/^\[(.*)\]$/, '$1');
  const own = listen.filter((each) => !each.startsWith('unix:')).map((each) => hostOf(`tcp://${each}`));
  const hosts: readonly (readonly [ServiceAddress['name'], readonly string[]])[] = [
    ['podwire-ipam', own],
    ['etcd', store === 'etcd' ? etcdEndpoints.map(hostOf) : []],
    ['the API server', api ? [api.host] : []],
  ];
  return hosts.flatMap(([name, texts]) =>
    texts.flatMap((text) => {
      const address = parseAddress(text);
      // The unspecified address is every address of the host.
      return address && address.value !== 0n ? [{ name, address }] : [];
    }),
  );
}

const NEVER = new AbortController().signal;

function startRetryOptions({ clock, random, signal = NEVER }: ServiceDeps, events: Events): StartRetry {
  return { clock, random, signal, report: (failure) => events.datastoreUnavailable(failure) };
}

/** Starts the periodic garbage collection, if enabled. */
function startMaintenance(ipam: Ipam, { config, events, deps, pause }: MaintenanceDeps): Upkeep[] {
  const { clock, random } = deps;
  const intervalMs = config.maintenanceIntervalSeconds * 1000;
  if (intervalMs === 0) return [];
  const tasks = [pause.unlessLocked(garbageTask({ audits: ipam.audits, events: new AuditEvents(events) }))];
  const reportFailure = (task: UpkeepTaskName, error: unknown): void => events.upkeepFailed(task, error);
  return [new Upkeep({ tasks, clock, random, reportFailure, intervalMs })];
}

/** Starts the node controller, if enabled. */
function startController(ipam: Ipam, controller: ControllerDeps): Pick<Upkeep, 'stop'>[] {
  const { config, api, events, deps, pause } = controller;
  if (!config.nodeController || !api) return [];
  const { clock, random } = deps;
  return [startNodeController(ipam, { config, api, events, pause, clock, random })];
}

/** Starts the periodic background tasks. */
function startUpkeep(ipam: Ipam, upkeep: UpkeepDeps): Upkeep {
  const { config, events, deps, history, store, pause } = upkeep;
  const { clock, random } = deps;
  const keys = new RecordKeys(config.datastorePrefix);
  const expiry = new HistoryExpiry({ ...history, events: new HistoryEvents(events), clock });
  const clocksDiffer = (aheadMs: number): void => events.clocksDiffer(aheadMs);
  const marks = new MarkExpiry({ store, keys, clock, clocksDiffer });
  const tasks: UpkeepTask[] = [
    pause.unlessLocked(poolDeletions(ipam)),
    pause.unlessLocked({ name: 'finish-node-deletions', run: (signal) => ipam.nodes.finishDeletions(signal) }),
    { name: 'sample-pool-use', run: (signal: AbortSignal) => ipam.pools.sampleUse(signal) },
    { name: 'end-restore-wait', run: (signal: AbortSignal) => ipam.leases.endWait(signal) },
    { name: 'remove-old-history', run: (signal: AbortSignal) => expiry.run(signal) },
    { name: 'remove-old-release-marks', run: (signal: AbortSignal) => marks.run(signal) },
    ...certificateTasks(config, deps),
  ];
  return new Upkeep({ tasks, clock, random, reportFailure: (task, error) => events.upkeepFailed(task, error) });
}

function poolDeletions(ipam: Ipam): UpkeepTask {
  return { name: 'finish-pool-deletions', run: (signal) => ipam.pools.finishDeletions(signal) };
}

function certificateTasks({ store, etcdCertFile }: Config, { clock, log }: ServiceDeps): UpkeepTask[] {
  if (store !== 'etcd' || etcdCertFile === '') return [];
  const warning = new ExpiryWarning({ file: etcdCertificate(etcdCertFile), clock, log });
  return [{ name: 'check-etcd-certificate', run: () => Promise.resolve().then(() => warning.checkFile()) }];
}

interface MaintenanceDeps extends LoadDeps {
  readonly pause: LockGuard;
}

interface ControllerDeps extends MaintenanceDeps {
  readonly api: KubernetesApi | undefined;
}

interface UpkeepDeps extends MaintenanceDeps {
  readonly history: HistoryOptions;
  readonly store: Store;
}

function historyOptions(
  { store, history: segments }: OpenStore,
  { datastorePrefix, historyHours }: Config,
): HistoryOptions {
  const log = new HistoryLog(store, new RecordKeys(datastorePrefix), { segments });
  return { log, retentionHours: historyHours };
}

interface Datastore {
  readonly mirror: Mirror;
  readonly updater: Updater;
  readonly hub: StreamHub;
  readonly conditions: PoolConditions | undefined;
}

interface DatastoreDeps extends LoadDeps {
  readonly services: readonly ServiceAddress[];
  readonly policies: ServedPolicies | undefined;
  /** Ends the wait for the lease. */
  readonly signal: AbortSignal;
}

interface LoadDeps {
  readonly config: Config;
  readonly deps: ServiceDeps;
  readonly events: Events;
}

/** Reads the datastore, and then waits until this process may write: a process that waits has everything ready. */
async function loadDatastore(
  { store, traits, lead, publishPools }: OpenStore,
  load: DatastoreDeps,
): Promise<Datastore> {
  const { config, deps, events, services, policies, signal } = load;
  const { clock, random, newUid } = deps;
  const keys = new RecordKeys(config.datastorePrefix, traits);
  const keepsHistory = config.historyHours > 0;
  const datastore = await requireCompleteImport(store, config.datastorePrefix, NEVER);
  const currentRevision = (until: AbortSignal): Promise<number> => store.revision(until);
  const objects = new Catalog({ keys, encode: encodeChange });
  const hub = new StreamHub({ objects, encode: encodeMessage, clock, datastore, currentRevision });
  const report = (event: MirrorEvent): void => reportMirrorEvent(events, event);
  const admission = new PoolAdmission(services);
  const observers: ((observed: Observed) => void)[] = policies ? [policies.observe] : [];
  const observe = (observed: Observed): Promise<void> | undefined => {
    for (const each of observers) each(observed);
    return objects.observe(observed);
  };
  const checkPools = publishPools && admission.apply;
  const mirror = await Mirror.start({ store, keys, clock, random, report, observe, checkPools }, NEVER);
  const updater = new Updater({ store, mirror, keys, clock, random, ...traits, keepsHistory });
  const own = { updates: updater, keys, events, poolEvents: new PoolEvents(events), clock, random };
  const conditions = publishPools && new PoolConditions({ admission, publish: publishPools, ...own });
  if (conditions) observers.push((observed) => conditions.observe(observed));
  const continueClock = mirror.holdClock();
  try {
    await lead(signal);
    // While this process waited, an import may have led.
    if ((await requireCompleteImport(store, config.datastorePrefix, NEVER)) !== datastore) throw importedMeanwhile();
    const ownsNodes = config.store !== 'kubernetes';
    const first = { store, keys, ownsNodes, defaultPools: readDefaultPools(config), nowMs: clock.nowMs(), newUid };
    for (const pool of await initializeDatastore(first, NEVER)) new PoolEvents(events).poolCreated(pool);
    // Decisions on the datastores of other kinds verify that the mirror is up to date.
    if (traits.isExclusiveWriter) await mirror.reach(await store.revision(NEVER), NEVER);
    await beginNewEpoch(updater, { id: newUid(), importId: datastore }, events);
  } catch (error) {
    await closeDatastore({ mirror, updater, hub, conditions });
    throw error;
  }
  continueClock();
  policies?.lead();
  return { mirror, hub, updater, conditions };
}

/** Transient: the datastore is read again. */
function importedMeanwhile(): Failure {
  return new Failure('STORE_UNAVAILABLE', 'the datastore was imported while podwire-ipam waited; it is read again');
}

async function beginNewEpoch(updater: Updater, epoch: Parameters<typeof beginEpoch>[1], events: Events): Promise<void> {
  try {
    const isRestored = await updater.update('epoch', (view) => beginEpoch(view, epoch), { signal: NEVER });
    if (isRestored) events.datastoreRestored();
  } catch (error) {
    // A datastore without space still serves reads and releases.
    if (!(error instanceof Failure && error.code === 'STORE_FULL')) throw error;
    events.upkeepFailed('begin-epoch', error);
  }
}

/** Watches begin when the datastore has been read, and fail once it is refused. */
function deferredStreamSource(loading: Promise<Datastore>, refused: AbortSignal): StreamSource {
  return {
    async *watch(request, signal) {
      const { hub } = await loading;
      yield* hub.watch(request, AbortSignal.any([signal, refused]));
      if (!signal.aborted) throwIfAborted(refused);
    },
  };
}

/** Network policies are served until the datastore is refused: then another process leads. */
function servedPolicies(policies: ServedPolicies | undefined, refused: AbortSignal): NetworkPolicyServer['policies'] {
  if (!policies) return NO_POLICIES;
  return {
    ...policies,
    async *follow(request, signal) {
      yield* policies.follow(request, AbortSignal.any([signal, refused]));
      if (!signal.aborted) throwIfAborted(refused);
    },
  };
}

/** Health checks report serving until the datastore is refused. */
function serveUntilRefused(refused: AbortSignal, server: RpcServer): void {
  refused.addEventListener('abort', () => server.setNotServing(), { once: true });
  if (!refused.aborted) server.setServing();
}

async function closeDatastore({ mirror, updater, hub, conditions }: Datastore): Promise<void> {
  hub.close();
  await conditions?.stop();
  await updater.close();
  await mirror.close();
}

function reportMirrorEvent(events: Events, event: MirrorEvent): void {
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
