import { Failure } from '@podwire/shared/failure/failure';
import { failureOfSignal, isAborted } from '@podwire/shared/failure/signal';
import type { Clock } from '@podwire/shared/runtime/clock';
import { z } from 'zod';

import type { ApiRequest, KubernetesApi } from '../api-server/api.js';

export interface LeadershipOptions {
  readonly api: KubernetesApi;
  /** Name of this process among all processes that want to lead. */
  readonly identity: string;
  readonly clock: Clock;
  /** Receives each failure of a request, which is retried. Must not throw. */
  readonly report: (failure: unknown) => void;
  /** Receives the identity of each leader that this process waits for, and its own once it leads. Must not throw. */
  readonly leaderObserved: (identity: string) => void;
}

const NAME = 'podwire-ipam';

/** A leader that has not renewed its lease for this long has lost it, in seconds. As in Kubernetes' own components. */
const LEASE_SECONDS = 15;

/** A leader that could not renew for this long stops leading, before another one begins, in milliseconds. */
const RENEW_DEADLINE_MS = 10_000;

const NOT_RENEWED = `the Lease ${NAME} was not renewed for ${RENEW_DEADLINE_MS / 1000} s, and another podwire-ipam may lead`;

const RETRY_MS = 2_000;

/** A leader that ends gives up the lease; a waiting process looks more often than they renew. */
const WAIT_MS = 1_000;

const leaseSchema = z.object({
  metadata: z.object({ resourceVersion: z.string() }),
  spec: z.object({ holderIdentity: z.string().default(''), leaseTransitions: z.number().default(0) }).default({
    holderIdentity: '',
    leaseTransitions: 0,
  }),
});

type LeaseState = z.infer<typeof leaseSchema>;

/**
 * Leadership among several processes, by a Lease of the API server (coordination.k8s.io/v1). At most one leads, as far as the
 * clocks of all run equally fast: times that another process wrote are not compared with this one's clock.
 */
export class Leadership {
  readonly #options: LeadershipOptions;
  readonly #path: string;
  readonly #lost = new AbortController();
  readonly #stop = new AbortController();
  #renewing: Promise<void> | undefined;
  #version = '';
  #transitions = 0;
  /** When the last successful write of the lease was sent. */
  #renewedMs = -Infinity;

  constructor(options: LeadershipOptions) {
    this.#options = options;
    this.#path = `/apis/coordination.k8s.io/v1/namespaces/${options.api.namespace}/leases`;
  }

  /** Waits until this process leads. Can be repeated. @throws Failure of the signal, or ACCESS_DENIED */
  async acquire(signal: AbortSignal): Promise<void> {
    if (this.#renewing) return;
    await this.#wait(signal);
    this.#renewing = this.#renewUntilStopped();
  }

  /** Fires when this process no longer leads; its reason is the failure. */
  get lost(): AbortSignal {
    return this.#lost.signal;
  }

  /** Whether this process leads, as far as it knows. */
  get isHeld(): boolean {
    const isRecent = this.#options.clock.monotonicMs() - this.#renewedMs < RENEW_DEADLINE_MS;
    return isRecent && !this.#lost.signal.aborted && !this.#stop.signal.aborted;
  }

  /**
   * To be called before each write of the leader. A process that was paused finds here that another one may lead, before its own
   * renewal does.
   * @throws Failure STORE_UNAVAILABLE 10 s after the last renewal
   */
  requireHeld(): void {
    if (!this.isHeld) throw lostFailure(NOT_RENEWED);
  }

  /** Gives the lease up, so that another process leads at once. Idempotent. */
  async release(): Promise<void> {
    if (this.#stop.signal.aborted || !this.#renewing) return;
    this.#stop.abort();
    await this.#renewing;
    if (this.#lost.signal.aborted) return;
    try {
      await this.#put('');
    } catch (failure) {
      this.#options.report(failure);
    }
  }

  async #wait(signal: AbortSignal): Promise<void> {
    const { clock, report, leaderObserved } = this.#options;
    let seen: { readonly version: string; readonly sinceMs: number } | undefined;
    let leader = '';
    while (!signal.aborted) {
      try {
        const lease = await this.#read(signal);
        const nowMs = clock.monotonicMs();
        if (!seen || seen.version !== lease?.metadata.resourceVersion)
          seen = { version: lease?.metadata.resourceVersion ?? '', sinceMs: nowMs };
        const isFree = !lease || lease.spec.holderIdentity === '' || nowMs - seen.sinceMs >= LEASE_SECONDS * 1000;
        if (isFree && (await this.#take(lease, signal))) {
          leaderObserved(this.#options.identity);
          return;
        }
        const holder = isFree ? '' : lease.spec.holderIdentity;
        if (holder !== '' && holder !== leader) leaderObserved(holder);
        leader = holder;
      } catch (failure) {
        if (!(failure instanceof Failure) || failure.code === 'ACCESS_DENIED') throw failure;
        report(failure);
      }
      await clock.sleep(WAIT_MS, signal);
    }
    throw failureOfSignal(signal);
  }

  /** @returns false if another process was faster */
  async #take(lease: LeaseState | undefined, signal: AbortSignal): Promise<boolean> {
    this.#transitions = (lease?.spec.leaseTransitions ?? 0) + 1;
    if (lease) {
      this.#version = lease.metadata.resourceVersion;
      return this.#put(this.#options.identity, signal);
    }
    const { identity } = this.#options;
    const body = { ...this.#lease(identity), metadata: { name: NAME } };
    return this.#write({ method: 'POST', path: this.#path, body, signal });
  }

  async #renewUntilStopped(): Promise<void> {
    const { clock, identity, report } = this.#options;
    const { signal } = this.#stop;
    let reason = 'another podwire-ipam leads';
    for (;;) {
      await clock.sleep(RETRY_MS, signal);
      if (signal.aborted) return;
      try {
        const request = AbortSignal.any([signal, AbortSignal.timeout(RENEW_DEADLINE_MS / 2)]);
        if (!(await this.#put(identity, request)) && !(await this.#isOwn(request))) break;
      } catch (failure) {
        if (isAborted(signal)) return;
        report(failure);
        if (clock.monotonicMs() - this.#renewedMs < RENEW_DEADLINE_MS) continue;
        reason = NOT_RENEWED;
        break;
      }
    }
    this.#lost.abort(lostFailure(reason));
  }

  /**
   * Whether the lease that refused a renewal is still this process's: an earlier renewal may have been executed although its answer
   * was lost. The next renewal then has the version that was found.
   */
  async #isOwn(signal: AbortSignal): Promise<boolean> {
    const lease = await this.#read(signal);
    if (lease?.spec.holderIdentity !== this.#options.identity) return false;
    this.#version = lease.metadata.resourceVersion;
    return true;
  }

  async #read(signal: AbortSignal): Promise<LeaseState | undefined> {
    const { status, body } = await this.#options.api.send({ method: 'GET', path: `${this.#path}/${NAME}`, signal });
    return status === 404 ? undefined : leaseSchema.parse(body);
  }

  /** @returns false if another process has changed the lease */
  async #put(holder: string, signal?: AbortSignal): Promise<boolean> {
    const metadata = { name: NAME, resourceVersion: this.#version };
    const path = `${this.#path}/${NAME}`;
    const request = { method: 'PUT', path, body: { ...this.#lease(holder), metadata } } as const;
    return this.#write({ ...request, ...(signal && { signal }) });
  }

  async #write(request: ApiRequest): Promise<boolean> {
    const { api, clock } = this.#options;
    const sentMs = clock.monotonicMs();
    const { status, body } = await api.send(request);
    if (status >= 300) return false;
    this.#version = leaseSchema.parse(body).metadata.resourceVersion;
    this.#renewedMs = sentMs;
    return true;
  }

  /** Times are for people: no process compares them with its clock. */
  #lease(holderIdentity: string) {
    const renewTime = new Date(this.#options.clock.nowMs()).toISOString().replace('Z', '000Z');
    return {
      apiVersion: 'coordination.k8s.io/v1',
      kind: 'Lease',
      spec: { holderIdentity, leaseDurationSeconds: LEASE_SECONDS, renewTime, leaseTransitions: this.#transitions },
    };
  }
}

function lostFailure(reason: string): Failure {
  return new Failure('STORE_UNAVAILABLE', `${reason}; this podwire-ipam starts again`);
}
