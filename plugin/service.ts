import { setMaxListeners } from 'node:events';
import { closeSync, openSync } from 'node:fs';
import { dirname, join } from 'node:path';

import { Failure, tracedMessage } from '@podwire/shared/failure/failure';
import type { Peer } from '@podwire/shared/rpc/client';
import type { Boot } from '@podwire/shared/runtime/boot';
import type { Clock } from '@podwire/shared/runtime/clock';
import type { Running } from '@podwire/shared/runtime/lifecycle';
import type { Logger } from '@podwire/shared/runtime/log';
import { wallClockNs } from '@podwire/shared/runtime/wall-clock';
import { counter } from '@podwire/shared/telemetry/instruments';

import { isGatewayHolder } from './addresses/ipam-addresses.js';
import { IpamCircuitBreaker } from './addresses/ipam-plugin.js';
import { nodePodCidrs } from './addresses/pod-cidr.js';
import { ProviderHistory } from './addresses/provider-history.js';
import { Providers } from './addresses/providers.js';
import type { Dataplane, NodeAddresses, PluginAttachments, Limits } from './clients/clients.js';
import { ipamClient } from './clients/ipam.js';
import { add } from './commands/add.js';
import { check } from './commands/check.js';
import { del } from './commands/del.js';
import { gc } from './commands/gc.js';
import { ReadinessRecord, ReadyLease } from './commands/readiness-record.js';
import { Readiness, ReadinessEvents } from './commands/readiness.js';
import { Releases } from './commands/release.js';
import { status } from './commands/status.js';
import { CommandEvents } from './events.js';
import { createJournalApi } from './journal/api.js';
import { DirectoryJournalStore } from './journal/directory-store.js';
import type { JournalStore } from './journal/entry.js';
import { JournalEvents } from './journal/events.js';
import { Journal } from './journal/journal.js';
import { KnownAllocations } from './journal/known-allocations.js';
import { Replay, type ReplayOptions } from './journal/replay.js';
import type { OnFailedPod } from './observed-command.js';
import { RecentCommands } from './recent-commands.js';
import { AttachmentQueue } from './requests/attachment-queue.js';
import { nodeNetnsReader, type NetnsReader } from './requests/netns.js';
import { OnceLogger } from './requests/once-logger.js';
import type { CniRequest } from './requests/request.js';
import { run, type CniAnswer, type Commands, type RunOptions } from './run.js';
import { CniServer, type Activity } from './server.js';
import type { PluginSettings } from './settings.js';
import { SpoolDirectory, spoolName } from './spool/spool-directory.js';
import { Spool } from './spool/spool.js';

/** Generous: the shim reads all of its input before it sends. */
const REQUEST_TIMEOUT_MS = 10_000;

/** File in the state directory, beside the journal's entries. The name is part of the stored form. */
const PROVIDER_HISTORY_FILE = 'address-providers';

/** File beside the socket, below /run, as it is valid for one boot only. */
const READY_FILE = 'node-ready';

/** Directory beside the socket, for the same reason (kSpoolFolder, shim/src/protocol.h). */
const SPOOL_DIRECTORY = 'spool';

/** File beside the socket with the recent commands of the process before. */
const COMMANDS_FILE = 'recent-commands';

/** How often they are written: a process that is killed loses this many, in milliseconds. */
const COMMANDS_INTERVAL_MS = 60_000;

/** Dependencies of the plugin on its process. */
export interface PluginDeps {
  /** The node's leases and records. */
  readonly nodeAddresses: NodeAddresses;
  readonly log: Logger;
  readonly clock: Clock;
  /** A number from 0 (included) to 1 (excluded). */
  readonly random: () => number;
  /** The current boot of the machine. */
  readonly boot: Boot;
  /** podwire-ipam. It need not run yet. */
  readonly ipam: Peer;
  /** The node's dataplane, which serves until the plugin has stopped. */
  readonly dataplane: Dataplane;
  /** Called before the socket is opened, which waits for it. Must not reject. Default: does not wait. */
  readonly prepared?: () => Promise<void>;
  /** Notified of the beginning and the end of commands. Default: no listener. */
  readonly activity?: Activity;
  /** Notified of failed ADDs. Default: no listener. */
  readonly onFailedPod?: OnFailedPod;
}

/**
 * Starts the server of the CNI commands. No other process uses its socket and its journal.
 * @throws Failure INVALID_SETTINGS when the socket cannot be created
 */
export async function startPlugin(settings: PluginSettings, deps: PluginDeps): Promise<Running> {
  const { log, clock } = deps;
  const ending = new AbortController();
  // Each DEL in flight adds a listener; without this, Node.js warns of a leak above ten.
  setMaxListeners(0, ending.signal);
  const stopping = new AbortController();
  const state = await loadState(settings, deps, { ending: ending.signal, stopping: stopping.signal });
  const parts = composePlugin(settings, deps, state);
  const { journal, replay, readiness, spool } = parts;
  // Read the journal before the socket exists: an ADD must know the pending releases.
  await journal.load();
  const lease = new ReadyLease({ path: readyPath(settings), isReady: () => readiness.isReadyDuringRestart, clock });
  const fdLimit = new FdLimit(log);
  const server = new CniServer({
    path: settings.cniSocket,
    log,
    clock,
    run: parts.run,
    commands: () => parts.recent.text(),
    journal: createJournalApi(parts),
    nowNs: wallClockNs(clock),
    requestTimeoutMs: REQUEST_TIMEOUT_MS,
    drainTimeoutMs: settings.drainTimeoutMs,
    shortage: () => fdLimit.shortage(),
    activity: deps.activity,
    onDrained() {
      ending.abort(stoppingFailure());
      // Queued commands wait for the replay's entries, and API calls for its rounds.
      void replay.stop();
    },
  });
  deps.nodeAddresses.start(attachmentsOf(parts, state, clock));
  await deps.prepared?.();
  await server.listen();
  // After the socket, which callers wait for.
  const endStoring = await keepCommands(parts.recent, join(dirname(settings.cniSocket), COMMANDS_FILE), clock);
  replay.start();
  spool.start();
  lease.start();
  return {
    async stop() {
      stopping.abort();
      // Spooled DELs that outlast the commands are left to the journal.
      await Promise.all([server.stop().then(() => ending.abort(stoppingFailure())), spool.stop()]);
      await Promise.all([lease.stop(), readiness.stop()]);
      await replay.stop();
      await journal.close();
      await endStoring();
    },
  };
}

/** Loads the recent commands, and stores them again and again. @returns ends it, and stores them once more */
async function keepCommands(recent: RecentCommands, path: string, clock: Clock): Promise<() => Promise<void>> {
  await recent.load(path);
  const storeLater = (): (() => void) =>
    clock.after(COMMANDS_INTERVAL_MS, () => {
      void recent.store(path);
      cancel = storeLater();
    });
  let cancel = storeLater();
  return () => {
    cancel();
    return recent.store(path);
  };
}

/** State of the commands on disk, and the end of their process. */
export interface PluginState {
  readonly journalStore: JournalStore;
  readonly history: ProviderHistory;
  readonly readinessRecord: ReadinessRecord;
  readonly spoolDirectory: SpoolDirectory;
  readonly netns: NetnsReader;
  /** Fires on SIGTERM: no more commands are accepted. */
  readonly stopping: AbortSignal;
  /** Fires when the grace period for running commands is over. Releases without a caller are then left to the journal. */
  readonly ending: AbortSignal;
}

/** A plugin without its server. */
export type PluginParts = ReturnType<typeof composePlugin>;

/** Composes the commands: each gets what it uses. */
export function composePlugin(settings: PluginSettings, deps: PluginDeps, state: PluginState) {
  const { log, clock, random, nodeAddresses, dataplane } = deps;
  const { nodeName, delServiceTimeoutMs, cleanUpTimeoutMs } = settings;
  const ipam = ipamClient({ peer: deps.ipam, clock, random, nodeName });
  const circuitBreaker = new IpamCircuitBreaker(clock);
  const { history } = state;
  const podCidrs = nodePodCidrs(settings.podCidrs, ipam, nodeName);
  const providers = new Providers({ ipam, nodeAddresses, nodeName, clock, circuitBreaker, history, podCidrs });

  const queue = new AttachmentQueue(clock);
  const journal = new Journal({
    store: state.journalStore,
    maxEntriesCount: settings.journalMaxEntriesCount,
    clock,
    events: new JournalEvents(log),
  });
  const known = new KnownAllocations();
  const releases = new Releases({ dataplane, nodeAddresses, providers, journal, known, queue, log });
  const limitsOf = (signal: AbortSignal): Limits => ({ deadlineMs: clock.nowMs() + delServiceTimeoutMs, signal });
  const execute = executeEntry(releases, limitsOf);
  const replay = new Replay({ journal, clock, random, events: new JournalEvents(log), execute });

  const readiness = new Readiness({
    providers,
    dataplane,
    nodeName,
    clock,
    journal,
    record: state.readinessRecord,
    events: new ReadinessEvents(log),
    isStrict: settings.strictStatus,
  });

  const onceLogger = new OnceLogger(log);
  const timeouts = { delServiceTimeoutMs, cleanUpTimeoutMs };
  const made = { ipam, providers, queue, journal, known, releases, onceLogger };
  const parts = { ...deps, ...state, ...made, ...timeouts, nodeName };
  const commands: Commands = {
    add: (request, limits) => add(request, limits, parts),
    check: (request, limits) => check(request, limits, parts),
    del: (request, limits) => del(request, limits, parts),
    gc: (request, limits) => gc(request, limits, parts),
    status: (request) => status(request, readiness),
  };
  const runRequest = (request: CniRequest, send?: (answer: CniAnswer) => void): Promise<CniAnswer> =>
    run(request, runOptions, send);
  const spool: Spool = new Spool({ directory: state.spoolDirectory, run: runRequest, log, clock, random });
  const recent = new RecentCommands(nodeName);
  const { addTimeoutMs, delTimeoutMs } = settings;
  const timeoutMs = { ADD: addTimeoutMs, CHECK: addTimeoutMs, DEL: delTimeoutMs, GC: addTimeoutMs };
  const running = { commands, queue, spool, timeoutMs, clock, onceLogger };
  const { onFailedPod = () => undefined } = deps;
  const runOptions: RunOptions = { ...running, events: new CommandEvents(), recent, nodeName, log, onFailedPod };
  return { run: runRequest, queue, journal, releases, providers, replay, readiness, recent, spool };
}

/** Executes a journal entry in the queue of its attachment. */
function executeEntry(releases: Releases, limitsOf: (signal: AbortSignal) => Limits): ReplayOptions['execute'] {
  return async (entry, skip, signal) => {
    const incomplete = await releases.replay(entry, { limitsOf: () => limitsOf(signal), skip });
    if (!incomplete) return undefined;
    const { call, failure } = incomplete;
    if (failure.retryable) return { service: call.service, reason: tracedMessage(failure) };
    throw failure;
  };
}

/** Attachments without a record, for the node's address book. */
function attachmentsOf(
  { journal, queue }: Pick<PluginParts, 'journal' | 'queue'>,
  { history, spoolDirectory }: Pick<PluginState, 'history' | 'spoolDirectory'>,
  clock: Clock,
): PluginAttachments {
  return {
    runExclusive: (attachment, timeoutMs, work) =>
      queue.run({ command: 'GC', attachment, deadlineMs: clock.nowMs() + timeoutMs }, work),
    pendingAddresses: () => journal.entries().flatMap(({ held = [] }) => held.map(({ address }) => address)),
    usageOf(attachment) {
      if (journal.get(attachment) || spoolDirectory.has(spoolName(attachment))) return 'pending';
      if (isGatewayHolder(attachment)) return 'gateway';
      return history.isAlwaysWired(attachment.network) ? 'wired' : 'unknown';
    },
  };
}

function stoppingFailure(): Failure {
  return new Failure('CANCELLED', 'podwire-node is stopping');
}

function readyPath({ cniSocket }: PluginSettings): string {
  return join(dirname(cniSocket), READY_FILE);
}

async function loadState(
  settings: PluginSettings,
  { boot, clock, log }: PluginDeps,
  signals: Pick<PluginState, 'ending' | 'stopping'>,
): Promise<PluginState> {
  const { cniSocket, stateDirectory } = settings;
  const history = new ProviderHistory({ path: join(stateDirectory, PROVIDER_HISTORY_FILE), bootId: boot.id, log });
  const readinessRecord = new ReadinessRecord({ path: readyPath(settings), bootId: boot.id, log });
  await history.load();
  await readinessRecord.load();
  return {
    journalStore: new DirectoryJournalStore(stateDirectory),
    history,
    readinessRecord,
    spoolDirectory: new SpoolDirectory(join(dirname(cniSocket), SPOOL_DIRECTORY), clock),
    netns: nodeNetnsReader(boot),
    ...signals,
  };
}

/** A file that always exists. */
const PROBE_FILE = '/dev/null';

/**
 * Detects that the process has no file descriptor left. Without one, the event loop closes every new connection without an
 * answer. So the connection that takes the last one is answered with the reason and closed. A check takes 5 µs, or 65 µs
 * after a pause.
 */
export class FdLimit {
  readonly #log: Logger;
  readonly #rejected = counter('podwire.plugin.calls.refused');
  #isShort = false;

  constructor(log: Logger) {
    this.#log = log;
  }

  /** @returns why a call cannot be served; undefined if it can */
  shortage(): Failure | undefined {
    const fault = openFault();
    if (fault === undefined) {
      if (this.#isShort) this.#log.info('file descriptors are available again');
      this.#isShort = false;
      return undefined;
    }
    this.#rejected.add(1);
    const failure = new Failure(
      'UNREACHABLE',
      `podwire-node has no file descriptor left (${fault}): repeat the call; if that persists, raise its limit (LimitNOFILE of systemd, ulimit -n) and restart it`,
    );
    if (!this.#isShort) this.#log.error({ err: failure }, `calls are rejected: ${failure.message}`);
    this.#isShort = true;
    return failure;
  }
}

/** EMFILE (limit of the process) or ENFILE (limit of the machine); undefined for any other outcome. */
function openFault(): string | undefined {
  try {
    closeSync(openSync(PROBE_FILE, 'r'));
    return undefined;
  } catch (error) {
    const code = error instanceof Error && 'code' in error ? error.code : undefined;
    return code === 'EMFILE' || code === 'ENFILE' ? code : undefined;
  }
}
