import { metrics, trace } from '@opentelemetry/api';
import { formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { Failure } from '@podwire/shared/failure/failure';
import type { Logger } from '@podwire/shared/runtime/log';

import type { Condition } from '../conditions/conditions.js';
import type { Difference } from '../wiring/difference.js';
import { formatStep, type Step } from '../wiring/step.js';
import type { UnreadableRecord } from './record-store.js';

/** Most differences of one pod that are logged: a pod can fill its own namespace with thousands. */
const LOGGED_MAX = 20;

/**
 * Reports completed actions: a counter, a log line, attributes of the active span. Counters have few attributes with few values;
 * names of interfaces and addresses belong in logs and spans.
 */
export class Events {
  readonly #log: Logger;
  readonly #meter = metrics.getMeter('podwire-dataplane');
  readonly #attached = this.#counter('podwire.dataplane.pods.attached', '{pod}', 'AttachPod calls by their result');
  readonly #detached = this.#counter('podwire.dataplane.pods.detached', '{pod}', 'DetachPod calls by their result');
  readonly #skipped = this.#counter(
    'podwire.dataplane.steps.skipped',
    '{step}',
    'Optional settings the kernel refused',
  );
  readonly #takeovers = this.#counter('podwire.dataplane.routes.taken_over', '{route}', 'Routes left by earlier pods');
  readonly #tables = this.#counter('podwire.dataplane.nft.writes', '{write}', 'Tables of nftables written, by reason');
  readonly #tableFailures = this.#counter('podwire.dataplane.nft.failures', '{failure}', 'Tables of nftables in want');
  readonly #cniRefusals = this.#counter(
    'podwire.dataplane.cni.refusals',
    '{call}',
    'Failed calls of Calico’s contract',
  );
  readonly #mtu = this.#meter.createGauge('podwire.dataplane.pod_mtu', {
    unit: 'By',
    description: 'MTU of pods that ask for none',
  });
  readonly #differences = this.#counter('podwire.dataplane.differences', '{difference}', 'Found by CheckPod');

  readonly #mended = this.#counter('podwire.dataplane.differences.mended', '{difference}', 'Drift of pods, mended');

  constructor(log: Logger) {
    this.#log = log;
  }

  attached(hostInterface: string, changes: number): void {
    this.#attached.add(1, { result: changes === 0 ? 'unchanged' : 'changed' });
    trace.getActiveSpan()?.setAttribute('podwire.dataplane.changes', changes);
    this.#log.info(
      { 'podwire.host_interface': hostInterface, 'podwire.dataplane.changes': changes },
      changes === 0 ? 'pod was wired already' : 'pod wired',
    );
  }

  detached(hostInterface: string, removed: boolean): void {
    this.#detached.add(1, { result: removed ? 'removed' : 'absent' });
    this.#log.info({ 'podwire.host_interface': hostInterface, removed }, removed ? 'pod unwired' : 'no wire to remove');
  }

  /** The kernel refused a setting that a pod can work without. */
  optionalStepFailed(step: Step, failure: Failure): void {
    this.#skipped.add(1);
    this.#log.warn({ err: failure }, `went on without: ${formatStep(step)}`);
  }

  /** The node still routed one of the pod's addresses to an earlier pod. */
  routeTakenOver(destination: string, device: string): void {
    this.#takeovers.add(1);
    this.#log.warn(
      { destination, device },
      `route to ${destination} taken over from ${device}, a leftover of another pod`,
    );
  }

  /** Rules that choose a routing table remain in a pod whose interface is gone. */
  rulesLeft(attachment: Attachment, failure: Failure): void {
    this.#log.warn(
      { err: failure, 'podwire.attachment': formatAttachment(attachment) },
      `rules of interface ${attachment.interfaceName} could not be taken out of the pod`,
    );
  }

  /** Orphan rules of an unrecorded interface were removed from a pod while another of its interfaces was checked. */
  strayRulesRemoved(attachment: Attachment, rules: readonly string[]): void {
    this.#log.info(
      { 'podwire.attachment': formatAttachment(attachment), rules },
      `${rules.length} rules of an interface that is gone were taken out of the pod`,
    );
  }

  /** The next check tries again. */
  strayRulesLeft(attachment: Attachment, failure: Failure): void {
    this.#log.warn(
      { err: failure, 'podwire.attachment': formatAttachment(attachment) },
      'rules of an interface that is gone could not be taken out of the pod; that is tried again',
    );
  }

  /** Connection tracking still has flows of the address's previous pod; they may fail until they time out. */
  flowsNotForgotten(destination: string, failure: Failure): void {
    this.#log.warn(
      { err: failure, destination },
      `what is tracked of connections of ${destination} could not be deleted`,
    );
  }

  /** A wired pod differed from its record and was repaired. */
  mended(attachment: Attachment, differences: readonly Difference[]): void {
    this.#mended.add(differences.length);
    const name = formatAttachment(attachment);
    for (const { object, wanted, actual } of differences.slice(0, LOGGED_MAX)) {
      this.#log.warn({ object, wanted, actual }, `${name} was not as wanted, mended: ${object} was ${actual}`);
    }
    const more = differences.length - LOGGED_MAX;
    if (more > 0) this.#log.warn(`${name} was not as wanted, mended: ${more} more differences`);
  }

  checked(attachment: Attachment, differences: readonly Difference[]): void {
    this.#differences.add(differences.length);
    const [first] = differences;
    if (!first) return;
    const { length: count } = differences;
    const logged = { count, differences: differences.slice(0, LOGGED_MAX) };
    this.#log.warn(logged, `${formatAttachment(attachment)} is not as wanted: ${first.object}`);
  }

  /** An nftables table was written; `drift`: another program had changed or deleted it. */
  tableWritten(table: string, reason: 'wanted' | 'found' | 'drift'): void {
    this.#tables.add(1, { table, reason });
    const line = { table, reason };
    if (reason === 'drift') this.#log.warn(line, `nftables: ${table} was changed by somebody else, and is restored`);
    else this.#log.info(line, `nftables: ${table} written`);
  }

  /** An nftables table could not be written; the write is retried. */
  tableFailed(table: string, failure: Failure): void {
    this.#tableFailures.add(1, { table });
    this.#log.error({ err: failure, table }, `nftables: ${table} is not as wanted: ${failure.message}`);
  }

  tableRecovered(table: string): void {
    this.#log.info({ table }, `nftables: ${table} is as wanted again`);
  }

  /** The detected default MTU for pods that request none. */
  mtuDetected(detected: {
    readonly mtuBytes: number;
    readonly interfaceName: string | undefined;
    readonly overheadBytes: number;
  }): void {
    const { mtuBytes, interfaceName, overheadBytes } = detected;
    this.#mtu.record(mtuBytes);
    const pods = `pods get an MTU of ${mtuBytes} bytes`;
    const minus = overheadBytes > 0 ? `, less ${overheadBytes} for the pools’ encapsulation` : '';
    if (interfaceName !== undefined) this.#log.info(detected, `${pods}: that of ${interfaceName}${minus}`);
    else {
      const advice = 'set PODWIRE_DATAPLANE_MTU_INTERFACES or PODWIRE_DATAPLANE_MTU_BYTES';
      this.#log.warn(
        detected,
        `${pods}: Ethernet’s, as no interface that is up has a name that counts${minus}; ${advice}`,
      );
    }
  }

  /** The operator's MTU applies to pods. */
  mtuSet(mtuBytes: number): void {
    this.#mtu.record(mtuBytes);
    this.#log.info({ mtuBytes }, `pods get an MTU of ${mtuBytes} bytes, as is set`);
  }

  mtuUnknown(failure: Failure): void {
    this.#log.error(
      { err: failure },
      `the node’s interfaces cannot be read, so that the MTU of pods stays as it is: ${failure.message}`,
    );
  }

  /** These interfaces would stop accepting router advertisements once the node forwards IPv6. */
  advertisementsKept(interfaceNames: readonly string[]): void {
    if (interfaceNames.length === 0) return;
    this.#log.info(
      { interfaceNames },
      `accept_ra is 2 on ${interfaceNames.join(', ')}: the node’s own IPv6 goes on when it forwards`,
    );
  }

  /** The interfaces were left unchanged; a node that forwards may lose the default route that a router advertises. */
  advertisementsUnknown(failure: Failure): void {
    this.#log.warn({ err: failure }, `accept_ra stays as it is on the node’s interfaces: ${failure.message}`);
  }

  /** A call of Calico's contract failed. gRPC counts the reply as a success. */
  cniRefused(method: 'Add' | 'Del', error: unknown): void {
    this.#cniRefusals.add(1, { method });
    this.#log[error instanceof Failure && error.code !== 'INTERNAL' ? 'info' : 'error'](
      { err: error, rpc: `cni.CniDataplane/${method}` },
      `cni.CniDataplane/${method} failed`,
    );
  }

  #counter(name: string, unit: string, description: string) {
    return this.#meter.createCounter(name, { unit, description });
  }
}

/** Number of attachments per outcome of the recovery after a start. */
export interface RecoverySummary {
  /** Matched the record. */
  readonly kept: number;
  /** Differed from the record and was repaired: drift, or an incomplete change. */
  readonly mended: number;
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

const RESULTS = ['kept', 'mended', 'adopted', 'undone', 'withoutNamespace', 'waiting', 'failed'] as const;

/** Reports what happens to attachments outside of calls: a counter and a log line each. */
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

  /** A record of an earlier boot was found, so its directory is not on tmpfs. */
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

  /** IPAM did not answer; the release is retried. */
  releasesDelayed(count: number, failure: unknown): void {
    this.#delayed.add(1);
    this.#log.warn({ err: failure }, `IPAM does not take ${count} releases back yet: repeated`);
  }

  /** IPAM did not answer; the request is retried. */
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

  /** The conditions of a reason changed; an empty list means resolved. */
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
