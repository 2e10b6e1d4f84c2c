import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';

import type { HeldAddress } from '../clients/clients.js';

/** More than nodes have pods. */
const MAX_COUNT = 4096;

/** What is known of an attachment: its addresses, or why there are none. */
type Known = readonly HeldAddress[] | 'nobody asked' | 'refused';

/**
 * Which allocation the ADDs of this process got, so that a DEL that reaches IPAM late gives back that one and no later one. In
 * memory alone: what is not known costs a proof, and writing it down would cost every ADD.
 */
export class KnownAllocations {
  /** The oldest first. */
  readonly #held = new Map<string, Known>();

  remember(attachment: Attachment, held: readonly HeldAddress[]): void {
    this.#note(attachment, held);
  }

  /** An ADD is about to request addresses: clears the record of an earlier failure. */
  rememberAsked(attachment: Attachment): void {
    if (!this.of(attachment)) this.#held.delete(formatAttachment(attachment));
  }

  /** An ADD failed before it called a provider: its DEL has nothing to release, unless an earlier ADD got addresses. */
  rememberNobodyAsked(attachment: Attachment): void {
    if (!this.#held.has(formatAttachment(attachment))) this.#note(attachment, 'nobody asked');
  }

  wasNobodyAsked(attachment: Attachment): boolean {
    return this.#held.get(formatAttachment(attachment)) === 'nobody asked';
  }

  /** Another IPAM plugin answered an ADD with an error, and there is no wire: by CNI it holds nothing, though it need not be true. */
  rememberRefused(attachment: Attachment): void {
    if (!this.of(attachment)) this.#note(attachment, 'refused');
  }

  wasRefused(attachment: Attachment): boolean {
    return this.#held.get(formatAttachment(attachment)) === 'refused';
  }

  #note(attachment: Attachment, held: Known): void {
    const key = formatAttachment(attachment);
    this.#held.delete(key);
    this.#held.set(key, held);
    const [oldest] = this.#held.keys();
    if (this.#held.size > MAX_COUNT && oldest !== undefined) this.#held.delete(oldest);
  }

  /** @returns undefined when it is not known */
  of(attachment: Attachment): readonly HeldAddress[] | undefined {
    const held = this.#held.get(formatAttachment(attachment));
    return typeof held === 'string' ? undefined : held;
  }

  /** A DEL is done. An empty allocation stays recorded, as the DEL may be repeated. */
  forget(attachment: Attachment): void {
    if (this.of(attachment)) this.#held.delete(formatAttachment(attachment));
  }
}
