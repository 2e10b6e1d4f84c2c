import type { Prefix } from '@podwire/shared/net/prefix';

/**
 * What keeps pods from sending from others' addresses where the settings of their interfaces cannot: IPv6 has no reverse-path
 * filter, and a pod may be allowed prefixes besides its own addresses.
 *
 * Every method fails with KERNEL_UNSUPPORTED or KERNEL_REFUSED; what was asked for is then in force later by itself.
 */
export interface PodGuard {
  /** Resolves when pods' IPv6 addresses are guarded. Idempotent. */
  ready(): Promise<void>;

  /**
   * Guards an interface of the node, there or not yet, and lets its pod send from these prefixes besides its own addresses; they
   * replace those before. Resolves when that is in force. Idempotent.
   */
  setSourcePrefixes(device: string, allowed: readonly Prefix[]): Promise<void>;

  /** Lets an interface go that is no more. Idempotent. */
  forget(device: string): Promise<void>;
}
