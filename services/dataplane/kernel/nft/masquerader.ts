import type { Family } from '@podwire/shared/net/address';

import type { ClusterChange, ClusterView, Follower } from '../../cluster/cluster.js';
import { planMasquerade, type Masquerade, type MasqueradeSettings } from '../../filters/masquerade.js';
import { TableKeeper, type TableKeeperOptions } from '../../filters/table-reconciler.js';
import type { Condition } from '../../routes/wanted.js';
import { masqueradeTable, masqueradeTableName } from './masquerade-table.js';

export interface MasqueraderOptions extends Omit<TableKeeperOptions, 'table'> {
  readonly settings: MasqueradeSettings;
}

const FAMILIES: readonly Family[] = [4, 6];

/**
 * Keeps the tables `ip podwire` and `ip6 podwire` so that packets of pools with `natOutgoing` leave with the node's address. A
 * family without such a pool has no table. Where it cannot be had, pods go on without, and {@link conditions} say why.
 */
export class Masquerader implements Follower {
  readonly #settings: MasqueradeSettings;
  readonly #keepers: Readonly<Record<Family, TableKeeper>>;
  #plans: Readonly<Record<Family, Masquerade | undefined>> | undefined;

  constructor({ settings, ...options }: MasqueraderOptions) {
    this.#settings = settings;
    const keeper = (family: Family) => new TableKeeper({ ...options, table: masqueradeTableName(family) });
    this.#keepers = { 4: keeper(4), 6: keeper(6) };
  }

  follow(view: ClusterView, change: ClusterChange): void {
    // Blocks say nothing about what is masqueraded.
    if (this.#plans && !change.others) return;
    const plans = planMasquerade(view, this.#settings);
    this.#plans = plans;
    for (const family of FAMILIES) {
      const plan = plans[family];
      // The keeper tells of failures, and tries again.
      void this.#keepers[family].want(plan ? masqueradeTable(plan) : 'absent').catch(() => undefined);
    }
  }

  /** Why it is not as wanted; empty when it is. */
  conditions(): readonly Condition[] {
    return FAMILIES.flatMap((family) => {
      const failure = this.#keepers[family].failure;
      if (!failure) return [];
      const message = `pods of pools with natOutgoing send IPv${family} packets with their own addresses: ${failure.message}`;
      return [{ reason: 'MasqueradeUnavailable', message }];
    });
  }

  async stop(): Promise<void> {
    await Promise.all(FAMILIES.map((family) => this.#keepers[family].stop()));
  }
}
