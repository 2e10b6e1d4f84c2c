import { formatAttachment } from '@podwire/shared/attachment/attachment';
import type { FailureCode } from '@podwire/shared/failure/codes';
import { Failure } from '@podwire/shared/failure/failure';
import { formatAddress } from '@podwire/shared/net/address';
import { hostPrefix } from '@podwire/shared/net/prefix';
import { formatCount } from '@podwire/shared/words/format-count';

import type { AddressReleaseResult } from '../addresses/release.js';
import { nodeLane, unknownNodes, type IpamOptions } from '../engine/updates/operation.js';
import type { Endpoint } from '../records/endpoint.js';
import { bindAddresses, type Binding, type Bound } from './bindings.js';
import { leaseAddresses, type Lease, type LeaseRequest } from './leases.js';
import { continueReturn, type AddressReturn } from './returns.js';

/** The unbound leases of a node. */
export interface LeaseList {
  readonly leases: readonly Lease[];
  /** Why the node holds fewer than it wants; empty if it does not. */
  readonly explanation: string;
}

/** The result of one binding. */
export type BindingResult =
  { readonly ok: true; readonly endpoint: Endpoint } | { readonly ok: false; readonly refusal: Failure };

/** Failures of a single binding, which a repetition does not change. */
const REFUSALS: readonly FailureCode[] = ['ALLOCATION_MISMATCH', 'STORE_CORRUPT'];

/** Lends addresses to nodes. All changes of a node's leases are in the node's lane. */
export class Leases {
  readonly #options: IpamOptions;

  constructor(options: IpamOptions) {
    this.#options = options;
  }

  /**
   * Makes a node hold a number of unbound leases, in several transactions if necessary. Idempotent.
   * @throws Failure like the decision `leaseAddresses`
   */
  async lease(request: LeaseRequest, signal: AbortSignal): Promise<LeaseList> {
    const { updates, events, clock } = this.#options;
    const { nodeName } = request;
    for (;;) {
      const input = { request, unknownNodes: unknownNodes(this.#options), nowMs: clock.nowMs() };
      const step = await updates.update(nodeLane(nodeName), (view) => leaseAddresses(view, input), { signal });
      events.blocksClaimed(step.claimed, nodeName);
      this.#report(nodeName, step.newCount, 'leased');
      this.#report(nodeName, step.freedCount, 'freed unbound leases of a former boot:');
      if (step.state === 'done') return step;
    }
  }

  /**
   * Binds leases of a node to attachments. Each binding is evaluated separately. Idempotent.
   * @returns the result of each, in their order
   * @throws Failure of every operation; some bindings may be done
   */
  async bind(nodeName: string, bindings: readonly Binding[], signal: AbortSignal): Promise<BindingResult[]> {
    const settled = await Promise.allSettled(bindings.map((binding) => this.#bindOne(nodeName, binding, signal)));
    return settled.map((each) => {
      if (each.status === 'fulfilled') return each.value;
      throw each.reason;
    });
  }

  /**
   * Frees addresses of a node, in several transactions if necessary. Each is evaluated separately. Idempotent.
   * @param returns - without duplicate addresses
   * @returns the result of each, in their order
   */
  async giveBack(
    nodeName: string,
    returns: readonly AddressReturn[],
    signal: AbortSignal,
  ): Promise<AddressReleaseResult[]> {
    const { updates, events, clock } = this.#options;
    const results: AddressReleaseResult[] = [];
    while (results.length < returns.length) {
      const left = returns.slice(results.length);
      const step = { nodeName, returns: left, nowMs: clock.nowMs() };
      // The commit does not compare an address that was found free: only a fresh view shows that it still is.
      const options = { signal, isFresh: left.length > 1 };
      const outcome = await updates.update(nodeLane(nodeName), (view) => continueReturn(view, step), options);
      const freed = left.filter((_, index) => outcome.results[index]?.state === 'released');
      events.addressesReleased(freed.map(({ allocation }) => hostPrefix(allocation.address)));
      results.push(...outcome.results);
    }
    return results;
  }

  async #bindOne(nodeName: string, binding: Binding, signal: AbortSignal): Promise<BindingResult> {
    const { updates } = this.#options;
    const decide = (view: Parameters<typeof bindAddresses>[0]) => bindAddresses(view, { nodeName, binding });
    try {
      const bound = await updates.update(nodeLane(nodeName), decide, { signal });
      this.#reportBound(bound);
      return { ok: true, endpoint: bound.endpoint };
    } catch (error) {
      if (!(error instanceof Failure) || !REFUSALS.includes(error.code)) throw error;
      this.#options.events.log.warn(error.message);
      return { ok: false, refusal: error };
    }
  }

  #report(nodeName: string, count: number, text: string): void {
    if (count === 0) return;
    this.#options.events.log.info(
      { 'podwire.node': nodeName },
      `${text} ${formatCount(count, 'address', 'addresses')}`,
    );
  }

  #reportBound({ endpoint: { attachment, nodeName }, added }: Bound): void {
    if (added.length === 0) return;
    const texts = added.map(formatAddress);
    const facts = { 'podwire.node': nodeName, 'podwire.addresses': texts };
    this.#options.events.log.info(facts, `bound ${texts.join(', ')} to ${formatAttachment(attachment)}`);
  }
}
