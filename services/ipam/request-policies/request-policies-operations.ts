import { Failure } from '@podwire/shared/failure/failure';

import { read, type IpamOptions } from '../engine/updates/operation.js';
import { NamedOperations } from '../named-objects/named-objects-operations.js';
import type { RequestPolicy } from '../records/request-policy.js';
import { authorizeRequests, type PolicyInput } from './evaluation.js';
import { REQUEST_POLICIES, type RequestPolicySpec } from './request-policies.js';

/** Manages request policies, and authorizes requests of pods. */
export class RequestPolicyOperations extends NamedOperations<RequestPolicy, RequestPolicySpec> {
  readonly #options: IpamOptions;

  constructor(options: IpamOptions) {
    super(options, REQUEST_POLICIES);
    this.#options = options;
  }

  /** Refuses denied requests. Changes nothing. @throws Failure REQUEST_DENIED, STORE_CORRUPT */
  async authorize(policyInput: PolicyInput, signal: AbortSignal): Promise<void> {
    try {
      await read(this.#options, (view) => authorizeRequests(view, policyInput), signal);
    } catch (failure) {
      if (failure instanceof Failure && failure.code === 'REQUEST_DENIED')
        this.#options.events.log.warn({ err: failure }, 'requests of a pod denied');
      throw failure;
    }
  }
}
