import { tracedMessage } from '@podwire/shared/failure/status';
import type { Peer } from '@podwire/shared/rpc/client';
import type { Clock } from '@podwire/shared/runtime/clock';
import type { Logger } from '@podwire/shared/runtime/log';

import { IpamCircuitBreaker } from './addresses/ipam-plugin.js';
import type { ProviderHistory } from './addresses/provider-history.js';
import { Providers } from './addresses/providers.js';
import type { Dataplane, NodeAddresses } from './clients/clients.js';
import { ipamClient } from './clients/ipam.js';
import { add, type AddDeps } from './commands/add.js';
import { check, type CheckDeps } from './commands/check.js';
import { del, type DelDeps } from './commands/del.js';
import { gc, type GcDeps } from './commands/gc.js';
import { ReadinessEvents } from './commands/readiness-events.js';
import type { ReadinessRecord } from './commands/readiness-record.js';
import { Readiness } from './commands/readiness.js';
import { Releases } from './commands/release.js';
import { status } from './commands/status.js';
import { undo, type UndoDeps } from './commands/undo.js';
import type { Commands, DispatchOptions } from './dispatch.js';
import { CommandEvents } from './events.js';
import type { JournalStore } from './journal/entry.js';
import { JournalEvents } from './journal/events.js';
import { Journal } from './journal/journal.js';
import { KnownAllocations } from './journal/known-allocations.js';
import { Replay } from './journal/replay.js';
import { RecentCommands } from './recent-commands.js';
import { AttachmentQueue } from './requests/attachment-queue.js';
import type { Boot, NetnsReader } from './requests/netns.js';
import { OnceLogger } from './requests/once-logger.js';
import type { CniRequest } from './requests/request.js';
import { run, type CniAnswer } from './run.js';
import type { Activity } from './server.js';
import type { PluginSettings } from './settings.js';
import type { SpoolDirectory } from './spool/spool-directory.js';
import { Spool } from './spool/spool.js';

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
  /** Notified of the beginning and the end of commands. Default: no listener. */
  readonly activity?: Activity;
}

/** What the commands have on disk, and the end of their process. */
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

/** The parts of a plugin that has no server yet. */
export type PluginParts = ReturnType<typeof composePlugin>;

/** Composes the commands: each gets what it uses. */
export function composePlugin(settings: PluginSettings, deps: PluginDeps, state: PluginState) {
  const { log, clock, random, nodeAddresses, dataplane } = deps;
  const { nodeName, delServiceTimeoutMs, cleanUpTimeoutMs } = settings;
  const ipam = ipamClient({ peer: deps.ipam, clock, random, nodeName });
  const circuitBreaker = new IpamCircuitBreaker(clock);
  const { history } = state;
  const providers = new Providers({ ipam, nodeAddresses, nodeName, clock, circuitBreaker, history });

  const queue = new AttachmentQueue(clock);
  const journal = new Journal({
    store: state.journalStore,
    maxEntriesCount: settings.journalMaxEntriesCount,
    clock,
    events: new JournalEvents(log),
  });
  const known = new KnownAllocations();
  const releases = new Releases({ dataplane, nodeAddresses, providers, journal, known, queue, log });
  const replay = makeReplay({ journal, releases, delServiceTimeoutMs }, deps);

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
  const commands = composeCommands(parts, readiness);
  const runRequest = (request: CniRequest, send?: (answer: CniAnswer) => void): Promise<CniAnswer> =>
    run(request, runOptions, send);
  const spool: Spool = new Spool({ directory: state.spoolDirectory, run: runRequest, log, clock, random });
  const recent = new RecentCommands(nodeName);
  const dispatching = { commands, queue, spool, timeoutMs: timeoutsOf(settings), clock, onceLogger };
  const runOptions = { ...dispatching, events: new CommandEvents(), recent, nodeName, log };
  return { run: runRequest, queue, journal, releases, providers, replay, readiness, recent, spool };
}

type CommandParts = Omit<AddDeps, 'undo'> & CheckDeps & DelDeps & GcDeps & UndoDeps;

function composeCommands(parts: CommandParts, readiness: Readiness): Commands {
  const addDeps: AddDeps = { ...parts, undo: (failedAdd, limits) => undo(failedAdd, limits, parts) };
  return {
    add: (request, limits) => add(request, limits, addDeps),
    check: (request, limits) => check(request, limits, parts),
    del: (request, limits) => del(request, limits, parts),
    gc: (request, limits) => gc(request, limits, parts),
    status: (request) => status(request, readiness),
  };
}

function timeoutsOf({ addTimeoutMs, delTimeoutMs }: PluginSettings): DispatchOptions['timeoutMs'] {
  return { ADD: addTimeoutMs, CHECK: addTimeoutMs, DEL: delTimeoutMs, GC: addTimeoutMs };
}

/** Executes the journal's entries in the queues of their attachments. */
function makeReplay(
  { journal, releases, delServiceTimeoutMs }: Pick<GcDeps, 'journal' | 'releases' | 'delServiceTimeoutMs'>,
  { log, clock, random }: PluginDeps,
): Replay {
  return new Replay({
    journal,
    clock,
    random,
    events: new JournalEvents(log),
    execute: async (entry, skip, signal) => {
      const limitsOf = () => ({ deadlineMs: clock.nowMs() + delServiceTimeoutMs, signal });
      const incomplete = await releases.replay(entry, { limitsOf, skip });
      if (!incomplete) return undefined;
      const { call, failure } = incomplete;
      if (failure.retryable) return { service: call.service, reason: tracedMessage(failure) };
      throw failure;
    },
  });
}
