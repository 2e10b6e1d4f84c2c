import { metrics } from '@opentelemetry/api';
import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import type { Logger } from '@podwire/shared/runtime/log';

import type { UnreadableRecord } from '../pods/record-store.js';
import type { Condition } from '../routes/wanted.js';

/** How often each came of looking at what the process before has left. */
export interface RecoverySummary {
  /** As recorded. */
  readonly kept: number;
  /** Differed from their records, and do no more: drift, and what was half done. */
  readonly mended: number;
  /** Complete, without a record. */
  readonly adopted: number;
  /** Incomplete without a record, or with a detach that was cut off: removed. */
  readonly undone: number;
  /** Their namespaces are not there; told from the dead later. */
  readonly withoutNamespace: number;
  /** Their wires are gone, and IPAM is asked whether they are to be restored. */
  readonly waiting: number;
  readonly failed: number;
}

const RESULTS = ['kept', 'mended', 'adopted', 'undone', 'withoutNamespace', 'waiting', 'failed'] as const;

/** What happened around attachments outside of calls: a counter and a log line each, told once it is done. */
export class AttachmentEvents {
  readonly #log: Logger;
  readonly #meter = metrics.getMeter('podwire-dataplane');
  readonly #recovered = this.#counter('recovered', '{attachment}', 'Found at the start, by what came of them');
  readonly #unreadable = this.#counter('records.unreadable', '{record}', 'Records put aside at the start');
  readonly #refused = this.#counter('records.refused', '{record}', 'Changes that the state directory refused');
  readonly #dead = this.#counter('dead', '{attachment}', 'Whose namespaces went without a DetachPod');
  readonly #released = this.#counter('addresses_released', '{address}', 'Given back to IPAM, by reason');
  readonly #delayed = this.#counter('releases_delayed', '{release}', 'Attempts that IPAM did not answer');
  readonly #collected = this.#counter('collected', '{attachment}', 'By CollectGarbage, by result');
  readonly #failed = this.#counter('failures', '{failure}', 'Of work outside of calls');

  constructor(log: Logger) {
    this.#log = log;
  }

  recovered(summary: RecoverySummary): void {
    for (const result of RESULTS) if (summary[result] > 0) this.#recovered.add(summary[result], { result });
    const { kept, mended, adopted, undone, withoutNamespace, waiting, failed } = summary;
    this.#log.info(
      { ...summary },
      `attachments found at the start: ${kept} kept, ${mended} mended, ${adopted} adopted, ${undone} undone, ` +
        `${withoutNamespace} without a namespace, ${waiting} waiting for IPAM, ${failed} failed`,
    );
  }

  recordUnreadable({ path, fault }: UnreadableRecord): void {
    this.#unreadable.add(1);
    this.#log.error(
      { path, fault },
      `record put aside: ${path} ${fault}; its pod keeps its network, and has no repair`,
    );
  }

  /** A record of an earlier boot: its directory is not in memory. */
  recordOutlived(attachment: Attachment): void {
    this.#log.info(`record of ${formatAttachment(attachment)} dropped: it is of an earlier boot`);
  }

  recordRefused(attachment: Attachment, failure: unknown): void {
    this.#refused.add(1);
    this.#log.error({ err: failure }, `record of ${formatAttachment(attachment)} not stored, repeated later`);
  }

  adopted(attachment: Attachment | undefined, hostInterface: string): void {
    const whose = attachment ? ` of ${formatAttachment(attachment)}` : '';
    this.#log.warn(
      `${hostInterface}${whose} is complete and not recorded: kept; it has no repair until a call attaches or repairs it`,
    );
  }

  undone(hostInterface: string): void {
    this.#log.warn(`${hostInterface} removed: it was half done when the process before ended`);
  }

  died(attachment: Attachment, netns: string): void {
    this.#dead.add(1);
    this.#log.warn(`${formatAttachment(attachment)} is dead: its namespace ${netns} is gone, and no DetachPod came`);
  }

  addressesReleased(attachment: Attachment, addresses: readonly string[], reason: 'namespace' | 'reboot'): void {
    this.#released.add(addresses.length, { reason });
    const why = reason === 'reboot' ? 'it died with an earlier boot of the node' : 'its namespace is gone';
    this.#log.info({ addresses }, `addresses of ${formatAttachment(attachment)} given back: ${why}`);
  }

  /** IPAM did not answer; it is asked again. */
  releasesDelayed(count: number, failure: unknown): void {
    this.#delayed.add(1);
    this.#log.warn({ err: failure }, `IPAM does not take ${count} releases back yet: repeated`);
  }

  /** IPAM did not answer; it is asked again. */
  restorationsDelayed(count: number, failure: unknown): void {
    this.#log.warn(
      { err: failure },
      `the wire of ${count} pods is lost, and is not restored before IPAM answers: repeated`,
    );
  }

  lostWireForgotten(attachment: Attachment): void {
    this.#log.warn(
      `${formatAttachment(attachment)} is forgotten: its interface was deleted, and its addresses released, without a DetachPod`,
    );
  }

  wireKeptLost(attachment: Attachment): void {
    const name = formatAttachment(attachment);
    this.#log.error(
      `the wire of ${name} is lost, and is not restored: IPAM has not all of its addresses, or for another namespace; delete the pod`,
    );
  }

  endpointSpared(attachment: Attachment, reason: string): void {
    this.#log.warn(`addresses of ${formatAttachment(attachment)} are of another boot, and stay: ${reason}`);
  }

  /** What an operator should know has changed for a reason; none: it is over. */
  conditionsChanged(reason: string, conditions: readonly Condition[]): void {
    if (conditions.length === 0) this.#log.info({ reason }, `${reason} is over`);
    for (const { message } of conditions) this.#log.error({ reason }, message);
  }

  collected(removed: number, failed: number): void {
    this.#collected.add(removed, { result: 'removed' });
    this.#collected.add(failed, { result: 'failed' });
    this.#log.info({ removed, failed }, `garbage collected: ${removed} attachments removed, ${failed} failed`);
  }

  failed(what: string, error: unknown): void {
    this.#failed.add(1);
    this.#log.error({ err: error }, `failed, repeated later: ${what}`);
  }

  #counter(name: string, unit: string, description: string) {
    return this.#meter.createCounter(`podwire.dataplane.attachments.${name}`, { unit, description });
  }
}
