import { formatAttachment } from '@podwire/shared/attachment/attachment';
import type { Failure } from '@podwire/shared/failure/failure';
import type { Family } from '@podwire/shared/net/address';
import type { Logger } from '@podwire/shared/runtime/log';
import { counter, histogram, observeMetrics } from '@podwire/shared/telemetry/instruments';

import type { AttachmentRecord } from '../records/record.js';
import type { LeaseStock } from './lease-stock.js';
import type { Unsettled } from './lease.js';

const MS_PER_SECOND = 1000;

/** Reports what happens to the node's leases: metrics and, for changes of state, a log line. */
export class LeaseEvents {
  readonly #log: Logger;
  readonly #refillTime = histogram('podwire.leases.refill.duration');
  readonly #recalls = counter('podwire.leases.recalls');
  readonly #refusals = counter('podwire.leases.bindings.refused');
  /** The last explanation of a shortage, by family; each is logged once. */
  readonly #explanations = new Map<Family, string>();
  #isSettlementDelayed = false;

  constructor(log: Logger) {
    this.#log = log;
  }

  /** podwire-ipam listed the leases. */
  listed(family: Family, { count, explanation }: { readonly count: number; readonly explanation: string }): void {
    if (this.#explanations.get(family) === explanation) return;
    this.#explanations.set(family, explanation);
    if (explanation !== '') this.#log.info(`${count} IPv${family} addresses are leased: ${explanation}`);
  }

  refilled(
    family: Family,
    { addedCount, durationMs }: { readonly addedCount: number; readonly durationMs: number },
  ): void {
    this.#refillTime.record(durationMs / MS_PER_SECOND, { family: `ipv${family}` });
    this.#log.debug(`leased ${addedCount} IPv${family} addresses`);
  }

  refillFailed(family: Family, failure: Failure, retryInMs: number): void {
    this.#log.warn({ err: failure }, `no IPv${family} addresses leased; trying again in ${Math.round(retryInMs)} ms`);
  }

  returned(count: number): void {
    this.#log.debug(`returned ${count} leased addresses`);
  }

  recalled(): void {
    this.#recalls.add(1);
    this.#log.info('podwire-ipam recalls the leased addresses: pods of other nodes find none');
  }

  /** Bindings and returns are delayed. */
  settlementFailed(failure: Failure, retryInMs: number): void {
    const level = this.#isSettlementDelayed ? 'debug' : 'warn';
    this.#isSettlementDelayed = true;
    this.#log[level](
      { err: failure },
      `podwire-ipam does not know the addresses of all pods yet; trying again in ${Math.round(retryInMs)} ms`,
    );
  }

  /** podwire-ipam took the bindings and returns. */
  settled(): void {
    if (this.#isSettlementDelayed) this.#log.info('podwire-ipam takes the addresses of pods again');
    this.#isSettlementDelayed = false;
  }

  bindingRefused({ network }: AttachmentRecord, reason: string): void {
    this.#refusals.add(1);
    this.#log.error(`podwire-ipam does not bind the address of ${formatAttachment(network.attachment)}: ${reason}`);
  }

  fileFailed(path: string, error: unknown): void {
    this.#log.error({ err: error, path }, `${path} fails: after a restart the node asks podwire-ipam for its leases`);
  }

  /** @returns a function that ends it */
  observe(stock: Pick<LeaseStock, 'count'>, unsettled: () => Unsettled): () => void {
    const names = ['podwire.leases.available', 'podwire.leases.unsettled', 'podwire.leases.unsettled.age'] as const;
    return observeMetrics(names, (observe) => {
      for (const family of [4, 6] as const)
        observe('podwire.leases.available', stock.count(family), { family: `ipv${family}` });
      const { unboundCount, unreturnedCount, oldestMs } = unsettled();
      observe('podwire.leases.unsettled', unboundCount, { action: 'bind' });
      observe('podwire.leases.unsettled', unreturnedCount, { action: 'return' });
      observe('podwire.leases.unsettled.age', oldestMs / MS_PER_SECOND);
    });
  }
}
