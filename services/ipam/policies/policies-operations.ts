import { Failure } from '@podwire/shared/failure/failure';

import { read, type IpamOptions } from '../engine/updates/operation.js';
import type { Page } from '../records/page.js';
import type { RequestPolicy } from '../records/request-policy.js';
import type { View } from '../records/view.js';
import { permit, type Petition } from './evaluation.js';
import {
  createRequestPolicy,
  deleteRequestPolicy,
  getRequestPolicy,
  listRequestPolicies,
  updateRequestPolicy,
  type RequestPolicyDeletion,
  type RequestPolicyQuery,
  type RequestPolicySpec,
  type RequestPolicyUpdate,
} from './policies.js';

const REQUEST_POLICIES_LANE = 'request policies';

/** Manages what the authors of pods may ask for. */
export class RequestPolicyKeeper {
  readonly #options: IpamOptions;

  constructor(options: IpamOptions) {
    this.#options = options;
  }

  /** Not idempotent. @throws Failure REQUEST_POLICY_EXISTS, STORE_LIMIT, STORE_CORRUPT */
  async create(spec: RequestPolicySpec, signal: AbortSignal): Promise<RequestPolicy> {
    const { updates, events, clock, newUid } = this.#options;
    const creation = { spec, uid: newUid(), nowMs: clock.nowMs() };
    const decide = (view: View) => createRequestPolicy(view, creation);
    const created = await updates.update(REQUEST_POLICIES_LANE, decide, { signal });
    events.requestPolicyChanged('created', created);
    return created;
  }

  /** @throws Failure REQUEST_POLICY_NOT_FOUND, STORE_CORRUPT */
  get(name: string, signal: AbortSignal): Promise<RequestPolicy> {
    return read(this.#options, (view) => getRequestPolicy(view, name), signal);
  }

  /** @throws Failure STORE_CORRUPT */
  list(query: RequestPolicyQuery, signal: AbortSignal): Promise<Page<RequestPolicy>> {
    return read(this.#options, (view) => listRequestPolicies(view, query), signal);
  }

  /** Idempotent where no version is given. @throws Failure REQUEST_POLICY_NOT_FOUND, STALE_VERSION, STORE_LIMIT, STORE_CORRUPT */
  async update(update: RequestPolicyUpdate, signal: AbortSignal): Promise<RequestPolicy> {
    const { updates, events } = this.#options;
    const decide = (view: View) => updateRequestPolicy(view, update);
    const { policy, changed } = await updates.update(REQUEST_POLICIES_LANE, decide, { signal });
    if (changed) events.requestPolicyChanged('updated', policy);
    return policy;
  }

  /** @throws Failure REQUEST_POLICY_NOT_FOUND, STALE_VERSION, STORE_CORRUPT */
  async delete(deletion: RequestPolicyDeletion, signal: AbortSignal): Promise<void> {
    const { updates, events } = this.#options;
    const decide = (view: View) => deleteRequestPolicy(view, deletion);
    events.requestPolicyChanged('deleted', await updates.update(REQUEST_POLICIES_LANE, decide, { signal }));
  }

  /** Lets through what a pod may have, and changes nothing. @throws Failure REQUEST_DENIED, STORE_CORRUPT */
  async authorize(petition: Petition, signal: AbortSignal): Promise<void> {
    try {
      await read(this.#options, (view) => permit(view, petition), signal);
    } catch (failure) {
      if (failure instanceof Failure && failure.code === 'REQUEST_DENIED') this.#options.events.requestsDenied(failure);
      throw failure;
    }
  }
}
