import type { AllocatedAddress } from '@podwire/shared/attachment/allocation';
import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';

/** Most known attachments: more than the pods of a node. */
const MAX_COUNT = 4096;

/** The addresses of an attachment, or why it has none. */
type Known = readonly AllocatedAddress[] | 'unrequested' | 'refused';

/**
 * Allocations of the ADDs of this process without a record of the node: allocations of other IPAM plugins, and of podwire-ipam under
 * another plugin. So a delayed DEL releases that allocation and no later one. Only in memory: persisting it would slow down every
 * ADD.
 */
export class KnownAllocations {
  /** Oldest first. */
  readonly #known = new Map<string, Known>();

  record(attachment: Attachment, held: readonly AllocatedAddress[]): void {
    this.#set(attachment, held);
  }

  /** An ADD is about to request addresses: clears the record of an earlier failure. */
  clearFailure(attachment: Attachment): void {
    if (!this.of(attachment)) this.#known.delete(formatAttachment(attachment));
  }

  /** An ADD failed before it called a provider: its DEL has nothing to release, unless an earlier ADD got addresses. */
  recordUnrequested(attachment: Attachment): void {
    if (!this.#known.has(formatAttachment(attachment))) this.#set(attachment, 'unrequested');
  }

  wasUnrequested(attachment: Attachment): boolean {
    return this.#known.get(formatAttachment(attachment)) === 'unrequested';
  }

  /** A delegate answered an ADD with an error, and there is no wire. By CNI it holds no address, but it may violate that. */
  recordRefused(attachment: Attachment): void {
    if (!this.of(attachment)) this.#set(attachment, 'refused');
  }

  wasRefused(attachment: Attachment): boolean {
    return this.#known.get(formatAttachment(attachment)) === 'refused';
  }

  #set(attachment: Attachment, known: Known): void {
    const key = formatAttachment(attachment);
    this.#known.delete(key);
    this.#known.set(key, known);
    const [oldest] = this.#known.keys();
    if (this.#known.size > MAX_COUNT && oldest !== undefined) this.#known.delete(oldest);
  }

  /** @returns undefined if unknown or none */
  of(attachment: Attachment): readonly AllocatedAddress[] | undefined {
    const held = this.#known.get(formatAttachment(attachment));
    return typeof held === 'string' ? undefined : held;
  }

  /** A DEL is done. The reason for having no addresses stays recorded, as the DEL may be repeated. */
  forget(attachment: Attachment): void {
    if (this.of(attachment)) this.#known.delete(formatAttachment(attachment));
  }
}
