import { trace, type Counter } from '@opentelemetry/api';
import type { Failure } from '@podwire/shared/failure/failure';
import { formatAddress } from '@podwire/shared/net/address';
import { formatPrefix, type Prefix } from '@podwire/shared/net/prefix';
import type { Logger } from '@podwire/shared/runtime/log';
import { counter, histogram, type CounterName } from '@podwire/shared/telemetry/instruments';
import type { UpkeepTaskName } from '@podwire/shared/telemetry/catalog/metrics-ipam';

import type { StoreCall, TransactionEnd } from './timed-store.js';

/** Duration from which on a datastore call is logged as slow, in milliseconds. */
const SLOW_CALL_MS = 1000;

const MS_PER_SECOND = 1000;

/**
 * Reports durable events of the engine and of several features: a counter, a log line, attributes of the active
 * span. Each feature reports the rest in its `-operations.ts`, with the log and the counters of this class.
 *
 * Counters have few attributes with few values; names of pods, nodes and addresses belong in logs and spans.
 */
export class Events {
  readonly log: Logger;
  readonly #endpointsLost = counter('podwire.store.endpoints.lost');
  readonly #storeDuration = histogram('podwire.store.duration');
  readonly #transactionSize = histogram('podwire.store.transaction.operations');
  readonly #conflicts = counter('podwire.store.conflicts');
  /** Also counts deletions of pools and nodes that fail in the background. */
  readonly upkeepFailures = counter('podwire.ipam.upkeep.failures');
  readonly #clocks = counter('podwire.ipam.clocks.differ');

  readonly #isDryRun: boolean;

  /** @param isDryRun - whether nothing happens, so that nothing is logged or counted */
  constructor(log: Logger, isDryRun = false) {
    this.log = isDryRun ? log.child({}, { level: 'silent' }) : log;
    this.#isDryRun = isDryRun;
  }

  /** A counter of a feature. */
  counter(name: CounterName): Counter {
    return this.#isDryRun ? { add: () => undefined } : counter(name);
  }

  /** Addresses were released; the list may be empty. */
  addressesReleased(addresses: readonly Prefix[]): void {
    const texts = addresses.map(formatAddress);
    trace.getActiveSpan()?.setAttribute('podwire.addresses', texts);
    if (texts.length > 0) this.log.info({ 'podwire.addresses': texts }, `released ${texts.join(', ')}`);
    else this.log.debug('nothing to release');
  }

  /** A node claimed blocks. */
  blocksClaimed(blocks: readonly Prefix[], nodeName: string): void {
    for (const block of blocks) {
      const cidr = formatPrefix(block);
      this.log.info({ 'podwire.block': cidr, 'podwire.node': nodeName }, `node ${nodeName} claimed block ${cidr}`);
    }
  }

  /** Another replica's clock differs. @param aheadMs - how far it is ahead; negative when behind */
  clocksDiffer(aheadMs: number): void {
    this.#clocks.add(1);
    const seconds = Math.round(Math.abs(aheadMs) / MS_PER_SECOND);
    this.log.warn(
      `another replica’s clock is ${seconds} s ${aheadMs > 0 ? 'ahead of' : 'behind'} this one’s, or was when it released an address: cool-downs end early and the history has wrong times; synchronize the clocks of all machines that run podwire-ipam`,
    );
  }

  /** A background task failed; it is retried. */
  upkeepFailed(task: UpkeepTaskName, error: unknown): void {
    this.upkeepFailures.add(1, { task });
    this.log.warn({ err: error, 'podwire.task': task }, `${task}: failed; trying again later`);
  }

  /** A record of the datastore cannot be read: it is set aside, and all remaining records are served. */
  recordUnreadable(key: string, failure: Failure): void {
    this.log.error({ err: failure, 'podwire.store.key': key }, failure.message);
  }

  /** Past allocations are not kept. */
  historyUnavailable(failure: Failure): void {
    this.log.error({ err: failure }, failure.message);
  }

  /** An endpoint of the datastore was selected. */
  storeEndpointChosen(endpoint: string): void {
    this.log.info({ 'server.address': endpoint }, `using the datastore at ${endpoint}`);
  }

  /** The endpoint in use failed; another is selected. */
  storeEndpointLost(endpoint: string, failure: Failure): void {
    this.#endpointsLost.add(1);
    this.log.warn({ err: failure, 'server.address': endpoint }, failure.message);
  }

  /** A datastore call of a request ended, with success or failure. */
  storeCallEnded({ operation, durationMs }: StoreCall): void {
    this.#storeDuration.record(durationMs / MS_PER_SECOND, { operation });
    if (durationMs < SLOW_CALL_MS) return;
    const facts = { 'podwire.store.operation': operation, elapsed_ms: Math.round(durationMs) };
    this.log.warn(facts, `requests waited ${Math.round(durationMs)} ms for the datastore (${operation})`);
  }

  /** The datastore answered a transaction. */
  transactionEnded({ operationsCount, isCommitted }: TransactionEnd): void {
    this.#transactionSize.record(operationsCount);
    if (!isCommitted) this.#conflicts.add(1);
  }

  /** This process is the one of several that serves. */
  leading(): void {
    this.log.info('this podwire-ipam leads');
  }

  /** Another process serves, and this one waits for its end. */
  waitingFor(leader: string): void {
    this.log.info({ 'podwire.leader': leader }, `waiting: podwire-ipam ${leader} leads`);
  }

  /** Another process leads, or the datastore has moved. */
  processMustRestart(failure: Failure): void {
    this.log.error({ err: failure }, `ending this process: ${failure.message}`);
  }

  /** The datastore credential files are unusable; the previous credentials stay in use. */
  storeCredentialsRefused(failure: Failure): void {
    this.log.warn({ err: failure }, `using the previous credentials for the datastore: ${failure.message}`);
  }

  /** The datastore is not the one that was read before: nothing is served from it until a restart. */
  datastoreReplaced(failure: Failure): void {
    this.log.error({ err: failure }, `refusing every request until a restart: ${failure.message}`);
  }

  /** The datastore was restored from a backup: a new epoch began. */
  datastoreRestored(): void {
    this.log.warn(
      'the datastore was imported since the last start: new addresses wait for the inventories of the nodes that ran',
    );
  }

  /** The datastore does not answer during the start; the request is retried. */
  datastoreUnavailable(failure: Failure): void {
    this.log.warn({ err: failure }, `waiting for the datastore: ${failure.message}`);
  }

  /** An object that podwire-ipam does not need itself cannot be written; it is retried. */
  objectNotWritten(failure: Failure): void {
    this.log.warn({ err: failure }, `cannot write to the API server: ${failure.message}; trying again`);
  }

  /** The watch failed; until its retry, changes of other replicas are not seen. */
  watchFailed(error: unknown, retryInMs: number): void {
    this.log.warn({ err: error }, `the datastore watch failed; retrying in ${Math.round(retryInMs)} ms`);
  }

  /** The datastore was listed again because its watch had fallen behind. */
  listedAgain(revision: number): void {
    this.log.warn(
      { 'podwire.store.revision': revision },
      'the datastore watch fell behind; all records were read again',
    );
  }
}
