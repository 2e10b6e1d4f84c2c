import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { failureOfSignal } from '@podwire/shared/failure/signal';
import { withAttachment } from '@podwire/shared/runtime/log';
import { withSpan } from '@podwire/shared/telemetry/span';
import type { NamespaceIdentity } from '../records/record.js';

/** Lock keys of an operation. */
export interface LockKeys {
  /** Undefined: the link has no attachment yet. */
  readonly attachment: Attachment | undefined;
  readonly hostInterfaceName: string;
}

/** Operations in flight: one at a time for each attachment, each host interface and each pod. */
export class OperationsInFlight {
  readonly #attachmentLock = new KeyedLock();
  /** Lock by host interface name, taken inside the attachment's lock: a link without an alias is known by its name alone. */
  readonly #nameLock = new KeyedLock(null);
  /** Lock by the pod's namespace, taken inside the other two locks. */
  readonly #podLock = new KeyedLock(null);
  /** Number of wiring calls per attachment. */
  readonly #wirings = new Map<string, number>();
  readonly #work = new Set<Promise<unknown>>();

  /**
   * Runs `work` exclusively for an attachment and a host interface name; without an attachment, for the name alone.
   * @throws Failure the signal's, and any error of `work`
   */
  runExclusive<Answer>(place: LockKeys, signal: AbortSignal, work: () => Promise<Answer>): Promise<Answer> {
    const { attachment, hostInterfaceName } = place;
    const named = (): Promise<Answer> => this.#nameLock.run(hostInterfaceName, signal, work);
    const call = attachment
      ? withAttachment(attachment, () => this.#attachmentLock.run(formatAttachment(attachment), signal, named))
      : named();
    this.track(call);
    return call;
  }

  /** The same for a call that is to wire the attachment. */
  runWiring<Answer>(
    place: LockKeys & { readonly attachment: Attachment },
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
    const call = this.runExclusive(place, signal, work);
    call.then(done, done);
    return call;
  }

  /** Runs `work` exclusively in a pod: a rollback of namespace-wide settings must not overwrite another interface's change. */
  runInPod<Answer>(
    { device, inode }: NamespaceIdentity,
    signal: AbortSignal,
    work: () => Promise<Answer>,
  ): Promise<Answer> {
    return this.#podLock.run(`${device} ${inode}`, signal, work);
  }

  /** Counts work until it settles. */
  track(work: Promise<unknown>): void {
    this.#work.add(work);
    const done = (): void => void this.#work.delete(work);
    work.then(done, done);
  }

  /** Whether an operation for the attachment is running or queued: a call, or a repair. */
  isBusy(attachment: Attachment): boolean {
    return this.#attachmentLock.isHeld(formatAttachment(attachment));
  }

  /** The formatted attachments whose wiring calls are running or queued. */
  wiringAttachments(): ReadonlySet<string> {
    return new Set(this.#wirings.keys());
  }

  /** Whether a wiring call for the attachment is running or queued. */
  isWiring(attachment: Attachment): boolean {
    return this.#wirings.has(formatAttachment(attachment));
  }

  /** Resolves when nothing is in flight. */
  async idle(): Promise<void> {
    while (this.#work.size > 0) await Promise.allSettled(this.#work);
  }
}

/** A lock per key, granted first come, first served. Different keys are independent. */
export class KeyedLock {
  /** A held key has an entry: its waiters in order of arrival. */
  readonly #waiting = new Map<string, (() => void)[]>();
  readonly #span: string | null;

  /** @param span - name of the span that covers the wait; null for none */
  constructor(span: string | null = 'podwire.dataplane.lock_wait') {
    this.#span = span;
  }

  /**
   * Runs `work` exclusively under the key.
   * @param signal - cancels the wait; `work` handles its own cancellation
   * @throws Failure the signal's, and any error of `work`
   */
  async run<Result>(key: string, signal: AbortSignal, work: () => Promise<Result>): Promise<Result> {
    if (signal.aborted) throw failureOfSignal(signal);
    const waiting = this.#waiting.get(key);
    if (waiting) await this.#traced(() => waitForTurn(waiting, signal));
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
  get heldCount(): number {
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

/** Appends a waiter, and resolves when its turn comes. @throws Failure the signal's */
function waitForTurn(waiting: (() => void)[], signal: AbortSignal): Promise<void> {
  return new Promise<void>((resolve, reject) => {
    const grant = () => {
      signal.removeEventListener('abort', onAbort);
      resolve();
    };
    const onAbort = () => {
      waiting.splice(waiting.indexOf(grant), 1);
      reject(failureOfSignal(signal));
    };
    waiting.push(grant);
    signal.addEventListener('abort', onAbort, { once: true });
  });
}
