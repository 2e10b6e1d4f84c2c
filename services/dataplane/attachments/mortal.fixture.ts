import type { BatchOutcome, Kernel, PodSession } from '../pods/kernel.js';
import type { Step } from '../wiring/step.js';

/** The kernel as a process sees it that is killed after so many changes: from then on nothing is done, and nothing answered. */
export function mortal(kernel: Kernel, changes: number): { readonly kernel: Kernel; readonly died: Promise<void> } {
  let remaining = changes;
  const death = new AbortController();
  const died = new Promise<void>((resolve) => death.signal.addEventListener('abort', () => resolve(), { once: true }));
  // What a process has open is closed when it dies; a namespace would outlive its pod otherwise.
  const open = new Set<PodSession>();
  const never = <Answer>(): Promise<Answer> => {
    death.abort();
    for (const session of open) void session.close();
    open.clear();
    return new Promise(() => undefined);
  };
  const asking = <Answer>(ask: () => Promise<Answer>): Promise<Answer> => (death.signal.aborted ? never() : ask());

  async function apply(session: PodSession, steps: readonly Step[]): Promise<BatchOutcome> {
    if (death.signal.aborted) return never();
    const reached = steps.slice(0, remaining);
    remaining -= reached.length;
    const outcome = await session.apply(reached);
    return reached.length < steps.length && !outcome.failed ? never() : outcome;
  }

  const mortalKernel: Kernel = {
    probe: () => asking(() => kernel.probe()),
    open: (netns) =>
      asking(async () => {
        const session = await kernel.open(netns);
        open.add(session);
        return {
          identity: session.identity,
          observe: (wanted) => asking(() => session.observe(wanted)),
          podLink: (name) => asking(() => session.podLink(name)),
          rules: (table) => asking(() => session.rules(table)),
          strayRules: () => asking(() => session.strayRules()),
          apply: (steps) => apply(session, steps),
          close: () => {
            open.delete(session);
            return asking(() => session.close());
          },
        };
      }),
    identify: (netns) => asking(() => kernel.identify(netns)),
    hostLink: (name) => asking(() => kernel.hostLink(name)),
    veths: () => asking(() => kernel.veths()),
    attached: () => asking(() => kernel.attached()),
    forgetFlows: (address) => asking(() => kernel.forgetFlows(address)),
    renameHostLink: (link, name) => asking(() => (remaining-- > 0 ? kernel.renameHostLink(link, name) : never())),
    deleteHostLink: (link) => asking(() => (remaining-- > 0 ? kernel.deleteHostLink(link) : never())),
    close: () => Promise.resolve(),
  };
  return { kernel: mortalKernel, died };
}
