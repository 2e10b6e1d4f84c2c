import { Failure } from '@podwire/shared/failure/failure';
import { untilAborted } from '@podwire/shared/failure/signal';
import type { Clock } from '@podwire/shared/runtime/clock';
import { FileContent } from '@podwire/shared/tls/tls-files';

import { closedFailure, throwIfAborted } from '../transaction.js';
import { EtcdEndpoint, type EtcdResponse, type SendRequest } from './connection.js';
import { readCredentials, sameCredentials, type CredentialFiles, type Credentials } from './credentials.js';
import { NotExecuted, replacedCredentialsFailure, replacedFailure, timeoutFailure } from './failure.js';

export interface ClusterOptions {
  /** URLs with http or https, one or more. */
  readonly endpoints: readonly string[];
  readonly credentials: CredentialFiles;
  /** How long one request may take. */
  readonly requestTimeoutMs: number;
  /** Timeout for finding an endpoint that answers. */
  readonly dialTimeoutMs: number;
  readonly clock: Clock;
  /** A readable key for probing endpoints. */
  readonly probeKey: string;
  /** Reports events for the operator. Must not throw. */
  readonly report: (event: ClusterEvent) => void;
}

export type ClusterEvent =
  /** An endpoint that answers was found, at the start or after a loss. */
  | { readonly type: 'endpointChosen'; readonly endpoint: string }
  /** The endpoint in use fails. All endpoints are tried, including it. */
  | { readonly type: 'endpointLost'; readonly endpoint: string; readonly failure: Failure }
  /**
   * The credential files are unusable in their current state. The previous credentials stay in use. Reported once for
   * each reason.
   */
  | { readonly type: 'credentialsRefused'; readonly failure: Failure }
  /** The datastore is not the one that was read before: every request is refused from now on. Reported once. */
  | { readonly type: 'replaced'; readonly failure: Failure };

/** The endpoint in use. `lost` fires when it is abandoned: its watches continue on another endpoint. */
export interface ActiveEndpoint {
  readonly endpoint: EtcdEndpoint;
  readonly lost: AbortSignal;
}

const PROBE_PAUSE_MS = 50;

/** Maximum attempts of a read request. */
const MAX_READ_ATTEMPTS = 3;

/**
 * The connection to the cluster: one endpoint at a time, kept until it fails. It is chosen by a read that needs a
 * leader, so that a server that is cut off from the cluster is not chosen. All endpoints are tried in parallel and the
 * first answer wins. Credential files are reread each time; while they are being replaced, the previous ones may still
 * be valid.
 */
export class EtcdCluster {
  readonly #options: ClusterOptions;
  readonly #endpoints: readonly EtcdEndpoint[];
  readonly #stop = new AbortController();
  readonly #credentials: FileContent<Credentials>;
  #connecting: Promise<ActiveEndpoint> | undefined;
  #current: { readonly active: ActiveEndpoint; readonly abort: () => void } | undefined;
  #clusterId: string | undefined;
  #newestRevision = 0;
  #replacedFailure: Failure | undefined;

  /** @throws Failure INVALID_SETTINGS when a file with credentials cannot be read or used */
  constructor(options: ClusterOptions) {
    this.#options = options;
    const { clock, report } = options;
    this.#credentials = new FileContent({
      read: () => readCredentials(options.credentials),
      isSame: sameCredentials,
      report: (failure) => report({ type: 'credentialsRefused', failure }),
    });
    const { content: credentials } = this.#credentials;
    this.#endpoints = options.endpoints.map((url) => new EtcdEndpoint(url, { credentials, clock }));
  }

  /**
   * The endpoint in use; selects one if there is none.
   * @throws Failure when none answers within the dial time-out, or the signal's
   */
  async connect(signal: AbortSignal): Promise<ActiveEndpoint> {
    throwIfAborted(signal);
    this.#check();
    if (this.#current) return this.#current.active;
    // Shared by all waiters, so no single signal ends it.
    this.#connecting ??= this.#selectEndpoint().finally(() => (this.#connecting = undefined));
    return await untilAborted(this.#connecting, signal);
  }

  /**
   * Sends a read request; retries on another endpoint when the first fails.
   * @throws Failure, RevisionGone
   */
  async read<Response extends EtcdResponse>(send: SendRequest<Response>, signal: AbortSignal): Promise<Response> {
    for (let attempt = 1; ; attempt++) {
      const active = await this.connect(signal);
      try {
        return await this.send(active, send, signal);
      } catch (error) {
        const isTransient =
          error instanceof Failure && error.code === 'STORE_UNAVAILABLE' && !this.#stop.signal.aborted;
        if (!isTransient || attempt >= MAX_READ_ATTEMPTS) throw error;
      }
    }
  }

  /**
   * Sends a request once.
   * @throws Failure: {@link NotExecuted} when it is certain that it has not been executed and will not be; RevisionGone
   */
  async send<Response extends EtcdResponse>(
    active: ActiveEndpoint,
    send: SendRequest<Response>,
    signal: AbortSignal,
  ): Promise<Response> {
    const { endpoint } = active;
    const newestBefore = this.#newestRevision;
    try {
      const answer = await endpoint.call(send, { signal, timeoutMs: this.#options.requestTimeoutMs });
      this.#checkIdentity(endpoint, answer, newestBefore);
      return answer;
    } catch (error) {
      const failure = this.#wereCredentialsReplaced(error) ? replacedCredentialsFailure(endpoint.url, error) : error;
      if (failure instanceof Failure && failure.code === 'STORE_UNAVAILABLE') this.markLost(active, failure);
      throw failure;
    }
  }

  /** Abandons the endpoint, if it is still in use. */
  markLost(active: ActiveEndpoint, failure: Failure): void {
    if (this.#current?.active !== active) return;
    const { abort } = this.#current;
    this.#current = undefined;
    this.#options.report({ type: 'endpointLost', endpoint: active.endpoint.url, failure });
    abort();
  }

  /** Records a revision of the datastore; an older one later shows that the datastore was replaced. */
  observeRevision(revision: number): void {
    this.#newestRevision = Math.max(this.#newestRevision, revision);
  }

  /**
   * The datastore is not the one that was read before: every request is refused from now on.
   * @param reason - the evidence
   * @returns the failure of all requests, with the first reason
   */
  refuseAll({ url }: EtcdEndpoint, reason: string): Failure {
    if (this.#replacedFailure) return this.#replacedFailure;
    this.#replacedFailure = replacedFailure(url, reason);
    this.#options.report({ type: 'replaced', failure: this.#replacedFailure });
    // Ends its watches, which might wait for a change that only the former datastore had.
    this.#current?.abort();
    this.#current = undefined;
    return this.#replacedFailure;
  }

  /** Idempotent. */
  close(): void {
    if (this.#stop.signal.aborted) return;
    this.#stop.abort(closedFailure());
    this.#current?.abort();
    for (const endpoint of this.#endpoints) endpoint.close();
  }

  #check(): void {
    if (this.#stop.signal.aborted) throw closedFailure();
    if (this.#replacedFailure) throw this.#replacedFailure;
  }

  async #selectEndpoint(): Promise<ActiveEndpoint> {
    this.#renewCredentials();
    const found = new AbortController();
    const signal = AbortSignal.any([found.signal, this.#stop.signal]);
    try {
      const endpoint = await Promise.any(this.#endpoints.map((candidate) => this.#probe(candidate, signal)));
      this.#check();
      const lost = new AbortController();
      const active = { endpoint, lost: lost.signal };
      this.#current = { active, abort: () => lost.abort() };
      this.#options.report({ type: 'endpointChosen', endpoint: endpoint.url });
      return active;
    } catch (error) {
      throw error instanceof AggregateError ? noEndpointFailure(error.errors) : error;
    } finally {
      found.abort();
    }
  }

  /** Whether a refused request used credentials that the files no longer have, such as an old password. */
  #wereCredentialsReplaced(error: unknown): boolean {
    if (!(error instanceof Failure && error.code === 'STORE_DENIED')) return false;
    try {
      return !sameCredentials(readCredentials(this.#options.credentials), this.#credentials.content);
    } catch {
      // The files are being replaced.
      return false;
    }
  }

  #renewCredentials(): void {
    if (!this.#credentials.readAgain()) return;
    for (const endpoint of this.#endpoints) endpoint.renew(this.#credentials.content);
  }

  /** Probes until the endpoint answers: a restarting server is back within a second. */
  async #probe(endpoint: EtcdEndpoint, signal: AbortSignal): Promise<EtcdEndpoint> {
    const { clock, dialTimeoutMs, probeKey } = this.#options;
    const key = Buffer.from(probeKey);
    const timeout = new AbortController();
    const answered = new AbortController();
    void clock.sleep(dialTimeoutMs, answered.signal).then((end) => {
      if (end === 'elapsed') timeout.abort(timeoutFailure(endpoint.url, dialTimeoutMs));
    });
    const bounds = { signal: AbortSignal.any([signal, timeout.signal]), timeoutMs: dialTimeoutMs };
    let failed: unknown;
    try {
      for (;;) {
        const newestBefore = this.#newestRevision;
        try {
          const answer = await endpoint.call(({ kv }, options) => kv.range({ key, count_only: true }, options), bounds);
          this.#checkIdentity(endpoint, answer, newestBefore);
          return endpoint;
        } catch (error) {
          // The last answer is more informative than the timeout.
          if (bounds.signal.aborted) throw failed ?? error;
          if (!(error instanceof Failure && error.retryable)) throw error;
          failed = error;
          await clock.sleep(PROBE_PAUSE_MS, bounds.signal);
        }
      }
    } finally {
      answered.abort(null);
    }
  }

  /**
   * Detects a replaced datastore, for which the known records and revisions are invalid.
   * @param newestBefore - the newest revision that was known when the request was sent
   */
  #checkIdentity(endpoint: EtcdEndpoint, { header }: EtcdResponse, newestBefore: number): void {
    this.#clusterId ??= header.cluster_id;
    const revision = Number(header.revision);
    const reason =
      header.cluster_id !== this.#clusterId
        ? `cluster ${header.cluster_id} instead of ${this.#clusterId}`
        : revision < newestBefore
          ? `revision ${revision} after ${newestBefore}`
          : undefined;
    if (reason !== undefined) throw this.refuseAll(endpoint, reason);
    this.observeRevision(revision);
  }
}

/** The failure when no endpoint answers; a refusal is more informative than a timeout. */
function noEndpointFailure(errors: readonly unknown[]): Error {
  const failures = errors.filter((error) => error instanceof Failure);
  const refused = failures.find((failure) => failure instanceof NotExecuted);
  const [first] = failures;
  if (refused) return refused;
  if (first && failures.length === 1) return first;
  const messages = failures.map(({ message }) => message).join('; ');
  return new Failure('STORE_UNAVAILABLE', `none of ${errors.length} endpoints answers: ${messages}`);
}
