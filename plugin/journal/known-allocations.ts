import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';

import type { HeldAddress } from '../clients/clients.js';

/** More than nodes have pods. */
const MAX_COUNT = 4096;

/**
 * Which allocation the ADDs of this process got, so that a DEL that reaches IPAM late gives back that one and no later one. In
 * memory alone: what is not known costs a proof, and writing it down would cost every ADD.
 */
export class KnownAllocations {
  /** The oldest first. */
  readonly #held = new Map<string, readonly HeldAddress[]>();

  remember(attachment: Attachment, held: readonly HeldAddress[]): void {
    const key = formatAttachment(attachment);
    this.#held.delete(key);
    this.#held.set(key, held);
    const [oldest] = this.#held.keys();
    if (this.#held.size > MAX_COUNT && oldest !== undefined) this.#held.delete(oldest);
  }

  /** @returns undefined when it is not known */
  of(attachment: Attachment): readonly HeldAddress[] | undefined {
    return this.#held.get(formatAttachment(attachment));
  }

  forget(attachment: Attachment): void {
    this.#held.delete(formatAttachment(attachment));
  }
}
