import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { withAttachment } from '@podwire/shared/runtime/log';
import { withSpan } from '@podwire/shared/runtime/span';

import type { Events } from './events.js';
import type { AttachedLink, Kernel, PodSession } from './kernel/kernel.js';
import { transact, type Applied, type TransactionOptions } from './kernel/transaction.js';
import { KeyedLock } from './lock.js';
import { desired, type Wanted } from './plan/desired.js';
import { corrections, diff, differences, type Difference } from './plan/diff.js';
import type { Observed, ObservedLink } from './plan/observed.js';
import type { PodNetwork } from './plan/pod-network.js';
import { toBatches } from './plan/step.js';
import { hostInterfaceTaken, isMadeFor, nothingObserved, obstacleTo } from './plan/wire.js';

export interface Attached {
  readonly host: ObservedLink;
  readonly pod: ObservedLink;
  /** Number of changes that were made; 0 when everything was as wanted. */
  readonly changes: number;
}

export interface Detachment {
  readonly attachment: Attachment;
  readonly hostInterfaceName: string;
}

export interface Page {
  readonly limit: number;
  /** Only links whose names come after this one; empty for the first page. */
  readonly after: string;
}

export interface AttachedPage {
  readonly links: readonly AttachedLink[];
  /** Name of the last link when others follow. */
  readonly last: string | undefined;
}

/**
 * Makes the kernel match what is wanted for pods: observe, plan, apply.
 *
 * What makes this hard:
 * - Nobody but the kernel knows what is there: the service may have been killed between any two steps, and people and other
 *   programs change interfaces too. So nothing is remembered; the attachment is recorded on its host interface.
 * - Nearly every pod is new, and looking first would cost more than it finds. The veth pair's creation is exclusive, so its
 *   success says that nothing was there; only its refusal makes it worth looking.
 * - A failure may come at any step, and what was done until then must go while the attachment's lock is still held, or
 *   another call would build on what is about to vanish.
 */
export class Dataplane {
  readonly #kernel: Kernel;
  readonly #events: Events;
  readonly #lock = new KeyedLock();
  readonly #underWay = new Set<Promise<unknown>>();

  constructor({ kernel, events }: { readonly kernel: Kernel; readonly events: Events }) {
    this.#kernel = kernel;
    this.#events = events;
  }

  /**
   * Wires a pod as wanted. Idempotent. When it fails nothing has changed, or the message says what is left.
   * @throws Failure INVALID_NETNS, INTERFACE_EXISTS, HOST_INTERFACE_TAKEN, ROUTE_TAKEN, KERNEL_REFUSED, KERNEL_UNSUPPORTED, or
   *   the signal's
   */
  attach(network: PodNetwork, signal: AbortSignal): Promise<Attached> {
    return this.#alone(network.attachment, signal, () =>
      this.#inPod(network.netns, async (session) => {
        const attached = await this.#wire(session, { wanted: desired(network), signal });
        this.#events.attached(network.hostInterfaceName, attached.changes);
        return attached;
      }),
    );
  }

  /**
   * Removes an attachment's wire, found by its host end, so that it works when the pod's namespace is gone. Idempotent.
   * @returns whether there was one
   * @throws Failure HOST_INTERFACE_TAKEN when the interface was not made for the attachment; KERNEL_REFUSED, or the signal's
   */
  detach({ attachment, hostInterfaceName }: Detachment, signal: AbortSignal): Promise<boolean> {
    return this.#alone(attachment, signal, async () => {
      const link = await this.#kernel.hostLink(hostInterfaceName);
      if (link && !isMadeFor(link, attachment)) throw hostInterfaceTaken(link);
      const removed = link !== undefined && (await this.#delete(link));
      this.#events.detached(hostInterfaceName, removed);
      return removed;
    });
  }

  /**
   * Compares the kernel with what is wanted, and changes nothing.
   * @throws Failure INVALID_NETNS, KERNEL_REFUSED, or the signal's
   */
  check(network: PodNetwork, signal: AbortSignal): Promise<Difference[]> {
    return this.#alone(network.attachment, signal, () =>
      this.#inPod(network.netns, async (session) => {
        const wanted = desired(network);
        const observed = await observe(session, wanted);
        const obstacle = obstacleTo(wanted, observed);
        const found = obstacle
          ? [{ object: obstacle.object, wanted: 'this attachment’s', actual: obstacle.actual }]
          : differences(wanted, observed);
        this.#events.checked(network.attachment, found);
        return found;
      }),
    );
  }

  /** The attachments that the kernel holds, in the order of their host interfaces' names. */
  async list({ limit, after }: Page): Promise<AttachedPage> {
    const all = await this.#kernel.attached();
    const following = all.filter(({ link }) => link.name > after);
    const links = following.slice(0, limit);
    return { links, last: following.length > limit ? links.at(-1)?.link.name : undefined };
  }

  /** Resolves when no call is under way any more, undoing included: the kernel can be let go. */
  async idle(): Promise<void> {
    while (this.#underWay.size > 0) await Promise.allSettled(this.#underWay);
  }

  async #wire(session: PodSession, { wanted, signal }: Order): Promise<Attached> {
    const first = await transact({ session, signal, next: freshPlan(session, wanted) });
    if (first.applied) return this.#finish(first);
    if (first.errno !== 'EEXIST' || !first.undone) throw first.failure;

    const observed = await observe(session, wanted);
    const obstacle = obstacleTo(wanted, observed);
    if (obstacle) throw obstacle.failure;
    const steps = diff(wanted, observed);
    const next: Plan = ({ round, links }) => (round === 0 ? steps : corrections(wanted, links));
    const second = await transact({ session, signal, next });
    if (!second.applied) throw second.failure;
    this.#reportTakeovers(wanted, observed);
    return this.#finish(second, observed);
  }

  /** @param observed - what was there before; undefined when it was nothing */
  #finish({ changes, links, warnings }: Applied, observed?: Observed): Attached {
    for (const { step, failure } of warnings) this.#events.optionalStepFailed(step, failure);
    const host = links.host ?? observed?.host.link;
    const pod = links.pod ?? observed?.pod.link;
    if (!host || !pod) throw new Error('a plan that was carried out leaves both links');
    return { host, pod, changes };
  }

  #reportTakeovers(wanted: Wanted, { host }: Observed): void {
    for (const { destination } of wanted.host.routes) {
      const taken = host.routes.find((route) => route.destination === destination);
      if (taken?.device !== undefined && taken.device !== null && taken.device !== wanted.host.link.name) {
        this.#events.routeTakenOver(destination, taken.device);
      }
    }
  }

  #delete(link: ObservedLink): Promise<boolean> {
    const attributes = { 'podwire.kernel.namespace': 'host', 'podwire.kernel.requests': 1 };
    return withSpan('podwire.kernel.batch', attributes, () => this.#kernel.deleteHostLink(link));
  }

  async #alone<Answer>(attachment: Attachment, signal: AbortSignal, work: () => Promise<Answer>): Promise<Answer> {
    const call = withAttachment(attachment, () => this.#lock.run(formatAttachment(attachment), signal, work));
    this.#underWay.add(call);
    try {
      return await call;
    } finally {
      this.#underWay.delete(call);
    }
  }

  async #inPod<Answer>(netns: string, work: (session: PodSession) => Promise<Answer>): Promise<Answer> {
    const session = await withSpan('podwire.kernel.open', {}, () => this.#kernel.open(netns));
    try {
      return await work(session);
    } finally {
      await session.close();
    }
  }
}

type Plan = TransactionOptions['next'];

/**
 * The plan for a pod of which nothing is there. The node's end does not depend on anything in the pod's namespace, so the one
 * value that has to be read there is read meanwhile.
 */
function freshPlan(session: PodSession, wanted: Wanted): Plan {
  const keys = wanted.pod.sysctls.filter((sysctl) => sysctl.device === undefined).map((sysctl) => sysctl.key);
  const reading = session.podSysctls(keys);
  // Awaited in the second round; a failure must not count as unhandled before, or when there is none.
  reading.catch(() => undefined);
  const [hostBatch] = toBatches(diff(wanted, nothingObserved(new Map())));
  const hostSteps = hostBatch?.steps ?? [];
  return async ({ round, links }) => {
    if (round === 0) return hostSteps;
    if (round === 1) return diff(wanted, nothingObserved(await reading)).slice(hostSteps.length);
    return corrections(wanted, links);
  };
}

interface Order {
  readonly wanted: Wanted;
  readonly signal: AbortSignal;
}

function observe(session: PodSession, wanted: Wanted): Promise<Observed> {
  return withSpan('podwire.kernel.observe', {}, () => session.observe(wanted));
}
