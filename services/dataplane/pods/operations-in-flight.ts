import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { failureOfSignal } from '@podwire/shared/failure/signal';
import { withAttachment } from '@podwire/shared/runtime/log';
import { withSpan } from '@podwire/shared/runtime/span';

import type { NetnsIdentity } from './kernel.js';

/** What is locked for a piece of work. */
export interface Place {
  /** Undefined: nobody's yet. */
  readonly attachment: Attachment | undefined;
  readonly hostInterfaceName: string;
}

/** What is under way for pods: one piece of work at a time for each attachment, each host interface and each pod. */
export class UnderWay {
  readonly #attachmentLock = new KeyedLock();
  /** By name of the host interface, within the attachment's lock: a link that is not noted yet is known by its name alone. */
  readonly #nameLock = new KeyedLock(null);
  /** By the pod's namespace, within the other two. */
  readonly #podLock = new KeyedLock(null);
  /** How many calls are to wire an attachment. */
  readonly #wirings = new Map<string, number>();
  readonly #work = new Set<Promise<unknown>>();

  /**
   * Runs `work` as the only one for an attachment and the name of a host interface; without an attachment, for the name alone.
   * @throws Failure the signal's, and whatever `work` throws
   */
  alone<Answer>(place: Place, signal: AbortSignal, work: () => Promise<Answer>): Promise<Answer> {
    const { attachment, hostInterfaceName } = place;
    const named = (): Promise<Answer> => this.#nameLock.run(hostInterfaceName, signal, work);
    const call = attachment
      ? withAttachment(attachment, () => this.#attachmentLock.run(formatAttachment(attachment), signal, named))
      : named();
    this.track(call);
    return call;
  }

  /** The same for a call that is to wire the attachment. */
  wiring<Answer>(
    place: Place & { readonly attachment: Attachment },
    signal: AbortSignal,
    work: () => Promise<Answer>,
  ): Promise<Answer> {
    const key = formatAttachment(place.attachment);
    this.#wirings.set(key, (this.#wirings.get(key) ?? 0) + 1);
    const done = (): void => {
      const left = (this.#wirings.get(key) ?? 0) - 1;
      if (left > 0) this.#wirings.set(key, left);
      else this.#wirings.delete(key);
    };
    const call = this.alone(place, signal, work);
    call.then(done, done);
    return call;
  }

  /** Runs `work` as the only one in a pod: settings of the whole namespace that one puts back must not be another's by then. */
  inPod<Answer>({ device, inode }: NetnsIdentity, signal: AbortSignal, work: () => Promise<Answer>): Promise<Answer> {
    return this.#podLock.run(`${device} ${inode}`, signal, work);
  }

  /** Counts work until it ends, whatever comes of it. */
  track(work: Promise<unknown>): void {
    this.#work.add(work);
    const done = (): void => void this.#work.delete(work);
    work.then(done, done);
  }

  /** Whether anything for the attachment is under way, or waits: a call, or upkeep. */
  isBusy(attachment: Attachment): boolean {
    return this.#attachmentLock.isHeld(formatAttachment(attachment));
  }

  /** The attachments, formatted, that calls are wiring, or wait to wire, at the moment. */
  wirings(): ReadonlySet<string> {
    return new Set(this.#wirings.keys());
  }

  /** Whether a call that wires the attachment is under way, or waits. */
  isWiring(attachment: Attachment): boolean {
    return this.#wirings.has(formatAttachment(attachment));
  }

  /** Resolves when nothing is under way any more. */
  async idle(): Promise<void> {
    while (this.#work.size > 0) await Promise.allSettled(this.#work);
  }
}

/** Lets one at a time work under a key, in the order in which they came. Different keys do not wait for each other. */
export class KeyedLock {
  /** A key that is held has an entry: those who wait for it, first come first. */
  readonly #waiting = new Map<string, (() => void)[]>();
  readonly #span: string | null;

  /** @param span - name of the span that the waiting is, where there is any; null for none */
  constructor(span: string | null = 'podwire.dataplane.lock_wait') {
    this.#span = span;
  }

  /**
   * Runs `work` as the only one under the key.
   * @param signal - ends the waiting; once `work` runs, ending it is its own affair
   * @throws Failure the signal's, and whatever `work` throws
   */
  async run<Result>(key: string, signal: AbortSignal, work: () => Promise<Result>): Promise<Result> {
    if (signal.aborted) throw failureOfSignal(signal);
    const waiting = this.#waiting.get(key);
    if (waiting) await this.#traced(() => turnOf(waiting, signal));
    else this.#waiting.set(key, []);
    try {
      return await work();
    } finally {
      this.#release(key);
    }
  }

  isHeld(key: string): boolean {
    return this.#waiting.has(key);
  }

  /** Number of keys that are held. */
  get held(): number {
    return this.#waiting.size;
  }

  #traced(wait: () => Promise<void>): Promise<void> {
    return this.#span === null ? wait() : withSpan(this.#span, {}, wait);
  }

  #release(key: string): void {
    const next = this.#waiting.get(key)?.shift();
    if (next) next();
    else this.#waiting.delete(key);
  }
}

/** Resolves when it is the turn of this one, the last of those who wait so far. @throws Failure the signal's */
function turnOf(waiting: (() => void)[], signal: AbortSignal): Promise<void> {
  return new Promise<void>((resolve, reject) => {
    const myTurn = () => {
      signal.removeEventListener('abort', giveUp);
      resolve();
    };
    const giveUp = () => {
      waiting.splice(waiting.indexOf(myTurn), 1);
      reject(failureOfSignal(signal));
    };
    waiting.push(myTurn);
    signal.addEventListener('abort', giveUp, { once: true });
  });
}
