import type { AttachmentRecord } from '@podwire/dataplane/records/record';
import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import type { Failure } from '@podwire/shared/failure/failure';
import { FAMILIES, type Family } from '@podwire/shared/net/address';
import type { Logger } from '@podwire/shared/runtime/log';
import { histogram, observeMetrics } from '@podwire/shared/telemetry/instruments';

import type { Unsettled } from './lease.js';

const MS_PER_SECOND = 1000;

/** Values of the metrics. */
interface ObservedAddresses {
  readonly leaseCount: (family: Family) => number;
  readonly unsettled: () => Unsettled;
}

/** Part of the work with podwire-ipam; a family is the refill of its leases. */
export type Work = 'session' | 'settle' | 'inventory' | 'endpoints' | Family;

/** Reports what happens to the node's addresses: metrics and, for changes of state, a log line. */
export class AddressEvents {
  readonly #log: Logger;
  readonly #refillTime = histogram('podwire.leases.refill.duration');
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

  returned(count: number): void {
    this.#log.debug(`returned ${count} leased addresses`);
  }

  recalled(): void {
    this.#log.info('podwire-ipam recalls the leased addresses: this node returns them, and leases none for a minute');
  }

  /** A pod got the address of a deleted one, as podwire-ipam is unreachable. */
  reused(address: string): void {
    this.#log.debug(`podwire-ipam is unreachable: a pod gets ${address}, which a deleted pod of this node had`);
  }

  /** A part of the work is delayed. */
  failed(work: Work, failure: Failure, retryInMs: number): void {
    const again = `trying again in ${Math.round(retryInMs)} ms`;
    if (work === 'session') this.#log.debug({ err: failure }, `the session is not open; ${again}`);
    else if (work === 'inventory') this.#log.debug({ err: failure }, `the inventory is not reported; ${again}`);
    else if (work === 'endpoints') {
      const level = failure.code === 'INVALID_REQUEST' ? 'warn' : 'debug';
      this.#log[level]({ err: failure }, `endpoints of pods of other IPAM plugins are not reported; ${again}`);
    } else if (work === 'settle') {
      const level = this.#isSettlementDelayed ? 'debug' : 'warn';
      this.#isSettlementDelayed = true;
      this.#log[level]({ err: failure }, `podwire-ipam does not know the addresses of all pods yet; ${again}`);
    } else this.#log.warn({ err: failure }, `no IPv${work} addresses leased; ${again}`);
  }

  /** podwire-ipam took the bindings and returns. */
  settled(): void {
    if (this.#isSettlementDelayed) this.#log.info('podwire-ipam takes the addresses of pods again');
    this.#isSettlementDelayed = false;
  }

  bindingRefused({ network }: AttachmentRecord, reason: string): void {
    this.#log.error(`podwire-ipam does not bind the address of ${formatAttachment(network.attachment)}: ${reason}`);
  }

  leftoverReturned(attachment: Attachment, address: string): void {
    this.#log.info(`returned ${address} of ${formatAttachment(attachment)}, which has ended`);
  }

  displaced(failure: Failure): void {
    this.#log.error({ err: failure }, `this node gives no address to pods: ${failure.message}`);
  }

  fileFailed(path: string, error: unknown): void {
    this.#log.error({ err: error, path }, `${path} fails: after a restart the node asks podwire-ipam for its leases`);
  }

  machineIdFailed(path: string, error: unknown): void {
    this.#log.error({ err: error, path }, `${path} fails: after a reboot the node waits 4 minutes for its name`);
  }

  /** @returns a function that ends it */
  observe({ leaseCount, unsettled }: ObservedAddresses): () => void {
    const names = ['podwire.leases.available', 'podwire.leases.unsettled', 'podwire.leases.unsettled.age'] as const;
    return observeMetrics(names, (observe) => {
      for (const family of FAMILIES)
        observe('podwire.leases.available', leaseCount(family), { family: `ipv${family}` });
      const { unboundCount, unreturnedCount, oldestMs } = unsettled();
      observe('podwire.leases.unsettled', unboundCount, { action: 'bind' });
      observe('podwire.leases.unsettled', unreturnedCount, { action: 'return' });
      observe('podwire.leases.unsettled.age', oldestMs / MS_PER_SECOND);
    });
  }
}
