import { attachmentFaults, formatAttachment, type Attachment } from '@podwire/shared/attachment/attachment';
import { Failure, tracedMessage } from '@podwire/shared/failure/failure';

/** Formats values for people. */

const SECOND_MS = 1000;
const UNITS = [
  { suffix: 'd', ms: 86_400 * SECOND_MS },
  { suffix: 'h', ms: 3600 * SECOND_MS },
  { suffix: 'm', ms: 60 * SECOND_MS },
] as const;

/** A larger unit is used from twice its size on: 90 minutes is more precise than one hour. */
const FACTOR = 2;

/**
 * A constant of the contract as a word: `POOL_STATE_NOT_ALLOCATABLE` is `not-allocatable`.
 * @param name - undefined for a constant that this release does not know
 */
export function wordOf(name: string | undefined, prefix: string): string {
  if (name === undefined) return 'unknown';
  const word = name.startsWith(prefix) ? name.slice(prefix.length) : name;
  return word === 'UNSPECIFIED' ? '' : word.toLowerCase().replaceAll('_', '-');
}

/** A duration, rounded down: `45s`, `90m`, `3h`, `12d`. */
export function lengthOfTime(durationMs: number): string {
  const unit = UNITS.find(({ ms }) => durationMs >= FACTOR * ms);
  return unit
    ? `${Math.floor(durationMs / unit.ms)}${unit.suffix}`
    : `${Math.max(0, Math.floor(durationMs / SECOND_MS))}s`;
}

/** Time since a moment; empty for undefined. */
export function age(time: Date | undefined, nowMs: number): string {
  return time === undefined ? '' : lengthOfTime(nowMs - time.getTime());
}

/** A moment in RFC 3339 with seconds; empty for undefined. */
export function moment(time: Date | undefined): string {
  return time === undefined ? '' : time.toISOString().replace(/\.\d+Z$/, 'Z');
}

/** A moment, and the time since; empty for undefined. */
export function momentAndAge(time: Date | undefined, nowMs: number): string {
  return time === undefined ? '' : `${moment(time)} (${age(time, nowMs)} ago)`;
}

const CALICO_TIME = /^(\d{4}-\d{2}-\d{2}) (\d{2}:\d{2}:\d{2})(\.\d+)? \+0000 UTC$/;

/** The `timestamp` of an address's attributes in the format of {@link moment}; unchanged where it is not in Calico's format. */
export function momentOfAttribute(timestamp: string): string {
  return timestamp.replace(CALICO_TIME, '$1T$2Z');
}

/** Part of a whole in percent. Inexact for large numbers of IPv6 addresses. */
export function percent(part: number | bigint, whole: number | bigint | string): string {
  const total = Number(whole);
  if (total === 0) return '-';
  const value = (100 * Number(part)) / total;
  return value > 0 && value < 0.1 ? '<0.1%' : `${value.toFixed(1)}%`;
}

/** A number, in exponential notation where it is long: `65536`, `1.2e+24`. */
export function count(value: string | number | bigint): string {
  const text = String(value);
  return text.length <= 12 ? text : Number(text).toExponential(1);
}

/** A node's unbound leases have one handle: `podwire-lease.<node name>`. */
export const LEASE_PREFIX = 'podwire-lease.';

/** The pod that attributes name: `default/web-0`; empty where they name none. */
export function podOf(attributes: Readonly<Record<string, string>>): string {
  const { namespace, pod } = attributes;
  return pod === undefined ? '' : `${namespace ?? '?'}/${pod}`;
}

type Message = Attachment | undefined;

/** An attachment as arguments have it; empty for undefined. */
export function attachmentText(attachment: Message): string {
  return attachment ? formatAttachment(attachment) : '';
}

/**
 * The attachment of a handle, which is `<network>.<container ID>` for containers.
 * @param attributes - of the handle's owner
 * @returns undefined where the owner is not a container
 */
export function attachmentOf(handleId: string, attributes: Readonly<Record<string, string>>): Attachment | undefined {
  const { network = '', interface: interfaceName = '' } = attributes;
  if (!handleId.startsWith(`${network}.`)) return undefined;
  const attachment = { network, containerId: handleId.slice(network.length + 1), interfaceName };
  return attachmentFaults(attachment).length === 0 ? attachment : undefined;
}

/** A failure in one line. */
export function failureLine(failure: Failure): string {
  return `${tracedMessage(failure)} (${failure.code})`;
}

/**
 * The error text for one item, so that the remaining items are still processed.
 * @throws defects, and failures that end the whole command
 */
export function failureText(error: unknown): string {
  if (!(error instanceof Failure) || error.code === 'UNREACHABLE' || error.code === 'DEADLINE_EXCEEDED') throw error;
  return failureLine(error);
}
