import { Failure } from '@podwire/shared/failure/failure';

import type { BatchOutcome, Kernel, PodSession } from '../pods/kernel.js';
import type { Step } from '../wiring/step.js';

/** A kernel in front of another one that counts steps and can refuse one of them. */
export interface InterceptedKernel extends Kernel {
  /** Steps that were carried out so far. */
  readonly finished: readonly Step[];
  /** Refuses the step that comes after this many more were carried out, once. */
  refuseAfter(steps: number): void;
  /** Whether the refusal was used. */
  readonly refused: boolean;
}

export function intercept(kernel: Kernel): InterceptedKernel {
  const finished: Step[] = [];
  let remaining = Number.POSITIVE_INFINITY;
  let refused = false;

  async function apply(session: PodSession, steps: readonly Step[]): Promise<BatchOutcome> {
    const outcome = await session.apply(steps.slice(0, remaining));
    finished.push(...outcome.finished);
    const step = steps[remaining];
    if (outcome.failed || !step) {
      remaining -= steps.length;
      return outcome;
    }
    remaining = Number.POSITIVE_INFINITY;
    refused = true;
    return {
      ...outcome,
      failed: { step, errno: 'EIO', failure: new Failure('KERNEL_REFUSED', 'refused by the test') },
    };
  }

  return {
    finished,
    get refused() {
      return refused;
    },
    refuseAfter: (steps) => {
      remaining = steps;
      refused = false;
    },
    probe: () => kernel.probe(),
    open: async (netns) => {
      const session = await kernel.open(netns);
      return {
        identity: session.identity,
        observe: (wanted) => session.observe(wanted),
        podLink: (name) => session.podLink(name),
        rules: (table) => session.rules(table),
        strayRules: () => session.strayRules(),
        apply: (steps) => apply(session, steps),
        close: () => session.close(),
      };
    },
    identify: (netns) => kernel.identify(netns),
    veths: () => kernel.veths(),
    hostLink: (name) => kernel.hostLink(name),
    renameHostLink: (link, name) => kernel.renameHostLink(link, name),
    deleteHostLink: (link) => kernel.deleteHostLink(link),
    attached: () => kernel.attached(),
    forgetFlows: (address) => kernel.forgetFlows(address),
    close: () => kernel.close(),
  };
}
