import { NetlinkError, type LinkSelector, type Namespace, type Outcome, type Step as Request } from '@podwire/netlink';

import type { Wanted } from '../../plan/desired.js';
import type { Observed, ObservedLink } from '../../plan/observed.js';
import type { Batch, Side, Step, SysctlKey } from '../../plan/step.js';
import type { BatchOutcome, NetnsIdentity, PodSession, StepFailure } from '../kernel.js';
import { observeEnd, readSysctls, toObservedLink } from './observe.js';
import { asking, failureOfNetlink } from './refusal.js';
import { toRequest } from './requests.js';

type NetlinkStep = Exclude<Step, { type: 'link-delete' }>;

/** Steps that are carried out in one hop: one deletion, or any number of others. */
type Part =
  | { readonly type: 'deletion'; readonly step: Extract<Step, { type: 'link-delete' }> }
  | { readonly type: 'sequence'; readonly steps: NetlinkStep[] };

/** A session over the addon. */
export class NetlinkSession implements PodSession {
  readonly #namespaces: Readonly<Record<Side, Namespace>>;
  /** Indexes of the links that this session made, by name. Both ends are known from the look at the host's. */
  readonly #made: Readonly<Record<Side, Map<string, number>>> = { host: new Map(), pod: new Map() };

  constructor(namespaces: Readonly<Record<Side, Namespace>>) {
    this.#namespaces = namespaces;
  }

  get identity(): NetnsIdentity {
    return this.#namespaces.pod.identity;
  }

  podSysctls(keys: readonly SysctlKey[]): Promise<ReadonlyMap<string, string | null>> {
    return asking(() => readSysctls(this.#namespaces.pod, keys));
  }

  observe(wanted: Wanted): Promise<Observed> {
    return asking(async () => {
      const [host, pod] = await Promise.all([
        observeEnd(this.#namespaces.host, wanted.host, 'host'),
        observeEnd(this.#namespaces.pod, wanted.pod, 'pod'),
      ]);
      return { host, pod };
    });
  }

  async apply({ side, steps }: Batch): Promise<BatchOutcome> {
    let reached: BatchOutcome = { finished: [], warnings: [], failed: undefined, link: undefined };
    for (const part of toParts(steps)) {
      const outcome = part.type === 'deletion' ? await this.#delete(part.step) : await this.#sequence(side, part.steps);
      reached = {
        finished: [...reached.finished, ...outcome.finished],
        warnings: [...reached.warnings, ...outcome.warnings],
        failed: outcome.failed,
        link: outcome.link,
      };
      if (reached.failed) break;
    }
    return reached;
  }

  close(): Promise<void> {
    return this.#namespaces.pod.close();
  }

  /** One hop: the steps, and a look at the link that they changed. */
  async #sequence(side: Side, steps: readonly NetlinkStep[]): Promise<BatchOutcome> {
    const [first] = steps;
    if (!first) return { finished: [], warnings: [], failed: undefined, link: undefined };
    const lastOnLink = steps.findLast((step) => step.type === 'link-add' || step.type === 'link-set');
    const select = (name: string): LinkSelector => {
      const index = this.#made[side].get(name);
      return index === undefined ? { name } : { index };
    };
    const requests: Request[] = steps.map((step) => toRequest(step, { pod: this.#namespaces.pod, select }));
    if (lastOnLink) requests.push({ type: 'link.get', link: select(nameOf(lastOnLink)) });
    try {
      const outcomes = await this.#namespaces[side].sequence(requests);
      const outcome = toBatchOutcome(steps, { outcomes, readBackFor: lastOnLink });
      this.#remember(steps, outcome.link);
      return outcome;
    } catch (error) {
      return { finished: [], warnings: [], failed: failureAt(first, error), link: undefined };
    }
  }

  #remember(steps: readonly NetlinkStep[], link: ObservedLink | undefined): void {
    const creation = steps.find((step) => step.type === 'link-add');
    if (creation?.type !== 'link-add' || link?.peerIndex === undefined) return;
    this.#made.host.set(link.name, link.index);
    this.#made.pod.set(creation.peer.name, link.peerIndex);
  }

  async #delete(step: Extract<Step, { type: 'link-delete' }>): Promise<BatchOutcome> {
    for (const made of Object.values(this.#made)) made.clear();
    try {
      await this.#namespaces.host.deleteLink({ name: step.name });
      return { finished: [step], warnings: [], failed: undefined, link: undefined };
    } catch (error) {
      return { finished: [], warnings: [], failed: failureAt(step, error), link: undefined };
    }
  }
}

function toParts(steps: readonly Step[]): Part[] {
  const parts: Part[] = [];
  for (const step of steps) {
    const last = parts.at(-1);
    if (step.type === 'link-delete') parts.push({ type: 'deletion', step });
    else if (last?.type === 'sequence') last.steps.push(step);
    else parts.push({ type: 'sequence', steps: [step] });
  }
  return parts;
}

interface Answers {
  /** One for each step, and one more for the look at the link. */
  readonly outcomes: readonly Outcome[];
  readonly readBackFor: Step | undefined;
}

function toBatchOutcome(steps: readonly NetlinkStep[], { outcomes, readBackFor }: Answers): BatchOutcome {
  const finished: Step[] = [];
  const warnings: StepFailure[] = [];
  let failed: StepFailure | undefined;
  for (const [position, step] of steps.entries()) {
    const outcome = outcomes[position];
    if (!outcome) throw new Error('the addon answers every step');
    if (outcome.ok) finished.push(step);
    else if (step.type === 'sysctl-write' && step.optional) warnings.push(failureAt(step, outcome.error));
    else {
      failed = failureAt(step, outcome.error);
      break;
    }
  }
  const readBack = outcomes[steps.length];
  if (!failed && readBackFor && readBack?.ok === false) failed = failureAt(readBackFor, readBack.error);
  return { finished, warnings, failed, link: failed ? undefined : linkOf(readBack) };
}

function linkOf(outcome: Outcome | undefined): ObservedLink | undefined {
  return outcome?.ok && outcome.link ? toObservedLink(outcome.link) : undefined;
}

function nameOf(step: Extract<Step, { type: 'link-add' | 'link-set' }>): string {
  return step.type === 'link-add' ? step.link.name : step.name;
}

function failureAt(step: Step, error: unknown): StepFailure {
  if (!(error instanceof NetlinkError)) throw error;
  return { step, failure: failureOfNetlink(error), errno: error.code };
}
