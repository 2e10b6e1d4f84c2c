import type { Counter } from '@opentelemetry/api';
import type { FailureCode } from '@podwire/shared/failure/codes';
import { Failure } from '@podwire/shared/failure/failure';
import { messageOf } from '@podwire/shared/failure/thrown';
import type { Logger } from '@podwire/shared/runtime/log';
import { counter } from '@podwire/shared/telemetry/instruments';

import type { Events } from '../engine/events.js';
import type { PodAttachment } from './dead-pods.js';

/** Maximum number of nodes in one log line. */
const LOGGED_NODES = 16;

const MS_PER_SECOND = 1000;

/** Reports what the node controller does. */
export class ControllerEvents {
  readonly #log: Logger;
  readonly #releases: Counter;
  /** Sources of refusals, and the codes of their failures. */
  readonly #failing = new Map<string, FailureCode | 'INTERNAL'>();
  /** Missing nodes that are not deleted because they run. */
  readonly #running = new Set<string>();
  #refusedText = '';

  constructor(events: Events) {
    this.#log = events.log;
    this.#releases = counter('podwire.ipam.kubernetes.releases');
  }

  /** A Node is missing for the first time. */
  nodeMissing(name: string, graceMs: number): void {
    const seconds = Math.round(graceMs / MS_PER_SECOND);
    this.#log.info(
      { 'podwire.node': name },
      `node ${name} is missing in Kubernetes; it is deleted in ${seconds} s unless it returns`,
    );
  }

  /** A missing Node is there again. */
  nodeReturned(name: string): void {
    this.#running.delete(name);
    this.#log.info({ 'podwire.node': name }, `node ${name} is in Kubernetes again, and keeps its addresses`);
  }

  /** A missing Node allocates addresses: it still runs. */
  nodeAllocates(name: string): void {
    this.#log.info(
      { 'podwire.node': name },
      `node ${name} is missing in Kubernetes but allocates addresses; its grace period begins again`,
    );
  }

  /** A missing Node is not deleted yet. Logged once. */
  nodeRuns(name: string): void {
    if (this.#running.has(name)) return;
    this.#running.add(name);
    const text = `node ${name} is missing in Kubernetes, but podwire-node runs there; it is deleted once that has ended`;
    this.#log.info({ 'podwire.node': name }, text);
  }

  /** A node was deleted, as it has been missing for the grace period. The deletion itself logs what it released. */
  nodeReleased(name: string): void {
    this.#running.delete(name);
    this.#releases.add(1, { object: 'node', result: 'released' });
  }

  /** Overdue nodes are not deleted. Logged when nodes or reason change. @param names - empty for none */
  nodesRefused(names: readonly string[], reason: string): void {
    if (names.length > 0) this.#releases.add(names.length, { object: 'node', result: 'refused' });
    const listed = names.slice(0, LOGGED_NODES).join(', ');
    const more = names.length > LOGGED_NODES ? ` and ${names.length - LOGGED_NODES} more` : '';
    const text = names.length === 0 ? '' : `${reason}: not deleting ${listed}${more}`;
    if (text !== '' && text !== this.#refusedText)
      this.#log.warn(`${text}; check the API server, and run "podwirectl delete node NODE" for nodes that are gone`);
    this.#refusedText = text;
  }

  /** A node could not be deleted; the next round retries it. */
  nodeDeletionFailed(name: string, error: unknown): void {
    this.#releases.add(1, { object: 'node', result: 'failed' });
    this.#log.warn({ err: error, 'podwire.node': name }, `failed to delete node ${name}; trying again later`);
  }

  /** Addresses of a deleted pod were released. */
  podReleased(attachment: PodAttachment, addresses: readonly string[]): void {
    const { namespace, podName, nodeName } = attachment;
    this.#releases.add(1, { object: 'pod', result: 'released' });
    this.#log.info(
      { 'podwire.node': nodeName, 'podwire.addresses': addresses },
      `pod ${namespace}/${podName} was deleted from Kubernetes: released ${addresses.join(', ')} on node ${nodeName}`,
    );
  }

  /** The addresses of a deleted pod could not be released; the next sweep retries it. */
  podReleaseFailed({ namespace, podName, nodeName }: PodAttachment, error: unknown): void {
    this.#releases.add(1, { object: 'pod', result: 'failed' });
    this.#log.warn(
      { err: error, 'podwire.node': nodeName },
      `failed to release the addresses of the deleted pod ${namespace}/${podName}; trying again later`,
    );
  }

  /** The list of pods lacks Podwire's own: it proves nothing. */
  podListRefused(): void {
    this.#releases.add(1, { object: 'pod', result: 'refused' });
    this.#log.warn('the API server’s list of pods lacks podwire-node’s pods: releasing no address of a deleted pod');
  }

  /** A Node was changed in the API server. */
  nodePatched(name: string, effect: string): void {
    this.#log.info({ 'podwire.node': name }, `node ${name}: ${effect}`);
  }

  /**
   * Runs a call of the API server. A failure is logged once, until nothing fails any more.
   * @param purpose - of the call, for the log: `watch Nodes`
   * @returns undefined when it failed
   */
  async attempt<Result>(
    purpose: string,
    signal: AbortSignal,
    call: () => Promise<Result>,
  ): Promise<Result | undefined> {
    try {
      const result = await call();
      this.apiAnswered(purpose);
      return result;
    } catch (error) {
      if (!signal.aborted) this.apiFailed(purpose, error);
      return undefined;
    }
  }

  /** A call of the API server failed; it is retried. */
  apiFailed(purpose: string, error: unknown): void {
    const code = error instanceof Failure ? error.code : 'INTERNAL';
    const isKnown = this.#failing.has(purpose) || [...this.#failing.values()].includes(code);
    this.#failing.set(purpose, code);
    if (!isKnown)
      this.#log.warn(
        { err: error },
        `the node controller cannot ${purpose}: ${messageOf(error)}; trying again; allocations are not affected`,
      );
  }

  /** A call of the API server succeeded. */
  apiAnswered(purpose: string): void {
    if (this.#failing.delete(purpose) && this.#failing.size === 0)
      this.#log.info('the API server answers the node controller again');
  }
}
