import { Failure } from '@podwire/shared/failure/failure';
import type { Family } from '@podwire/shared/net/address';
import { counted } from '@podwire/shared/words/counted';

import {
  assignAddresses,
  type AskedAssignment,
  type Assignment,
  type Counts,
  type Shortage,
} from '../addresses/assign.js';
import { explainAllocation, type ExplainedAllocation } from '../addresses/preview.js';
import type { AskedAllocation, EndpointAddress } from '../allocator/records.js';
import { nodeLane, read, unknownNodes, type IpamOptions } from '../engine/updates/operation.js';

export interface ExplainLimits {
  readonly maxBlocksCount: number;
}

/** Gives addresses to handles that are no attachments', and tells what would become of an allocation. */
export class Assignments {
  readonly #options: IpamOptions;

  constructor(options: IpamOptions) {
    this.#options = options;
  }

  /**
   * Gives a handle addresses, in as many transactions as it takes. When a later one fails, what the earlier ones gave stays with
   * the handle, and the failure says so.
   * @throws Failure as the decision `assignAddresses` does
   */
  async assign(asked: AskedAssignment, signal: AbortSignal): Promise<Assignment> {
    const { updates, events, clock } = this.#options;
    const request = { unknownNodes: unknownNodes(this.#options), ...asked };
    const nowMs = clock.nowMs();
    const lane = asked.owner.kind === 'host' ? nodeLane(asked.owner.name) : `virtual/${asked.owner.name}`;
    const given: EndpointAddress[] = [];
    const held: EndpointAddress[] = [];
    const shortages = new Map<Family, Shortage>();
    let left: Counts | undefined;
    do {
      const step = left;
      const decided = await updates
        .update(lane, (view) => assignAddresses(view, { request, nowMs, left: step }), { signal })
        .catch((error: unknown) => {
          throw withProgress(error, asked.handleId, given.length);
        });
      given.push(...decided.given);
      held.push(...decided.held);
      for (const [family, shortage] of decided.shortages) shortages.set(family, shortage);
      left = decided.left;
      events.addressesAssigned(asked.handleId, decided.given);
    } while (left);
    return { given, held, shortages };
  }

  /** What Allocate would answer, and look at. Changes nothing. */
  explain(
    asked: AskedAllocation,
    { maxBlocksCount }: ExplainLimits,
    signal: AbortSignal,
  ): Promise<ExplainedAllocation> {
    const request = { unknownNodes: unknownNodes(this.#options), ...asked };
    const nowMs = this.#options.clock.nowMs();
    return read(this.#options, (view) => explainAllocation(view, { request, nowMs, maxBlocksCount }), signal);
  }
}

/** The failure of a step, with what the steps before it gave. */
function withProgress(error: unknown, handleId: string, givenCount: number): unknown {
  if (!(error instanceof Failure) || givenCount === 0) return error;
  const { code, message, violations, details } = error;
  const given = counted(
    givenCount,
    'address was given before that and stays',
    'addresses were given before that and stay',
  );
  const text = `${message}; ${given} with handle ${handleId}: release what it has, or ask for the rest`;
  return new Failure(code, text, { violations, details: { ...details, assigned: String(givenCount) }, cause: error });
}
