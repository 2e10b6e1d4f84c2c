import { Failure } from '@podwire/shared/failure/failure';
import type { Logger } from '@podwire/shared/runtime/log';

import type { Events } from '../engine/events.js';
import { read, type IpamOptions } from '../engine/updates/operation.js';
import type { Page, PageQuery } from '../records/page.js';
import { RULE_KINDS, type RequestPolicy } from '../records/request-policy.js';
import type { View } from '../records/view.js';
import { authorizeRequests, type PolicyInput } from './evaluation.js';
import {
  createRequestPolicy,
  deleteRequestPolicy,
  getRequestPolicy,
  listRequestPolicies,
  updateRequestPolicy,
  type RequestPolicyDeletion,
  type RequestPolicySpec,
  type RequestPolicyUpdate,
} from './request-policies.js';

const REQUEST_POLICIES_LANE = 'request policies';

/** Reports changes of request policies after the commit, and denied requests. */
class RequestPolicyEvents {
  readonly #log: Logger;

  constructor(events: Events) {
    this.#log = events.log;
  }

  requestPolicyChanged(event: 'created' | 'updated' | 'deleted', { name, rules }: RequestPolicy): void {
    const kinds = RULE_KINDS.filter((kind) => rules[kind] !== undefined);
    this.#log.info(
      { 'podwire.request_policy': name },
      `${event} request policy "${name}" with rules for ${kinds.join(', ')}`,
    );
  }

  /** A policy denied an AuthorizeRequests. */
  requestsDenied(failure: Failure): void {
    this.#log.warn({ err: failure }, 'requests of a pod denied');
  }
}

/** Manages request policies, and authorizes requests of pods. */
export class RequestPolicyOperations {
  readonly #options: IpamOptions;
  readonly #events: RequestPolicyEvents;

  constructor(options: IpamOptions) {
    this.#options = options;
    this.#events = new RequestPolicyEvents(options.events);
  }

  /** Not idempotent. @throws Failure REQUEST_POLICY_EXISTS, STORE_LIMIT, STORE_CORRUPT */
  async create(spec: RequestPolicySpec, signal: AbortSignal): Promise<RequestPolicy> {
    const { updates, clock, newUid } = this.#options;
    const creation = { spec, uid: newUid(), nowMs: clock.nowMs() };
    const decide = (view: View) => createRequestPolicy(view, creation);
    const created = await updates.update(REQUEST_POLICIES_LANE, decide, { signal });
    this.#events.requestPolicyChanged('created', created);
    return created;
  }

  /** @throws Failure REQUEST_POLICY_NOT_FOUND, STORE_CORRUPT */
  get(name: string, signal: AbortSignal): Promise<RequestPolicy> {
    return read(this.#options, (view) => getRequestPolicy(view, name), signal);
  }

  /** @throws Failure STORE_CORRUPT */
  list(query: PageQuery, signal: AbortSignal): Promise<Page<RequestPolicy>> {
    return read(this.#options, (view) => listRequestPolicies(view, query), signal);
  }

  /** Idempotent without a version. @throws Failure REQUEST_POLICY_NOT_FOUND, STALE_VERSION, STORE_LIMIT, STORE_CORRUPT */
  async update(update: RequestPolicyUpdate, signal: AbortSignal): Promise<RequestPolicy> {
    const { updates } = this.#options;
    const decide = (view: View) => updateRequestPolicy(view, update);
    const { policy, changed } = await updates.update(REQUEST_POLICIES_LANE, decide, { signal });
    if (changed) this.#events.requestPolicyChanged('updated', policy);
    return policy;
  }

  /** @throws Failure REQUEST_POLICY_NOT_FOUND, STALE_VERSION, STORE_CORRUPT */
  async delete(deletion: RequestPolicyDeletion, signal: AbortSignal): Promise<void> {
    const { updates } = this.#options;
    const decide = (view: View) => deleteRequestPolicy(view, deletion);
    this.#events.requestPolicyChanged('deleted', await updates.update(REQUEST_POLICIES_LANE, decide, { signal }));
  }

  /** Refuses denied requests. Changes nothing. @throws Failure REQUEST_DENIED, STORE_CORRUPT */
  async authorize(policyInput: PolicyInput, signal: AbortSignal): Promise<void> {
    try {
      await read(this.#options, (view) => authorizeRequests(view, policyInput), signal);
    } catch (failure) {
      if (failure instanceof Failure && failure.code === 'REQUEST_DENIED') this.#events.requestsDenied(failure);
      throw failure;
    }
  }
}
