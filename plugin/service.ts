import { setMaxListeners } from 'node:events';
import { closeSync, openSync } from 'node:fs';
import { dirname, join } from 'node:path';

import { metrics } from '@opentelemetry/api';
import { Failure } from '@podwire/shared/failure/failure';
import { tracedMessage } from '@podwire/shared/failure/status';
import { Peer } from '@podwire/shared/rpc/client';
import { UNIX } from '@podwire/shared/rpc/listen';
import { acquireExclusive } from '@podwire/shared/rpc/exclusive';
import type { Clock } from '@podwire/shared/runtime/clock';
import type { Running } from '@podwire/shared/runtime/lifecycle';
import type { Logger } from '@podwire/shared/runtime/log';

import { HangingPlugins } from './addresses/circuit-breaker.js';
import { Givers } from './addresses/provider-history.js';
import { dataplaneClient } from './clients/dataplane.js';
import { ipamClient } from './clients/ipam.js';
import { dataplaneUpkeep, ipamUpkeep } from './clients/upkeep.js';
import type { Tools } from './commands/context.js';
import { ReadinessEvents } from './commands/readiness-events.js';
import { Readiness } from './commands/readiness.js';
import { ReadyLease, ReadyMark } from './commands/ready-mark.js';
import { discardEntry, giverNamesOf, settleEntry } from './commands/release.js';
import { CommandEvents } from './events.js';
import { journalDesk, type JournalDesk } from './journal/api.js';
import { DirectoryJournalStore } from './journal/directory-store.js';
import { JournalEvents } from './journal/events.js';
import { Journal } from './journal/journal.js';
import { KnownAllocations } from './journal/known-allocations.js';
import { Replay } from './journal/replay.js';
import { Turns } from './requests/attachment-queue.js';
import { nodeNetnsReader } from './requests/netns.js';
import { Notices } from './requests/once-logger.js';
import { wallTimeNs, type Stopwatch } from './requests/request.js';
import { run, type RunOptions } from './run.js';
import { CniServer } from './server.js';
import type { PluginSettings } from './settings.js';

/** The shim has read all of its input before it sends, so that only what is broken takes as long. */
const REQUEST_TIMEOUT_MS = 10_000;

/** In the state directory, beside the journal's entries. */
const GIVERS_FILE = 'address-givers';

/** Beside the socket, below /run, as it is of no use after a reboot. */
const READY_FILE = 'node-ready';

/** What the plugin takes from the process that it runs in. */
export interface Surroundings {
  readonly log: Logger;
  readonly clock: Clock;
  readonly stopwatch: Stopwatch;
  /** A number from 0 (included) to 1 (excluded). */
  readonly random: () => number;
  /** Fires on SIGTERM. */
  readonly stopped?: AbortSignal;
  /** Shown to another process that finds the journal locked. */
  readonly pid: number;
}

/**
 * Starts the resident plugin: the ways to the services, and the server for the shim. The services may come later.
 * @throws Failure INVALID_SETTINGS when another plugin has the socket or the journal, or the socket cannot be made
 */
export async function startPlugin(settings: PluginSettings, surroundings: Surroundings): Promise<Running> {
  // Take the lock before reading the journal: entries that another process still writes would be missed.
  const alone = await acquireExclusive({
    program: 'podwire-plugin',
    settings: 'PODWIRE_PLUGIN_SOCKET and PODWIRE_PLUGIN_STATE_DIRECTORY',
    addresses: [UNIX + settings.socket],
    stateDirectory: settings.stateDirectory,
    owner: String(surroundings.pid),
    clock: surroundings.clock,
    signal: surroundings.stopped,
    onWait: (message) => surroundings.log.info(message),
    // A node whose disk is full or read-only deletes its pods all the same.
    onUnlockable: (failure) =>
      surroundings.log.warn({ err: failure }, 'another plugin with this journal would go unnoticed'),
  });
  try {
    const plugin = await serve(settings, surroundings);
    return { stop: () => plugin.stop().finally(() => alone.release()) };
  } catch (error) {
    alone.release();
    throw error;
  }
}

async function serve(settings: PluginSettings, surroundings: Surroundings): Promise<Running> {
  const { log, clock, stopwatch } = surroundings;
  const ipam = new Peer('podwire-ipam', settings.ipamAddress);
  const dataplane = new Peer('podwire-dataplane', settings.dataplaneAddress);
  const ending = new AbortController();
  // Each DEL under way listens to it; Node would take more than ten for a leak, and say so.
  setMaxListeners(0, ending.signal);
  const stopping = new AbortController();
  const tools = makeTools(settings, surroundings, {
    ipam,
    dataplane,
    ending: ending.signal,
    stopping: stopping.signal,
  });
  const turns = new Turns(clock);
  const replay = makeReplay(tools, turns, surroundings);
  const { addTimeoutMs, delTimeoutMs } = settings;
  // The journal is read before the socket is there: an ADD has to know what an earlier DEL left.
  await tools.journal.load();
  await tools.givers.load();
  const { readiness, lease } = await makeReadiness(settings, tools);
  const options: RunOptions = {
    tools,
    turns,
    timeoutMs: { ADD: addTimeoutMs, CHECK: addTimeoutMs, DEL: delTimeoutMs, GC: addTimeoutMs },
    readiness,
    events: new CommandEvents(),
  };
  const descriptors = new Descriptors(log);
  const server = new CniServer({
    path: settings.socket,
    log,
    clock,
    run: (request) => run(request, options),
    journal: makeDesk(tools, turns, replay),
    nowNs: wallTimeNs(clock, stopwatch),
    requestTimeoutMs: REQUEST_TIMEOUT_MS,
    drainTimeoutMs: settings.drainTimeoutMs,
    shortage: () => descriptors.shortage(),
    onDrained() {
      ending.abort(new Failure('CANCELLED', 'podwire-plugin is being stopped'));
      // Turns of commands come after it, and calls wait for its rounds.
      void replay.stop();
    },
  });
  await server.listen();
  replay.start();
  lease.start();
  return {
    async stop() {
      stopping.abort();
      await server.stop();
      await Promise.all([lease.stop(), readiness.stop()]);
      await replay.stop();
      await tools.journal.close();
      ipam.close();
      dataplane.close();
    },
  };
}

interface Process {
  readonly ipam: Peer;
  readonly dataplane: Peer;
  readonly ending: AbortSignal;
  readonly stopping: AbortSignal;
}

function makeTools(
  settings: PluginSettings,
  { log, clock, random }: Surroundings,
  { ending, stopping, ...peers }: Process,
): Tools {
  const ipam = { peer: peers.ipam, clock, random };
  const dataplane = { peer: peers.dataplane, clock, random };
  const netns = nodeNetnsReader();
  return {
    ipam: ipamClient(ipam),
    dataplane: dataplaneClient(dataplane),
    upkeep: { ipam: ipamUpkeep(ipam), dataplane: dataplaneUpkeep(dataplane) },
    journal: new Journal({
      store: new DirectoryJournalStore(settings.stateDirectory),
      maxEntriesCount: settings.journalMaxEntriesCount,
      clock,
      events: new JournalEvents(log),
    }),
    knownAllocations: new KnownAllocations(),
    givers: new Givers({ path: join(settings.stateDirectory, GIVERS_FILE), bootId: netns.boot.id, log }),
    hanging: new HangingPlugins(clock),
    netns,
    nodeName: settings.nodeName,
    clock,
    log,
    notices: new Notices(log),
    cleanUpTimeoutMs: settings.cleanUpTimeoutMs,
    delServiceTimeoutMs: settings.delServiceTimeoutMs,
    stopping,
    ending,
  };
}

interface ReadinessParts {
  readonly readiness: Readiness;
  readonly lease: ReadyLease;
}

async function makeReadiness(settings: PluginSettings, tools: Tools): Promise<ReadinessParts> {
  const { clock, log, netns } = tools;
  const path = join(dirname(settings.socket), READY_FILE);
  const mark = new ReadyMark({ path, bootId: netns.boot.id, log });
  await mark.load();
  const rest = { mark, events: new ReadinessEvents(log), isStrict: settings.strictStatus };
  const readiness = new Readiness({ ...tools, ...rest });
  const lease = new ReadyLease({ path, isReady: () => readiness.isReadyWithoutUs, clock });
  return { readiness, lease };
}

function makeDesk(tools: Tools, turns: Turns, replay: Replay): JournalDesk {
  return journalDesk({
    journal: tools.journal,
    replay,
    giversOf: (entry) => giverNamesOf(entry, tools),
    discard: (attachment, cancel) => discardEntry(attachment, tools, { turns, cancel }),
  });
}

/** Does what the journal says, in turns with the commands. */
export function makeReplay(
  tools: Tools,
  turns: Turns,
  { log, clock, random }: Pick<Surroundings, 'log' | 'clock' | 'random'>,
): Replay {
  return new Replay({
    journal: tools.journal,
    clock,
    random,
    events: new JournalEvents(log),
    settle: async (entry, skip, signal) => {
      const limitsOf = () => ({ deadlineMs: clock.nowMs() + tools.delServiceTimeoutMs, signal });
      const unsettled = await settleEntry(entry, tools, { turns, limitsOf, skip });
      if (!unsettled) return undefined;
      const { service, failure } = unsettled;
      if (failure.retryable) return { service, reason: tracedMessage(failure) };
      throw failure;
    },
  });
}

/** A file that is always there, to see whether one can be opened. */
const ANY_FILE = '/dev/null';

/**
 * Whether a file descriptor is free for work. Without one, the event loop closes every new connection silently, so the
 * connection that takes the last one is rejected with the reason and its descriptor freed. A check takes 5 µs, 65 µs
 * after a pause.
 */
export class Descriptors {
  readonly #log: Logger;
  readonly #refused = metrics.getMeter('podwire-plugin').createCounter('podwire.plugin.calls.refused', {
    unit: '{call}',
    description: 'Calls that were refused as the process had no file descriptor left',
  });
  #isShort = false;

  constructor(log: Logger) {
    this.#log = log;
  }

  /** @returns why a call cannot be served; undefined where it can */
  shortage(): Failure | undefined {
    const fault = faultOfOpening();
    if (fault === undefined) {
      if (this.#isShort) this.#log.info('there are file descriptors again');
      this.#isShort = false;
      return undefined;
    }
    this.#refused.add(1);
    const failure = new Failure(
      'UNREACHABLE',
      `podwire-plugin has no file descriptor left (${fault}): repeat the call; where it stays so, raise its limit (LimitNOFILE of systemd, ulimit -n) and restart it`,
    );
    if (!this.#isShort) this.#log.error({ err: failure }, `calls are refused: ${failure.message}`);
    this.#isShort = true;
    return failure;
  }
}

/** The error's name, of the kinds that mean that there is no descriptor; the process's own limit, or the machine's. */
function faultOfOpening(): string | undefined {
  try {
    closeSync(openSync(ANY_FILE, 'r'));
    return undefined;
  } catch (error) {
    const code = error instanceof Error && 'code' in error ? error.code : undefined;
    return code === 'EMFILE' || code === 'ENFILE' ? code : undefined;
  }
}
