/**
 * Observations of callers, and the invariants on them. A caller knows that it holds an address from the answer of its Allocate to
 * the sending of its Release; an unknown outcome (a call that failed may have been executed) it resolves like a container
 * runtime does, by releasing until that succeeds. A node that has leases holds an address for a pod from the moment it takes the
 * lease to the pod's DEL.
 */

/** One acknowledged allocation, from the caller's point of view. Times are of one monotonic clock, in milliseconds. */
export interface Hold {
  readonly attachment: string;
  readonly address: string;
  readonly acknowledgedMs: number;
  /** When its release was sent; undefined while it is held. */
  releaseSentMs: number | undefined;
  /** Whether no container ever had the address, so that it need not cool down. */
  isUnused: boolean;
}

/** The records of one caller after another. */
export class History {
  readonly holds: Hold[] = [];
  readonly #current = new Map<string, Hold>();
  readonly #violations: string[] = [];
  readonly outcomes = new Map<string, number>();

  allocated(attachment: string, address: string, atMs: number): void {
    const known = this.#current.get(attachment);
    if (known) {
      if (known.address !== address)
        this.#violations.push(`${attachment} held ${known.address} and was then given ${address}`);
      return;
    }
    const hold = { attachment, address, acknowledgedMs: atMs, releaseSentMs: undefined, isUnused: false };
    this.holds.push(hold);
    this.#current.set(attachment, hold);
  }

  releasing(attachment: string, atMs: number): void {
    const hold = this.#current.get(attachment);
    if (hold) hold.releaseSentMs = atMs;
    this.#current.delete(attachment);
  }

  /** The holder's container never came to have the address. */
  unused(attachment: string, atMs: number): void {
    const hold = this.#current.get(attachment);
    if (hold) hold.isUnused = true;
    this.releasing(attachment, atMs);
  }

  /** Counts the outcomes of calls, so that a run without faults, or without successes, is noticed. */
  count(outcome: string): void {
    this.outcomes.set(outcome, (this.outcomes.get(outcome) ?? 0) + 1);
  }

  /** How often an address was given that someone had before. */
  get reusesCount(): number {
    return this.holds.length - new Set(this.holds.map(({ address }) => address)).size;
  }

  /** The allocations that are held at the end, by attachment. */
  get held(): ReadonlyMap<string, string> {
    return new Map([...this.#current].map(([attachment, { address }]) => [attachment, address]));
  }

  /**
   * Every pair of callers that held one address at the same time, or within its cool-down, and every other contradiction.
   * @param cooldownMs - the least time from a release to the next allocation
   */
  violations(cooldownMs = 0): string[] {
    return [...this.#violations, ...overlaps(this.holds), ...earlyReuses(this.holds, cooldownMs)];
  }
}

function earlyReuses(holds: readonly Hold[], cooldownMs: number): string[] {
  const latest = new Map<string, Hold>();
  return holds
    .toSorted((a, b) => a.acknowledgedMs - b.acknowledgedMs)
    .flatMap((hold) => {
      const earlier = latest.get(hold.address);
      if (!hold.isUnused) latest.set(hold.address, hold);
      const pauseMs = earlier ? hold.acknowledgedMs - endOf(earlier) : cooldownMs;
      return pauseMs >= 0 && pauseMs < cooldownMs
        ? [`${hold.attachment} was given ${hold.address} ${Math.round(pauseMs)} ms after ${earlier?.attachment}`]
        : [];
    });
}

function overlaps(holds: readonly Hold[]): string[] {
  const latest = new Map<string, Hold>();
  return holds
    .toSorted((a, b) => a.acknowledgedMs - b.acknowledgedMs)
    .flatMap((hold) => {
      const earlier = latest.get(hold.address);
      if (!earlier || endOf(hold) > endOf(earlier)) latest.set(hold.address, hold);
      return earlier && endOf(earlier) > hold.acknowledgedMs
        ? [`${earlier.attachment} and ${hold.attachment} held ${hold.address} at the same time`]
        : [];
    });
}

function endOf({ releaseSentMs }: Hold): number {
  return releaseSentMs ?? Number.POSITIVE_INFINITY;
}
