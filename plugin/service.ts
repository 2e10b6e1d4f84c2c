import { setMaxListeners } from 'node:events';
import { closeSync, openSync } from 'node:fs';
import { dirname, join } from 'node:path';

import { Failure } from '@podwire/shared/failure/failure';
import type { Clock } from '@podwire/shared/runtime/clock';
import { wallClockNs } from '@podwire/shared/runtime/wall-clock';
import type { Running } from '@podwire/shared/runtime/lifecycle';
import type { Logger } from '@podwire/shared/runtime/log';
import { counter } from '@podwire/shared/telemetry/instruments';

import { isGatewayHolder } from './addresses/ipam-addresses.js';
import { ProviderHistory } from './addresses/provider-history.js';
import type { PluginAttachments } from './clients/clients.js';
import { ReadyLease, ReadinessRecord } from './commands/readiness-record.js';
import { composePlugin, type PluginDeps, type PluginParts, type PluginState } from './composition.js';
import { createJournalApi } from './journal/api.js';
import { DirectoryJournalStore } from './journal/directory-store.js';
import { nodeNetnsReader } from './requests/netns.js';
import { CniServer } from './server.js';
import type { PluginSettings } from './settings.js';
import { SpoolDirectory, spoolName } from './spool/spool-directory.js';

/** Generous: the shim reads all of its input before it sends. */
const REQUEST_TIMEOUT_MS = 10_000;

/** In the state directory, beside the journal's entries. The name is part of the stored form. */
const PROVIDER_HISTORY_FILE = 'address-givers';

/** Beside the socket, below /run, as it is valid for one boot only. */
const READY_FILE = 'node-ready';

/** Beside the socket, for the same reason (kSpoolFolder, shim/src/protocol.h). */
const SPOOL_DIRECTORY = 'spool';

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
      await journal.close();
    },
  };
}

/** What the node's address book needs to know of attachments without a record. */
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
