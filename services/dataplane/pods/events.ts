import { trace } from '@opentelemetry/api';
import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';
import type { Logger } from '@podwire/shared/runtime/log';
import { counter, histogram } from '@podwire/shared/telemetry/instruments';

import type { Condition } from '../conditions/conditions.js';
import type { UnreadableRecord } from '../records/record-store.js';
import type { Difference } from '@podwire/shared/attachment/pod-network';
import { formatStep, type Step } from '../wiring/step.js';

/** Most differences of one pod that are logged: a pod can fill its own namespace with thousands. */
const LOGGED_MAX = 20;

/**
 * Reports completed actions: a counter, a log line, attributes of the active span. Counters have few attributes with few values;
 * names of interfaces and addresses belong in logs and spans.
 */
export class Events {
  readonly #log: Logger;
  readonly #tables = counter('podwire.dataplane.nft.writes');
  readonly #tableGaps = histogram('podwire.dataplane.nft.gap');

  constructor(log: Logger) {
    this.#log = log;
  }

  podAttached(hostInterface: string, changes: number): void {
    trace.getActiveSpan()?.setAttribute('podwire.dataplane.changes', changes);
    this.#log.info(
      { 'podwire.host_interface': hostInterface, 'podwire.dataplane.changes': changes },
      changes === 0 ? 'pod already wired' : 'pod wired',
    );
  }

  podDetached(hostInterface: string, removed: boolean): void {
    this.#log.info({ 'podwire.host_interface': hostInterface, removed }, removed ? 'pod unwired' : 'no wire to remove');
  }

  /** The kernel refused a setting that a pod can work without. */
  optionalStepFailed(step: Step, failure: Failure): void {
    this.#log.warn({ err: failure }, `optional step failed, continuing without it: ${formatStep(step)}`);
  }

  /** The node still routed one of the pod's addresses to an earlier pod. */
  routeTakenOver(destination: string, device: string): void {
    this.#log.warn(
      { destination, device },
      `route to ${destination} taken over from ${device}, the interface of an earlier pod`,
    );
  }

  /** Rules that choose a routing table remain in a pod whose interface is gone. */
  rulesNotRemoved(attachment: Attachment, failure: Failure): void {
    this.#log.warn(
      { err: failure, 'podwire.attachment': formatAttachment(attachment) },
      `source routing rules of interface ${attachment.interfaceName} could not be removed from the pod`,
    );
  }

  /** Orphan rules of an unrecorded interface were removed from a pod while another of its interfaces was checked. */
  orphanRulesRemoved(attachment: Attachment, rules: readonly string[]): void {
    this.#log.info(
      { 'podwire.attachment': formatAttachment(attachment), rules },
      `removed ${rules.length} source routing rules of a deleted interface from the pod`,
    );
  }

  /** Orphan rules remain in the pod; the next check retries. */
  orphanRulesNotRemoved(attachment: Attachment, failure: Failure): void {
    this.#log.warn(
      { err: failure, 'podwire.attachment': formatAttachment(attachment) },
      'source routing rules of a deleted interface could not be removed from the pod; retried with the next check',
    );
  }

  /** Connection tracking still has flows of the address's previous pod; they may fail until they time out. */
  flowsNotDeleted(destination: string, failure: Failure): void {
    this.#log.warn({ err: failure, destination }, `connection tracking entries of ${destination} could not be deleted`);
  }

  /** A wired pod differed from its record and was repaired. */
  driftRepaired(attachment: Attachment, differences: readonly Difference[]): void {
    const name = formatAttachment(attachment);
    for (const { object, wanted, actual } of differences.slice(0, LOGGED_MAX)) {
      this.#log.warn({ object, wanted, actual }, `drift of ${name} repaired: ${object} was ${actual}`);
    }
    const more = differences.length - LOGGED_MAX;
    if (more > 0) this.#log.warn(`drift of ${name} repaired: ${more} more differences`);
  }

  podChecked(attachment: Attachment, differences: readonly Difference[]): void {
    const [first] = differences;
    if (!first) return;
    const { length: count } = differences;
    const logged = { count, differences: differences.slice(0, LOGGED_MAX) };
    this.#log.warn(logged, `${formatAttachment(attachment)} differs from the wanted state: ${first.object}`);
  }

  /**
   * An nftables table was written; `drift`: another program had changed or deleted it.
   * @param gapMs - from the report of that change until the table was restored
   */
  tableWritten(table: string, reason: 'wanted' | 'found' | 'drift', gapMs?: number): void {
    this.#tables.add(1, { table, reason });
    if (gapMs !== undefined) this.#tableGaps.record(gapMs / 1000, { table });
    const line = { table, reason, gapMs };
    if (reason === 'drift') this.#log.warn(line, `nftables: ${table} was changed by another program; restored`);
    else this.#log.info(line, `nftables: ${table} written`);
  }

  /** An nftables table could not be written; the write is retried. */
  tableFailed(table: string, failure: Failure): void {
    this.#log.error({ err: failure, table }, `nftables: ${table} cannot be reconciled: ${failure.message}`);
  }

  tableRecovered(table: string): void {
    this.#log.info({ table }, `nftables: ${table} is reconciled again`);
  }

  /** The files with the node's network policies cannot be read or written. */
  policiesNotStored(path: string, error: unknown): void {
    this.#log.error(
      { err: error, path },
      `network policies: ${path} cannot be used; a restart without podwire-ipam isolates new pods`,
    );
  }

  /** Network policies forbade open connections, which the kernel tracks no longer. */
  connectionsEnded(count: number): void {
    this.#log.info({ count }, `network policies: ${count} open connections are forbidden now, and ended`);
  }

  /** Open connections could not be judged; that is repeated. */
  connectionsNotJudged(error: unknown): void {
    this.#log.error({ err: error }, 'network policies: open connections that are forbidden now cannot be ended');
  }

  /** The stream of network policies ended, or was refused. */
  policiesLost(error: unknown): void {
    this.#log.warn({ err: error }, 'network policies: podwire-ipam sends no changes; the last ones stay in force');
  }

  policiesFollowed(service: string): void {
    this.#log.info(`network policies: ${service} sends changes again`);
  }

  /** Network policies dropped a packet. */
  packetDropped(fields: object, message: string): void {
    this.#log.info(fields, `network policies: ${message}`);
  }

  /** The kernel does not report dropped packets. */
  dropsNotFollowed(error: unknown): void {
    this.#log.warn({ err: error }, 'network policies: the kernel does not report dropped packets; tried again');
  }

  /** The detected default MTU for pods that request none. */
  mtuDetected(detected: {
    readonly mtuBytes: number;
    readonly interfaceName: string | undefined;
    readonly overheadBytes: number;
  }): void {
    const { mtuBytes, interfaceName, overheadBytes } = detected;
    const pods = `pods get an MTU of ${mtuBytes} bytes`;
    const minus = overheadBytes > 0 ? `, minus ${overheadBytes} for the pools’ encapsulation` : '';
    if (interfaceName !== undefined) this.#log.info(detected, `${pods}, from ${interfaceName}${minus}`);
    else {
      const advice = 'set PODWIRE_NODE_MTU_INTERFACES or PODWIRE_NODE_MTU_BYTES';
      this.#log.warn(
        detected,
        `${pods}, the default, because no interface that is up has a matching name${minus}; ${advice}`,
      );
    }
  }

  /** The operator's MTU applies to pods. */
  mtuSet(mtuBytes: number): void {
    this.#log.info({ mtuBytes }, `pods get an MTU of ${mtuBytes} bytes, as configured`);
  }

  mtuUnknown(failure: Failure): void {
    this.#log.error(
      { err: failure },
      `the node’s interfaces cannot be read; the MTU of pods stays unchanged: ${failure.message}`,
    );
  }

  /** These interfaces would stop accepting router advertisements once the node forwards IPv6. */
  advertisementsKept(interfaceNames: readonly string[]): void {
    if (interfaceNames.length === 0) return;
    this.#log.info(
      { interfaceNames },
      `accept_ra is 2 on ${interfaceNames.join(', ')}: the node keeps its router-advertised IPv6 while it forwards`,
    );
  }

  /** The interfaces were left unchanged; a node that forwards may lose the default route that a router advertises. */
  advertisementsUnknown(failure: Failure): void {
    this.#log.warn({ err: failure }, `accept_ra on the node’s interfaces stays unchanged: ${failure.message}`);
  }

  /** A call of Calico's contract failed. gRPC counts the reply as a success. */
  cniCallFailed(method: 'Add' | 'Del', error: unknown): void {
    this.#log[error instanceof Failure && error.code !== 'INTERNAL' ? 'info' : 'error'](
      { err: error, rpc: `cni.CniDataplane/${method}` },
      `cni.CniDataplane/${method} failed`,
    );
  }
}

/** Number of attachments per outcome of the recovery after a start. */
export interface RecoverySummary {
  /** Matched the record. */
  readonly kept: number;
  /** Differed from the record and was repaired: drift, or an incomplete change. */
  readonly repaired: number;
  /** Complete, without a record. */
  readonly adopted: number;
  /** Removed: incomplete without a record, or a detach was interrupted. */
  readonly undone: number;
  /** The namespace is missing; the orphan check decides later whether it is dead. */
  readonly withoutNamespace: number;
  /** The wire is gone; pending IPAM's answer whether to restore it. */
  readonly waiting: number;
  readonly failed: number;
}

/** Reports what happens to attachments outside of calls. */
export class AttachmentEvents {
  readonly #log: Logger;
  readonly #refused = counter('podwire.dataplane.attachments.records.refused');
  readonly #dead = counter('podwire.dataplane.attachments.dead');

  constructor(log: Logger) {
    this.#log = log;
  }

  recoveryFinished(summary: RecoverySummary): void {
    const { kept, repaired, adopted, undone, withoutNamespace, waiting, failed } = summary;
    const counts = { kept, repaired, adopted, undone, withoutNamespace, waiting, failed };
    this.#log.info(
      counts,
      `attachments found at the start: ${kept} kept, ${repaired} repaired, ${adopted} adopted, ${undone} undone, ` +
        `${withoutNamespace} without a namespace, ${waiting} waiting for IPAM, ${failed} failed`,
    );
  }

  recordUnreadable({ path, fault }: UnreadableRecord): void {
    this.#log.error(
      { path, fault },
      `unreadable record ${path}: ${fault}; its pod keeps its network but is not repaired`,
    );
  }

  /** A record of an earlier boot was found, so its directory is not on tmpfs. */
  earlierRecordDropped(attachment: Attachment): void {
    this.#log.info(`record of ${formatAttachment(attachment)} dropped: it belongs to an earlier boot`);
  }

  recordNotStored(attachment: Attachment, failure: unknown): void {
    this.#refused.add(1);
    this.#log.error({ err: failure }, `record of ${formatAttachment(attachment)} could not be stored; retried later`);
  }

  linkAdopted(attachment: Attachment | undefined, hostInterface: string): void {
    const whose = attachment ? ` of ${formatAttachment(attachment)}` : '';
    this.#log.warn(
      `${hostInterface}${whose} is complete but not recorded; kept without repairs until a call attaches or repairs it`,
    );
  }

  incompleteLinkRemoved(hostInterface: string): void {
    this.#log.warn(`${hostInterface} removed: its wiring was incomplete when the previous process ended`);
  }

  attachmentDied(attachment: Attachment, netns: string): void {
    this.#dead.add(1);
    this.#log.warn(`${formatAttachment(attachment)} is dead: its namespace ${netns} disappeared without a DetachPod`);
  }

  /** IPAM did not answer; the request is retried. */
  restorationsDelayed(count: number, failure: unknown): void {
    this.#log.warn({ err: failure }, `${count} lost wires are not restored until IPAM answers; retried later`);
  }

  lostWireDropped(attachment: Attachment): void {
    this.#log.warn(
      `record of ${formatAttachment(attachment)} removed: its interface was deleted and its addresses released without a DetachPod`,
    );
  }

  wireNotRestored(attachment: Attachment): void {
    const name = formatAttachment(attachment);
    this.#log.error(
      `the wire of ${name} is lost and not restored: IPAM has only some of its addresses, or has them for another namespace; delete the pod`,
    );
  }

  /** The conditions of a reason changed; an empty list means resolved. */
  conditionsChanged(reason: string, conditions: readonly Condition[]): void {
    if (conditions.length === 0) this.#log.info({ reason }, `${reason} resolved`);
    for (const { message } of conditions) this.#log.error({ reason }, message);
  }

  garbageCollected(removed: number, failed: number): void {
    this.#log.info({ removed, failed }, `garbage collected: ${removed} attachments removed, ${failed} failed`);
  }

  taskFailed(task: string, error: unknown): void {
    this.#log.error({ err: error }, `${task} failed; it is retried later`);
  }
}
