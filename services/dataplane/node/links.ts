import type { NodeSysctl } from '../routes/wanted.js';

/** A link of the node, as far as the MTU of pods depends on it. */
export interface NodeLink {
  readonly name: string;
  readonly mtuBytes: number;
  /** The administrator's wish. */
  readonly up: boolean;
}

/**
 * The node's links, and changes of them. Implementations: netlink, and memory (the fake); both pass `link-source.contract.ts`.
 *
 * Every method fails with KERNEL_REFUSED when the kernel refuses or cannot be asked, and with KERNEL_UNSUPPORTED when it lacks what
 * is to be written.
 */
export interface LinkSource {
  /** Result: all links, or a failure. Idempotent. */
  links(): Promise<readonly NodeLink[]>;

  /**
   * Tells the names of links that are made, changed or removed, whoever does it, from the moment when the promise resolves.
   * Result: a watch, which the caller closes. The listener must not throw.
   */
  watch(listener: LinkListener): Promise<LinkWatch>;

  /**
   * Reads settings of the node (`sysctl KEY…`).
   * Result: for each key in its order the value, or null when there is no such key. Idempotent.
   */
  readSysctls(keys: readonly NodeSysctl['key'][]): Promise<readonly (string | null)[]>;

  /**
   * Writes settings of the node in their order (`sysctl -w KEY=VALUE…`), all that can be written.
   * Result: nothing, or a failure that tells the first that was refused. Idempotent.
   */
  writeSysctls(settings: readonly NodeSysctl[]): Promise<void>;

  /** Calls that come later fail; watches end. Idempotent. */
  close(): Promise<void>;
}

export interface LinkListener {
  /** @param name - undefined when changes were lost: any link may be another */
  readonly changed: (name: string | undefined) => void;
  /** The watch has ended by itself, once, and tells nothing any more; it may do so before {@link LinkSource.watch} resolves. */
  readonly ended: () => void;
}

export interface LinkWatch {
  /** Nothing is told any more. Idempotent. */
  close(): void;
}
