import { setMaxListeners } from 'node:events';
import { closeSync, openSync } from 'node:fs';
import { dirname, join } from 'node:path';

import { Failure } from '@podwire/shared/failure/failure';
import { tracedMessage } from '@podwire/shared/failure/status';
import type { Peer } from '@podwire/shared/rpc/client';
import type { Clock } from '@podwire/shared/runtime/clock';
import { wallClockNs } from '@podwire/shared/runtime/wall-clock';
import type { Running } from '@podwire/shared/runtime/lifecycle';
import type { Logger } from '@podwire/shared/runtime/log';
import { counter } from '@podwire/shared/telemetry/instruments';

import { isGatewayHolder } from './addresses/ipam-addresses.js';
import { IpamCircuitBreaker } from './addresses/ipam-plugin.js';
import { ProviderHistory } from './addresses/provider-history.js';
import type { Dataplane, NodeAddresses, PluginAttachments } from './clients/clients.js';
import { ipamClient } from './clients/ipam.js';
import { ipamUpkeep } from './clients/upkeep.js';
import type { Tools } from './commands/context.js';
import { ReadinessEvents } from './commands/readiness-events.js';
import { Readiness } from './commands/readiness.js';
import { ReadyLease, ReadinessRecord } from './commands/readiness-record.js';
import { discardEntry, providerNamesOf, replayEntry } from './commands/release.js';
import { CommandEvents } from './events.js';
import { createJournalApi, type JournalApi } from './journal/api.js';
import { DirectoryJournalStore } from './journal/directory-store.js';
import { JournalEvents } from './journal/events.js';
import { Journal } from './journal/journal.js';
import { KnownAllocations } from './journal/known-allocations.js';
import { Replay } from './journal/replay.js';
import { RecentCommands } from './recent-commands.js';
import { AttachmentQueue } from './requests/attachment-queue.js';
import { nodeNetnsReader } from './requests/netns.js';
import { OnceLogger } from './requests/once-logger.js';
import { run, type RunOptions } from './run.js';
import { CniServer } from './server.js';
import type { PluginSettings } from './settings.js';
import { SpoolDirectory, spoolName } from './spool/spool-directory.js';
import { Spool } from './spool/spool.js';

/** Generous: the shim reads all of its input before it sends. */
const REQUEST_TIMEOUT_MS = 10_000;

/** In the state directory, beside the journal's entries. The name is part of the stored form. */
const PROVIDER_HISTORY_FILE = 'address-givers';

/** Beside the socket, below /run, as it is valid for one boot only. */
const READY_FILE = 'node-ready';

/** Beside the socket, for the same reason (kSpoolFolder, shim/src/protocol.h). */
const SPOOL_DIRECTORY = 'spool';

/** Dependencies of the plugin on its process. */
export interface PluginDeps {
  /** The node's leases and records. */
  readonly nodeAddresses: NodeAddresses;
  readonly log: Logger;
  readonly clock: Clock;
  /** A number from 0 (included) to 1 (excluded). */
  readonly random: () => number;
  /** podwire-ipam. It need not run yet. */
  readonly ipam: Peer;
  /** The node's dataplane, which serves until the plugin has stopped. */
  readonly dataplane: Dataplane;
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
  const tools = makeTools(settings, deps, { ending: ending.signal, stopping: stopping.signal });
  const queue = new AttachmentQueue(clock);
  const replay = makeReplay(tools, queue, deps);
  // Read the journal before the socket exists: an ADD must know the pending releases.
  await tools.journal.load();
  await tools.providerHistory.load();
  const { readiness, lease } = await makeReadiness(settings, tools);
  const recent = new RecentCommands(settings.nodeName);
  const events = new CommandEvents();
  const spooled = new SpoolDirectory(join(dirname(settings.cniSocket), SPOOL_DIRECTORY), clock);
  const spool: Spool = new Spool({ directory: spooled, run: (request) => run(request, options), ...deps });
  const options: RunOptions = { tools, queue, timeoutMs: timeoutsOf(settings), readiness, events, recent, spool };
  const fdLimit = new FdLimit(log);
  const server = new CniServer({
    path: settings.cniSocket,
    log,
    clock,
    run: (request) => run(request, options),
    ...socketApi(tools, queue, replay, recent),
    nowNs: wallClockNs(clock),
    requestTimeoutMs: REQUEST_TIMEOUT_MS,
    drainTimeoutMs: settings.drainTimeoutMs,
    shortage: () => fdLimit.shortage(),
    onDrained() {
      ending.abort(stoppingFailure());
      // Queued commands wait for the replay's entries, and API calls for its rounds.
      void replay.stop();
    },
  });
  deps.nodeAddresses.start(attachmentsOf(tools, queue, spooled));
  await server.listen();
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
      await tools.journal.close();
    },
  };
}

/** What the node's address book needs to know of attachments without a record. */
function attachmentsOf(tools: Tools, queue: AttachmentQueue, spool: SpoolDirectory): PluginAttachments {
  const { journal, providerHistory, clock } = tools;
  return {
    runExclusive: (attachment, timeoutMs, work) =>
      queue.run({ command: 'GC', attachment, deadlineMs: clock.nowMs() + timeoutMs }, work),
    pendingAddresses: () => journal.entries().flatMap(({ held = [] }) => held.map(({ address }) => address)),
    usageOf(attachment) {
      if (journal.get(attachment) || spool.has(spoolName(attachment))) return 'pending';
      if (isGatewayHolder(attachment)) return 'gateway';
      return providerHistory.isAlwaysWired(attachment.network) ? 'wired' : 'unknown';
    },
  };
}

function stoppingFailure(): Failure {
  return new Failure('CANCELLED', 'podwire-node is stopping');
}

function timeoutsOf({ addTimeoutMs, delTimeoutMs }: PluginSettings): RunOptions['timeoutMs'] {
  return { ADD: addTimeoutMs, CHECK: addTimeoutMs, DEL: delTimeoutMs, GC: addTimeoutMs };
}

/** The API of the unix socket, besides the commands. */
function socketApi(tools: Tools, queue: AttachmentQueue, replay: Replay, recent: RecentCommands) {
  return { commands: () => recent.text(), journal: makeJournalApi(tools, queue, replay) };
}

function makeTools(
  settings: PluginSettings,
  { log, clock, random, ipam: peer, dataplane, nodeAddresses }: PluginDeps,
  signals: Pick<Tools, 'ending' | 'stopping'>,
): Tools {
  const ipam = { peer, clock, random };
  const netns = nodeNetnsReader();
  return {
    ipam: ipamClient(ipam),
    dataplane,
    nodeAddresses,
    upkeep: ipamUpkeep(ipam),
    journal: new Journal({
      store: new DirectoryJournalStore(settings.stateDirectory),
      maxEntriesCount: settings.journalMaxEntriesCount,
      clock,
      events: new JournalEvents(log),
    }),
    knownAllocations: new KnownAllocations(),
    providerHistory: new ProviderHistory({
      path: join(settings.stateDirectory, PROVIDER_HISTORY_FILE),
      bootId: netns.boot.id,
      log,
    }),
    circuitBreaker: new IpamCircuitBreaker(clock),
    netns,
    nodeName: settings.nodeName,
    clock,
    log,
    onceLogger: new OnceLogger(log),
    cleanUpTimeoutMs: settings.cleanUpTimeoutMs,
    delServiceTimeoutMs: settings.delServiceTimeoutMs,
    ...signals,
  };
}

interface ReadinessParts {
  readonly readiness: Readiness;
  readonly lease: ReadyLease;
}

async function makeReadiness(settings: PluginSettings, tools: Tools): Promise<ReadinessParts> {
  const { clock, log, netns } = tools;
  const path = join(dirname(settings.cniSocket), READY_FILE);
  const record = new ReadinessRecord({ path, bootId: netns.boot.id, log });
  await record.load();
  const rest = { record, events: new ReadinessEvents(log), isStrict: settings.strictStatus };
  const readiness = new Readiness({ ...tools, ...rest });
  const lease = new ReadyLease({ path, isReady: () => readiness.isReadyDuringRestart, clock });
  return { readiness, lease };
}

function makeJournalApi(tools: Tools, queue: AttachmentQueue, replay: Replay): JournalApi {
  return createJournalApi({
    journal: tools.journal,
    replay,
    providersOf: (entry) => providerNamesOf(entry, tools),
    discard: (attachment, cancel) => discardEntry(attachment, tools, { queue, cancel }),
  });
}

/** Executes the journal's entries in the queues of their attachments. */
export function makeReplay(
  tools: Tools,
  queue: AttachmentQueue,
  { log, clock, random }: Pick<PluginDeps, 'log' | 'clock' | 'random'>,
): Replay {
  return new Replay({
    journal: tools.journal,
    clock,
    random,
    events: new JournalEvents(log),
    execute: async (entry, skip, signal) => {
      const limitsOf = () => ({ deadlineMs: clock.nowMs() + tools.delServiceTimeoutMs, signal });
      const failed = await replayEntry(entry, tools, { queue, limitsOf, skip });
      if (!failed) return undefined;
      const { service, failure } = failed;
      if (failure.retryable) return { service, reason: tracedMessage(failure) };
      throw failure;
    },
  });
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
