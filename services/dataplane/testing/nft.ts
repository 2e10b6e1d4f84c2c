import { parsePrefix, type Prefix } from '@podwire/shared/net/prefix';
import { ManualClock } from '@podwire/shared/testing/manual-clock';
import { expect, vi } from 'vitest';

import { NetlinkNft } from '../kernel/netlink-nft.js';
import { ProgramNft } from '../nft/nft-program.js';
import type { TableEvents, TableReconcilerOptions } from '../nft/table-reconciler.js';
import type { Nft } from '../nft/nft.js';
import { TABLES } from '../removal.js';

export function prefix(text: string): Prefix {
  const parsed = parsePrefix(text);
  if (!parsed.ok) throw new Error(`${text} ${parsed.fault}`);
  return parsed.prefix;
}

/** Nftables of this process's network namespace. */
export function kernelNft(): NetlinkNft {
  return new NetlinkNft(new ProgramNft(), TABLES);
}

/** Events as lines. */
export class RecordedEvents implements TableEvents {
  readonly lines: string[] = [];

  tableWritten(table: string, reason: string): void {
    this.lines.push(`${table} written: ${reason}`);
  }

  tableFailed(table: string, failure: Error): void {
    this.lines.push(`${table} failed: ${failure.message}`);
  }

  tableRecovered(table: string): void {
    this.lines.push(`${table} recovered`);
  }

  /** The lines since the last call. */
  takeLines(): readonly string[] {
    return this.lines.splice(0);
  }
}

export function reconcilerOptions<Kind extends Nft>(nft: Kind) {
  const clock = new ManualClock();
  const events = new RecordedEvents();
  const options: Omit<TableReconcilerOptions, 'table'> = { nft, clock, events, random: () => 0.5 };
  return { nft, clock, events, options };
}

/** Waits until a check succeeds. */
export function until(check: () => unknown): Promise<void> {
  return vi.waitFor(
    async () => {
      expect(await check()).toBeTruthy();
    },
    { timeout: 20_000, interval: 5 },
  );
}
