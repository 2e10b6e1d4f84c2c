import type { FailureCode } from '@podwire/shared/failure/codes';
import { Failure } from '@podwire/shared/failure/failure';
import { formatCount } from '@podwire/shared/words/format-count';

import type { Need, Relief } from '../blocks/demand.js';
import { nodeLane, type IpamOptions } from '../engine/updates/operation.js';
import { prospectsOf, recallLeases, usedInReach, type LeaseHolder } from './recall.js';

/** How long an operation waits for recalled leases, and how long a node is not asked again, in milliseconds. */
const WAIT_MS = 2000;

/** How often the number of addresses in use is looked at, in milliseconds. */
const POLL_MS = 20;

/** Nodes asked at once: each recall is sent to every node of the cluster, with the other changes of nodes. */
const NODES_AT_ONCE = 32;

/** The first run of an operation. */
interface RefusedRun {
  readonly need: Need;
  readonly failure: Failure;
}

/**
 * Recalls unbound leases when an operation finds no free address, so that a lease denies an address to no pod, tunnel or
 * load balancer. The operation is repeated when addresses were freed, and a last time at the end of the wait.
 */
export class LeaseRecalls implements Relief {
  readonly #options: IpamOptions;
  /** When this process last recalled the leases of each node, by the monotonic clock. */
  readonly #recalledAtMs = new Map<string, number>();

  constructor(options: IpamOptions) {
    this.#options = options;
  }

  async attempt<Result>(need: Need, run: () => Promise<Result>, signal: AbortSignal): Promise<Result> {
    try {
      return await run();
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      return this.#relieve({ need, failure: error }, run, signal);
    }
  }

  async #relieve<Result>(refused: RefusedRun, repeat: () => Promise<Result>, signal: AbortSignal): Promise<Result> {
    const { updates, clock } = this.#options;
    const { need, failure } = refused;
    for (let pollsLeft = WAIT_MS / POLL_MS; pollsLeft > 0;) {
      const { hasRoom, holders, usedCount } = await updates.peek((view) =>
        prospectsOf(view, { need, code: failure.code }),
      );
      if (!hasRoom && holders.length === 0) break;
      await this.#recall(holders, signal);
      const isFreed = () => updates.peek((view) => usedInReach(view, need) < usedCount);
      do {
        if ((await clock.sleep(POLL_MS, signal)) === 'aborted') throw failure;
        pollsLeft--;
      } while (pollsLeft > 0 && !hasRoom && !(await isFreed()));
      const repeated = await unlessRefused(repeat, failure.code);
      if (repeated) return repeated.result;
    }
    throw failure;
  }

  /** Asks the nodes that were not asked just now: the longest unasked nodes first, then nodes with most leases. */
  async #recall(holders: readonly LeaseHolder[], signal: AbortSignal): Promise<void> {
    const { updates, clock, events } = this.#options;
    const nowMs = clock.monotonicMs();
    const askedAtMs = ({ nodeName }: LeaseHolder): number => this.#recalledAtMs.get(nodeName) ?? -WAIT_MS;
    const asked = holders
      .filter((holder) => nowMs - askedAtMs(holder) >= WAIT_MS)
      .sort((a, b) => askedAtMs(a) - askedAtMs(b) || b.count - a.count)
      .slice(0, NODES_AT_ONCE);
    if (asked.length === 0) return;
    for (const { nodeName } of asked) this.#recalledAtMs.set(nodeName, nowMs);
    await Promise.all(
      asked.map(({ nodeName }) =>
        updates.update(nodeLane(nodeName), (view) => recallLeases(view, nodeName), { signal }),
      ),
    );
    const names = asked.map(({ nodeName }) => nodeName);
    const leases = formatCount(
      asked.reduce((sum, { count }) => sum + count, 0),
      'unbound lease',
    );
    const nodes = formatCount(asked.length, 'node');
    events.log.info({ 'podwire.nodes': names }, `recalled ${leases} of ${nodes}: a request found no free address`);
  }
}

/** @returns undefined if it is refused as before */
async function unlessRefused<Result>(
  run: () => Promise<Result>,
  code: FailureCode,
): Promise<{ readonly result: Result } | undefined> {
  try {
    return { result: await run() };
  } catch (error) {
    if (error instanceof Failure && error.code === code) return undefined;
    throw error;
  }
}
