import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';
import { messageOf } from '@podwire/shared/failure/thrown';
import type { BackoffBounds } from '@podwire/shared/reconcile/schedule';
import { exponentialBackoff, WorkQueue } from '@podwire/shared/reconcile/work-queue';
import type { Clock } from '@podwire/shared/runtime/clock';
import type { Logger } from '@podwire/shared/runtime/log';
import { NS_PER_MS } from '@podwire/shared/runtime/wall-clock';
import { observeMetrics } from '@podwire/shared/telemetry/instruments';

import { ProcessStopping } from '../requests/attachment-queue.js';
import type { CniRequest } from '../requests/request.js';
import { spoolName, type SpoolDirectory, type SpooledFile } from './spool-directory.js';
import { parseSpooledDel, type SpooledDel } from './spooled-del.js';

/** How often the directory is listed: during a hand-over, shims find no listener and spool. */
const SCAN_INTERVAL_MS = 5_000;

/** DELs in flight. A DEL on services that are down takes seconds. */
const CONCURRENCY = 8;

const BACKOFF: BackoffBounds = { baseMs: 500, maxMs: 30_000 };

export interface SpoolOptions {
  readonly directory: SpoolDirectory;
  /** Runs a command; does not throw. */
  readonly run: (request: CniRequest) => Promise<{ readonly exitCode: 0 | 1; readonly isForNextProcess?: boolean }>;
  readonly clock: Clock;
  /** A number from 0 (included) to 1 (excluded). */
  readonly random: () => number;
  readonly log: Logger;
}

/**
 * Replays the DELs that the shim wrote to disk while no process listened at the socket, and for which the runtime got a success.
 *
 * - A file is removed after its DEL succeeded. A crash before that repeats the DEL, which is idempotent.
 * - An ADD of an attachment runs only when the spool has no DEL of it: otherwise that DEL would delete the new interface. Each ADD
 *   checks the one file of its attachment, which takes a few microseconds. So ADDs of other attachments need not wait, and no
 *   scan has to be recent: a file exists before the runtime learns that its DEL succeeded.
 */
export class Spool {
  readonly #options: SpoolOptions;
  readonly #scans: WorkQueue<'scan'>;
  /** Replays by file name. */
  readonly #replays: WorkQueue<string>;
  readonly #inFlight = new Map<string, Promise<void>>();
  /** Names of the last scan whose DEL has not succeeded. */
  #pending = new Set<string>();
  /** Error of the last scan, so that it is logged once. */
  #scanFault: string | undefined;
  #stopObserving = (): void => undefined;

  constructor(options: SpoolOptions) {
    const { clock, random, log } = options;
    this.#options = options;
    this.#scans = new WorkQueue({
      reconcile: () => this.#scan(),
      retryInMs: () => SCAN_INTERVAL_MS,
      onFailure: (error) => this.#scanFailed(error),
      clock,
    });
    this.#replays = new WorkQueue({
      reconcile: async (name) => {
        await this.#replay(name);
        return undefined;
      },
      retryInMs: exponentialBackoff(BACKOFF, random),
      onFailure: (error, retryInMs, name) =>
        log.warn({ err: error, file: name, retry_ms: Math.round(retryInMs) }, `spool: ${messageOf(error)}`),
      clock,
      concurrency: CONCURRENCY,
    });
  }

  start(): void {
    this.#stopObserving = observeMetrics(['podwire.plugin.spool.depth'], (observe) =>
      observe('podwire.plugin.spool.depth', this.#pending.size),
    );
    this.#scans.request('scan');
  }

  /** Waits for the DELs in flight. Files that are left are the next process's. */
  async stop(): Promise<void> {
    await Promise.all([this.#scans.stop(), this.#replays.stop()]);
    this.#stopObserving();
  }

  /**
   * Executes the spooled DEL of an attachment.
   * @returns undefined if there is none; rejects with Failure STATE_IO if it is not done, or with ProcessStopping
   */
  replayOf(attachment: Attachment): Promise<void> | undefined {
    const name = spoolName(attachment);
    return this.#options.directory.has(name) ? this.#replayBeforeAdd(name) : undefined;
  }

  async #replayBeforeAdd(name: string): Promise<void> {
    try {
      await this.#replay(name);
    } catch (cause) {
      if (cause instanceof ProcessStopping) throw cause;
      throw new Failure('STATE_IO', `ADD has to wait for an earlier DEL: ${messageOf(cause)}; repeat the call`, {
        cause,
      });
    }
    if (this.#options.directory.has(name)) {
      throw new Failure('STATE_IO', 'ADD has to wait for another DEL of the attachment in the spool; repeat the call');
    }
  }

  async #scan(): Promise<{ readonly inMs: number }> {
    const names = await this.#options.directory.list();
    this.#scanFault = undefined;
    this.#pending = new Set(names);
    for (const name of names) this.#replays.request(name);
    return { inMs: SCAN_INTERVAL_MS };
  }

  #scanFailed(error: unknown): void {
    const fault = messageOf(error);
    if (fault !== this.#scanFault) this.#options.log.error({ err: error }, `spool: cannot be listed: ${fault}`);
    this.#scanFault = fault;
  }

  /** Replays a file once, also for several callers. @throws Error why its DEL is not done */
  #replay(name: string): Promise<void> {
    const inFlight = this.#inFlight.get(name) ?? this.#replayFile(name).finally(() => this.#inFlight.delete(name));
    this.#inFlight.set(name, inFlight);
    return inFlight;
  }

  async #replayFile(name: string): Promise<void> {
    const { directory, run, log, clock } = this.#options;
    const spooled = await this.#read(name);
    if (spooled) {
      const { file, request, attachment } = spooled;
      const { exitCode, isForNextProcess } = await run(request);
      if (isForNextProcess) throw new ProcessStopping();
      const title = `the spooled DEL of ${formatAttachment(attachment)}`;
      // The command's own log line has the error.
      if (exitCode !== 0) throw new Failure('STATE_IO', `${title} failed`);
      await directory.remove(file);
      const waitedMs = clock.nowMs() - Number(file.writtenNs / NS_PER_MS);
      log.info({ attachment: formatAttachment(attachment), waited_ms: waitedMs }, `spool: ${title} is done`);
    }
    this.#pending.delete(name);
  }

  /** @returns undefined if the file is gone or cannot be replayed */
  async #read(name: string): Promise<(SpooledDel & { readonly file: SpooledFile }) | undefined> {
    const { directory, log } = this.#options;
    try {
      const file = await directory.read(name);
      return file && { file, ...parseSpooledDel(file) };
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      const path = await directory.setAside(name);
      log.error(
        { err: error, path },
        `spool: ${path} cannot be replayed and is kept; run GC (podwirectl gc) to release what its pod holds: ${error.message}`,
      );
      return undefined;
    }
  }
}
