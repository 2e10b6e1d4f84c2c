import type { Prefix } from '@podwire/shared/net/prefix';

import { GUARD_TABLE, guardDelta, guardTable, hasOtherName, type SourcePrefixes } from '../../filters/source-guard.js';
import { TableKeeper, type TableKeeperOptions } from '../../filters/table-reconciler.js';
import type { Condition } from '../../routes/wanted.js';

/**
 * Keeps the table `inet podwire`, by which a pod cannot send from addresses that are not its own. Interfaces with names of
 * Podwire's are guarded without being known; nothing is done for a pod that has nothing but its addresses.
 */
export class SourceGuard {
  readonly #keeper: TableKeeper;
  #prefixes: SourcePrefixes = new Map();

  constructor(options: Omit<TableKeeperOptions, 'table'>) {
    this.#keeper = new TableKeeper({ ...options, table: GUARD_TABLE });
  }

  /**
   * Puts the table in force for the interfaces that there are when the service starts. Called once, before any pod is wired.
   * @param prefixes - of every interface that has some, or a name that does not begin with Podwire's prefix
   * @throws Failure KERNEL_UNSUPPORTED or KERNEL_REFUSED; it is tried again by itself
   */
  start(prefixes: SourcePrefixes): Promise<void> {
    this.#prefixes = new Map([...prefixes].filter(([device, allowed]) => isKept(device, allowed)));
    return this.#keeper.want(guardTable(this.#prefixes));
  }

  /**
   * Resolves when the table is in force, as it is before a pod with IPv6 addresses is wired. Where it is, nobody waits for what
   * other pods have asked for.
   * @throws Failure KERNEL_UNSUPPORTED or KERNEL_REFUSED
   */
  ready(): Promise<void> {
    return this.#keeper.isInForce ? Promise.resolve() : this.#keeper.want(guardTable(this.#prefixes));
  }

  /**
   * Guards an interface, there or not yet, and lets its pod send from some prefixes besides its own addresses; they replace
   * those it was allowed before. Resolves when that is in force: before the interface is up. Idempotent; for a name that begins
   * with Podwire's prefix, and no prefixes before and after, nothing is done.
   * @throws Failure KERNEL_UNSUPPORTED or KERNEL_REFUSED; then it is in force later, unless {@link forget} comes first
   */
  setSourcePrefixes(device: string, allowed: readonly Prefix[]): Promise<void> {
    return this.#set(device, isKept(device, allowed) ? allowed : undefined);
  }

  /** Lets an interface go that is no more. Idempotent. @throws Failure as {@link setSourcePrefixes} */
  forget(device: string): Promise<void> {
    return this.#set(device, undefined);
  }

  /** Why it is not as wanted; empty when it is. */
  conditions(): readonly Condition[] {
    const failure = this.#keeper.failure;
    if (!failure) return [];
    const message = `pods with IPv6 addresses or source prefixes are refused, and IPv4 pods reach services on the node’s 127.0.0.1, as nftables cannot filter what pods send: ${failure.message}`;
    return [{ reason: 'SourceGuardUnavailable', message, defeats: [6] }];
  }

  /** Leaves the table in force. */
  stop(): Promise<void> {
    return this.#keeper.stop();
  }

  async #set(device: string, allowed: readonly Prefix[] | undefined): Promise<void> {
    const before = this.#prefixes.get(device);
    if (before === undefined && allowed === undefined) return;
    const delta = guardDelta(device, before, allowed);
    const prefixes = new Map(this.#prefixes);
    if (allowed) prefixes.set(device, allowed);
    else prefixes.delete(device);
    this.#prefixes = prefixes;
    await this.#keeper.want(guardTable(prefixes), delta);
  }
}

function isKept(device: string, allowed: readonly Prefix[]): boolean {
  return allowed.length > 0 || hasOtherName(device);
}
