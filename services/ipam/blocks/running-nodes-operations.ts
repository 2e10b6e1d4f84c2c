import { nodeLane, read, type IpamOptions } from '../engine/updates/operation.js';
import { holderOf } from '../records/attributes.js';
import type { HeldAddress } from '../records/block.js';
import { isLease } from '../records/lease.js';
import type { Decision, View } from '../records/view.js';
import { requestInventory, requestLeases } from './node-requests.js';
import { inUseFailure, RunningNodes, type SilentNodes } from './running-nodes.js';

/** How long nodes may take to report their inventory, and to return leases, in milliseconds. */
const REPORT_MS = 15_000;
const LEASES_MS = 2000;

/** How long a node may take after its report to return what no pod has, in milliseconds. */
const RETURN_MS = 1000;

const POLL_MS = 50;

/** The addresses that an operation would release. */
export type Scope = (view: View) => Iterable<HeldAddress>;

/** Last report of a node before it was asked. */
interface Asked {
  readonly revision: number;
  readonly reportedAtMs: number | undefined;
}

/** Asks the nodes that run before an operator's release. */
export class NodeInquiry {
  readonly #options: IpamOptions;

  constructor(options: IpamOptions) {
    this.#options = options;
  }

  /**
   * Recalls the leases of the scope from nodes that run. If pods of such nodes have addresses of it, asks the nodes for
   * their inventories: a node returns what no pod has.
   * @returns the nodes that did not answer; none in a dry run
   * @throws Failure NODE_IN_USE when pods of nodes that run have addresses, unless `force`
   */
  async ask(scope: Scope, force: boolean, signal: AbortSignal): Promise<SilentNodes> {
    const used = await this.kept(scope, new Map(), signal);
    const pods = used.filter(({ attributes }) => !isLease(attributes));
    if (pods.length > 0 && !force) throw inUseFailure(pods);
    if (this.#options.isDryRun === true) return new Map();
    if (used.length > pods.length) await this.recall(scope, signal);
    return pods.length > 0 ? this.#requestInventories(nodesOf(pods), signal) : new Map();
  }

  /** The addresses of the scope that nodes that run may use. A dry run assumes that nodes return their leases when asked. */
  async kept(scope: Scope, silent: SilentNodes, signal: AbortSignal): Promise<HeldAddress[]> {
    const used = await read(this.#options, (view) => usedIn(view, scope, silent), signal);
    return this.#options.isDryRun === true ? used.filter(({ attributes }) => !isLease(attributes)) : used;
  }

  /** Recalls the leases of the scope from nodes that run, and waits for their return for 2 s. */
  async recall(scope: Scope, signal: AbortSignal): Promise<void> {
    const { updates, isDryRun = false } = this.#options;
    if (isDryRun) return;
    const leasesOf = (view: View): HeldAddress[] => usedIn(view, scope).filter(({ attributes }) => isLease(attributes));
    const names = nodesOf(await updates.peek(leasesOf));
    await Promise.all(names.map((name) => this.#update(name, (view) => recall(view, name), signal)));
    const isDone = async (): Promise<boolean> => (await updates.peek(leasesOf)).length === 0;
    await this.#waitFor(isDone, LEASES_MS, signal);
  }

  async #requestInventories(names: readonly string[], signal: AbortSignal): Promise<SilentNodes> {
    const { updates, clock } = this.#options;
    const asked = new Map<string, Asked>();
    const request = async (name: string): Promise<void> => {
      const before = await this.#update(name, (view) => requestReport(view, name), signal);
      if (before) asked.set(name, before);
    };
    await Promise.all(names.map(request));
    const isReported = (view: View): boolean =>
      [...asked].every(([name, before]) => view.session(name)?.reportedAtMs !== before.reportedAtMs);
    const hasAll = await this.#waitFor(() => updates.peek(isReported), REPORT_MS, signal);
    await clock.sleep(RETURN_MS, signal);
    if (hasAll) return new Map();
    // A node that wrote its session meanwhile runs, even if it has not reported.
    const isSilent = await read(this.#options, (view) => new Set(silentOf(view, asked)), signal);
    return new Map([...asked].flatMap(([name, { revision }]) => (isSilent.has(name) ? [[name, revision]] : [])));
  }

  #update<Outcome>(name: string, decide: (view: View) => Decision<Outcome>, signal: AbortSignal): Promise<Outcome> {
    return this.#options.updates.update(nodeLane(name), decide, { signal });
  }

  /** @returns whether the condition came true in time */
  async #waitFor(isTrue: () => Promise<boolean>, timeoutMs: number, signal: AbortSignal): Promise<boolean> {
    for (let pollsLeft = timeoutMs / POLL_MS; pollsLeft > 0; pollsLeft--) {
      if (await isTrue()) return true;
      if ((await this.#options.clock.sleep(POLL_MS, signal)) === 'aborted') return false;
    }
    return isTrue();
  }
}

function usedIn(view: View, scope: Scope, silent?: SilentNodes): HeldAddress[] {
  const running = new RunningNodes(view, silent);
  return [...scope(view)].filter(({ attributes }) => running.mayUse(attributes));
}

function nodesOf(held: readonly HeldAddress[]): string[] {
  return [...new Set(held.map(({ attributes }) => holderOf(attributes).nodeName))];
}

function recall(view: View, name: string): Decision<undefined> {
  return { changes: requestLeases(view, name), outcome: undefined };
}

/** @returns undefined if the node cannot be asked, as it is not registered */
function requestReport(view: View, name: string): Decision<Asked | undefined> {
  const session = view.session(name);
  const { changes, outcome } = requestInventory(view, name);
  return { changes, outcome: outcome && session ? session : undefined };
}

function silentOf(view: View, asked: ReadonlyMap<string, Asked>): string[] {
  return [...asked].flatMap(([name, { revision }]) => (view.session(name)?.revision === revision ? [name] : []));
}
