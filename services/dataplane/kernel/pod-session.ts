import { NetlinkError, type LinkSelector, type Namespace, type Outcome, type Step as Request } from '@podwire/netlink';

import type { BatchOutcome, PodSession, StepFailure } from '../pods/kernel.js';
import type { NamespaceIdentity } from '../records/record.js';
import type { Wanted } from '../wiring/network.js';
import type { Observed, ObservedLink } from '../wiring/observed.js';
import { QDISC_HANDLE } from '../wiring/token-bucket.js';
import {
  withPreviousValue,
  type LinkSpec,
  type Neighbour,
  type Route,
  type Rule,
  type Side,
  type Step,
} from '../wiring/step.js';
import { boundedPod, type BoundedPod } from './bounded-pod.js';
import type { PodListBounds } from './pod-lists.js';
import { getLink, listRules, listOrphanRules, observeHost, observePod, toObservedLink } from './pod-observe.js';
import { callKernel, failureOfNetlink } from './refusal.js';

/** The addon takes 1000 steps in one call, including reads of the links. */
const STEPS_PER_CALL = 900;

type NetlinkStep = Exclude<Step, { type: 'link-delete' }>;

/** Steps for one call: one deletion, or up to {@link STEPS_PER_CALL} other steps. */
type Part =
  | { readonly type: 'deletion'; readonly step: Extract<Step, { type: 'link-delete' }> }
  | { readonly type: 'sequence'; readonly steps: NetlinkStep[] };

/** A session over the addon. */
export class NetlinkSession implements PodSession {
  readonly #namespaces: Readonly<Record<Side, Namespace>>;
  /** The pod's, for reading. */
  readonly #pod: BoundedPod;
  /** Indexes of the links that this session created, by name. A read of the host end returns both. */
  readonly #createdIndexes: Readonly<Record<Side, Map<string, number>>> = { host: new Map(), pod: new Map() };

  constructor(namespaces: Readonly<Record<Side, Namespace>>, bounds: PodListBounds) {
    this.#namespaces = namespaces;
    this.#pod = boundedPod(namespaces.pod, bounds);
  }

  get identity(): NamespaceIdentity {
    return this.#namespaces.pod.identity;
  }

  observe(wanted: Wanted): Promise<Observed> {
    return callKernel(async () => {
      const [host, pod] = await Promise.all([
        observeHost(this.#namespaces.host, wanted.host),
        observePod(this.#pod, wanted.pod),
      ]);
      return { host, pod };
    });
  }

  podLink(name: string): Promise<ObservedLink | undefined> {
    return callKernel(async () => {
      const link = await getLink(this.#namespaces.pod, { name });
      return link && toObservedLink(link);
    });
  }

  rules(table: number): Promise<readonly Rule[]> {
    return callKernel(() => listRules(this.#pod, table));
  }

  orphanRules(): Promise<readonly Rule[]> {
    return callKernel(() => listOrphanRules(this.#pod));
  }

  async apply(steps: readonly Step[]): Promise<BatchOutcome> {
    let reached: BatchOutcome = { finished: [], warnings: [], failed: undefined, links: {} };
    for (const part of toParts(steps)) {
      const outcome = part.type === 'deletion' ? await this.#delete(part.step) : await this.#sequence(part.steps);
      reached = {
        finished: [...reached.finished, ...outcome.finished],
        warnings: [...reached.warnings, ...outcome.warnings],
        failed: outcome.failed,
        links: outcome.failed ? {} : { ...reached.links, ...outcome.links },
      };
      if (reached.failed) break;
    }
    return reached;
  }

  close(): Promise<void> {
    return this.#namespaces.pod.close();
  }

  /**
   * One call: the steps, and in each namespace a read of the link that they changed. It goes through the pod's namespace handle,
   * as calls on the node's would queue behind other pods' calls.
   */
  async #sequence(steps: readonly NetlinkStep[]): Promise<BatchOutcome> {
    const [first] = steps;
    if (!first) return { finished: [], warnings: [], failed: undefined, links: {} };
    const entries = toSequence(steps);
    const requests = entries.map((turn): Request => {
      const select = (name: string): LinkSelector => this.#select(turn.step.side, name);
      const request: Request =
        turn.type === 'read'
          ? { type: 'link.get', link: select(nameOf(turn.step)) }
          : toRequest(turn.step, { pod: this.#namespaces.pod, select });
      return turn.step.side === 'pod' ? request : { within: this.#namespaces.host, ...request };
    });
    try {
      const outcome = toBatchOutcome(entries, await this.#namespaces.pod.sequence(requests));
      this.#remember(steps, outcome.links.host);
      return outcome;
    } catch (error) {
      return { finished: [], warnings: [], failed: failureAt(first, error), links: {} };
    }
  }

  #select(side: Side, name: string): LinkSelector {
    const index = this.#createdIndexes[side].get(name);
    return index === undefined ? { name } : { index };
  }

  #remember(steps: readonly NetlinkStep[], host: ObservedLink | undefined): void {
    const creation = steps.find((step) => step.type === 'link-add');
    if (creation?.type !== 'link-add' || host?.peerIndex === undefined) return;
    this.#createdIndexes.host.set(host.name, host.index);
    this.#createdIndexes.pod.set(creation.peer.name, host.peerIndex);
  }

  async #delete(step: Extract<Step, { type: 'link-delete' }>): Promise<BatchOutcome> {
    for (const made of Object.values(this.#createdIndexes)) made.clear();
    try {
      await this.#namespaces.host.deleteLink({ name: step.name });
      return { finished: [step], warnings: [], failed: undefined, links: {} };
    } catch (error) {
      return { finished: [], warnings: [], failed: failureAt(step, error), links: {} };
    }
  }
}

function toParts(steps: readonly Step[]): Part[] {
  const parts: Part[] = [];
  for (const step of steps) {
    const last = parts.at(-1);
    if (step.type === 'link-delete') parts.push({ type: 'deletion', step });
    else if (last?.type === 'sequence' && last.steps.length < STEPS_PER_CALL) last.steps.push(step);
    else parts.push({ type: 'sequence', steps: [step] });
  }
  return parts;
}

type LinkStep = Extract<Step, { type: 'link-add' | 'link-set' }>;

/** One kernel request: a step, or a read of the link that a step created or changed. */
type SequenceEntry =
  { readonly type: 'step'; readonly step: NetlinkStep } | { readonly type: 'read'; readonly step: LinkStep };

/** The steps; after the last one of each namespace a read of the last link that was created or changed there. */
function toSequence(steps: readonly NetlinkStep[]): SequenceEntry[] {
  const last = (side: Side) => steps.findLastIndex((step) => step.side === side);
  const ends: Readonly<Record<Side, number>> = { host: last('host'), pod: last('pod') };
  const isOnLink = (step: NetlinkStep): step is LinkStep => step.type === 'link-add' || step.type === 'link-set';
  return steps.flatMap((step, position): SequenceEntry[] => {
    const { side } = step;
    const changed =
      position === ends[side] ? steps.filter(isOnLink).findLast((other) => other.side === side) : undefined;
    const turn: SequenceEntry = { type: 'step', step };
    return changed ? [turn, { type: 'read', step: changed }] : [turn];
  });
}

/** @param outcomes - one per request */
function toBatchOutcome(turns: readonly SequenceEntry[], outcomes: readonly Outcome[]): BatchOutcome {
  const finished: Step[] = [];
  const warnings: StepFailure[] = [];
  const links: Partial<Record<Side, ObservedLink>> = {};
  for (const [position, { type, step }] of turns.entries()) {
    const outcome = outcomes[position];
    if (!outcome) throw new Error('the addon must return an outcome for every step');
    if (!outcome.ok) {
      const failed = failureAt(step, outcome.error);
      if (type === 'read' || step.type !== 'sysctl-write' || !step.optional)
        return { finished, warnings, failed, links: {} };
      warnings.push(failed);
    } else if (type === 'step') finished.push(asApplied(step, outcome));
    else if (outcome.link) links[step.side] = toObservedLink(outcome.link);
  }
  return { finished, warnings, failed: undefined, links };
}

function asApplied(step: NetlinkStep, { previous }: Extract<Outcome, { ok: true }>): Step {
  if (step.type !== 'sysctl-write' || !step.readPrevious) return step;
  return withPreviousValue(step, previous);
}

function nameOf(step: LinkStep): string {
  return step.type === 'link-add' ? step.link.name : step.name;
}

function failureAt(step: Step, error: unknown): StepFailure {
  if (!(error instanceof NetlinkError)) throw error;
  return { step, failure: failureOfNetlink(error), errno: error.code };
}

/** The context of a step. */
interface RequestContext {
  readonly pod: Namespace;
  /** Selects a link of the step's namespace. By index, when known: saves a request to the kernel. */
  readonly select: (name: string) => LinkSelector;
}

/** The addon request of a step. `link-delete` is none: the addon has a faster way for it. */
function toRequest(step: Exclude<Step, { type: 'link-delete' }>, { pod, select }: RequestContext): Request {
  switch (step.type) {
    case 'link-add':
      return { type: 'link.add', kind: 'veth', ...newLink(step.link), peer: { namespace: pod, ...newLink(step.peer) } };
    case 'link-set':
      return { type: 'link.set', link: select(step.name), ...step.change };
    case 'address-add':
      return { type: 'address.add', ...addressFields(step, select) };
    case 'address-set':
      return { type: 'address.replace', ...addressFields(step, select) };
    case 'address-delete':
      return { type: 'address.delete', link: select(step.device), address: step.address };
    case 'route-add':
      return { type: 'route.add', ...routeFields(step.route, select) };
    case 'route-replace':
      return { type: 'route.replace', ...routeFields(step.route, select) };
    case 'route-delete':
      return { type: 'route.delete', ...routeFields(step.route, select) };
    case 'rule-add':
      return { type: 'rule.add', ...step.rule };
    case 'rule-delete':
      return { type: 'rule.delete', ...step.rule };
    case 'neighbour-set':
      return { type: 'neighbour.replace', ...neighbourFields(step.neighbour, select) };
    case 'neighbour-delete':
      return { type: 'neighbour.delete', ...neighbourFields(step.neighbour, select) };
    case 'limit-set':
      return { type: 'qdisc.replace', link: select(step.device), handle: QDISC_HANDLE, tbf: step.bucket };
    case 'limit-delete':
      return { type: 'qdisc.delete', link: select(step.device) };
    case 'sysctl-write':
      return {
        type: 'sysctl.write',
        key: step.key,
        value: step.value,
        optional: step.optional,
        ...(step.readPrevious && { readPrevious: true }),
      };
  }
}

type Select = RequestContext['select'];

function newLink({ name, mac, mtuBytes, txQueueLength, queueCount }: LinkSpec) {
  return {
    name,
    mac,
    mtuBytes,
    ...(txQueueLength === undefined ? {} : { txQueueLength }),
    ...(queueCount === undefined ? {} : { txQueueCount: queueCount, rxQueueCount: queueCount }),
  };
}

function addressFields({ device, address }: { readonly device: string; readonly address: string }, select: Select) {
  const isIpv6 = address.includes(':');
  return { link: select(device), address, ...(isIpv6 ? { noDad: true } : {}) };
}

function routeFields({ destination, device, gateway, metric, scope, protocol, onlink, table }: Route, select: Select) {
  return {
    destination,
    output: select(device),
    scope,
    protocol,
    ...(gateway === undefined ? {} : { gateway }),
    ...(metric === 0 ? {} : { metric }),
    ...(onlink && { onlink }),
    ...(table === undefined ? {} : { table }),
  };
}

function neighbourFields({ device, address, mac }: Neighbour, select: Select) {
  return { link: select(device), address, mac };
}
