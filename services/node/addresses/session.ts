import type { NodeSession } from '@podwire/proto/podwire/ipam/v1/lease';
import type { Condition } from '@podwire/dataplane/conditions/conditions';
import type { FailureCode } from '@podwire/shared/failure/codes';
import { Failure } from '@podwire/shared/failure/failure';

import type { LeaseApi } from './lease-api.js';
import type { StoredSession } from './lease-file.js';

/** Failures that prove that podwire-ipam did not execute the call and never will. */
const DEFINITE_CODES: ReadonlySet<FailureCode> = new Set([
  'INVALID_REQUEST',
  'NODE_NOT_FOUND',
  'NODE_BEING_DELETED',
  'STORE_LOCKED',
  'STORE_RESTORED',
  'STORE_CORRUPT',
]);

/** Failures of a podwire-ipam that is unreachable, or whose datastore is. */
const UNREACHABLE_CODES: ReadonlySet<FailureCode> = new Set([
  'UNREACHABLE',
  'DEADLINE_EXCEEDED',
  'CANCELLED',
  'STORE_UNAVAILABLE',
]);

/** Each attempt follows a session that another process of this node opened. */
const OPEN_ATTEMPTS_MAX = 4;

interface IpamSessionOptions {
  readonly api: LeaseApi;
  readonly nodeName: string;
  readonly machineId: string;
  readonly bootId: string;
  /** The node's address, for messages; empty if unknown. */
  readonly nodeAddress: () => string;
  /** Session of an earlier process. */
  readonly last: StoredSession | undefined;
  /** Called with each answer that changes the session, to store it. */
  readonly onChange: (session: StoredSession) => void;
  /** Called when the session was opened, before the next call. */
  readonly onOpened: () => void;
  /** Called when the datastore has an earlier session than the node: it was restored. */
  readonly onRestored: () => void;
  /** Called when another machine has the node's name. */
  readonly onDisplaced: (failure: Failure) => void;
}

/**
 * This node's session with podwire-ipam. Callers make one call at a time. After a call without an answer the session is opened
 * again before the next call, so that the datastore refuses the unanswered one if it arrives later.
 */
export class IpamSession {
  readonly nodeName: string;
  readonly bootId: string;
  readonly #options: IpamSessionOptions;
  #last: StoredSession | undefined;
  #isOpen = false;
  /** Failure of the last call; undefined: it succeeded, or there was none. */
  #failure: Failure | undefined;
  /** Failure NODE_NAME_TAKEN, kept until the session is open again. */
  #refusal: Failure | undefined;
  #wasOpened = false;

  constructor(options: IpamSessionOptions) {
    const { nodeName, bootId, last } = options;
    this.#options = options;
    this.nodeName = nodeName;
    this.bootId = bootId;
    this.#last = last;
  }

  /** Why this machine may give addresses to no pod: another one has the node's name. */
  get refusal(): Failure | undefined {
    return this.#refusal;
  }

  /** Whether podwire-ipam is not connected, or it or its datastore did not answer the last call. */
  get isUnreachable(): boolean {
    const isUnanswered = this.#failure !== undefined && UNREACHABLE_CODES.has(this.#failure.code);
    return isUnanswered || !this.#options.api.isConnected();
  }

  /** Whether this process has opened the session, so that this machine had the node's name. */
  get wasOpened(): boolean {
    return this.#wasOpened;
  }

  /** Opens the session unless it is open. @throws Failure of OpenSession */
  async open(signal: AbortSignal): Promise<void> {
    if (this.#isOpen) return;
    try {
      await this.#open(signal);
    } catch (error) {
      if (error instanceof Failure) this.#noteFailure(error);
      throw error;
    }
  }

  /** Opens the session again before the next call: the node's address has changed. */
  renew(): void {
    this.#isOpen = false;
  }

  conditions(): readonly Condition[] {
    return this.refusal ? [{ reason: 'NodeNameTaken', message: this.refusal.message }] : [];
  }

  /** Calls podwire-ipam in the session. @throws Failure of the call, or of OpenSession */
  async call<Response extends { readonly sessionRevision: bigint }>(
    send: (api: LeaseApi, session: NodeSession) => Promise<Response>,
    signal: AbortSignal,
  ): Promise<Response> {
    try {
      const response = await this.#send(send, signal);
      this.#failure = undefined;
      this.#note({ ...this.#current(), revision: response.sessionRevision });
      return response;
    } catch (error) {
      if (error instanceof Failure) this.#noteFailure(error);
      throw error;
    }
  }

  async #send<Response>(
    send: (api: LeaseApi, session: NodeSession) => Promise<Response>,
    signal: AbortSignal,
  ): Promise<Response> {
    const { api } = this.#options;
    for (let isRepeated = false; ; isRepeated = true) {
      // A call on a broken connection would have an unknown outcome: OpenSession, which changes no address, is sent first.
      if (!this.#isOpen || !api.isConnected()) await this.#open(signal);
      try {
        return await send(api, this.#current());
      } catch (error) {
        if (!(error instanceof Failure && DEFINITE_CODES.has(error.code))) this.#isOpen = false;
        const isSuperseded = error instanceof Failure && error.code === 'SESSION_SUPERSEDED';
        if (!isSuperseded || isRepeated) throw error;
      }
    }
  }

  async #open(signal: AbortSignal): Promise<void> {
    const { api, nodeName, machineId, bootId, nodeAddress, onOpened, onRestored } = this.#options;
    this.#isOpen = false;
    const request = { nodeName, machineId, bootId, nodeAddress: nodeAddress(), last: this.#last && { ...this.#last } };
    const { generation: lastGeneration = 0n, revision: lastRevision = 0n } = this.#last ?? {};
    let expectedGeneration = lastGeneration;
    for (let attempt = 0; attempt < OPEN_ATTEMPTS_MAX; attempt++) {
      const { opened, generation, revision } = await api.openSession({ ...request, expectedGeneration }, signal);
      // A restore is reported before the next ADD takes an address.
      const isBehind = opened ? revision <= lastRevision : revision < lastRevision;
      if (generation < lastGeneration || isBehind) onRestored();
      if (opened) {
        this.#isOpen = true;
        this.#wasOpened = true;
        this.#failure = undefined;
        this.#refusal = undefined;
        this.#note({ bootId, generation, revision });
        onOpened();
        return;
      }
      expectedGeneration = generation;
    }
    throw new Failure('CONFLICT', `${nodeName}: other processes of this node open sessions at the same time`);
  }

  #noteFailure(failure: Failure): void {
    this.#failure = failure;
    if (failure.code !== 'NODE_NAME_TAKEN') return;
    if (!this.#refusal) this.#options.onDisplaced(failure);
    this.#refusal = failure;
  }

  #current(): StoredSession {
    if (!this.#last) throw new Error('the session is not open');
    return this.#last;
  }

  #note(session: StoredSession): void {
    const { generation, revision } = this.#last ?? {};
    if (generation === session.generation && revision === session.revision) return;
    this.#last = session;
    this.#options.onChange(session);
  }
}
