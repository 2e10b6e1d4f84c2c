import { Metadata, status as grpcStatus, type ServiceError, type StatusObject } from '@grpc/grpc-js';
import type { Any } from '@podwire/proto/google/protobuf/any';
import { BadRequest, ErrorInfo } from '@podwire/proto/google/rpc/error_details';
import { Status } from '@podwire/proto/google/rpc/status';

import { FAILURE_CODES, isFailureCode, type FailureCode } from './codes.js';
import { Failure, UNDER_TRACE, type Violation } from './failure.js';

/** Conversion between Podwire's failures and gRPC's status, by the standard error model (AIP-193). */

const DETAILS_KEY = 'grpc-status-details-bin';
const DOMAIN = 'podwire.dev';
const ERROR_INFO = 'type.googleapis.com/google.rpc.ErrorInfo';
const BAD_REQUEST = 'type.googleapis.com/google.rpc.BadRequest';

/**
 * Limits in bytes for the message of a status, for the texts of its violations and of its details. A status is sent
 * in HTTP/2 trailers. gRPC's clients refuse more than 16 KiB of them. Beyond 64 KiB, Node's HTTP/2 leaves this call and
 * later ones of the connection unanswered. Escaping makes a message up to three times as long.
 */
const MAX_MESSAGE_BYTES = 2048;
const MAX_LIST_BYTES = 2048;

/** Statuses without a failure of Podwire's, from a peer or from the channel. */
const CODE_OF_STATUS: Partial<Record<grpcStatus, FailureCode>> = {
  [grpcStatus.UNAVAILABLE]: 'UNREACHABLE',
  [grpcStatus.DEADLINE_EXCEEDED]: 'DEADLINE_EXCEEDED',
  [grpcStatus.CANCELLED]: 'CANCELLED',
  [grpcStatus.UNIMPLEMENTED]: 'UNIMPLEMENTED',
  [grpcStatus.INVALID_ARGUMENT]: 'INVALID_REQUEST',
};

/** Codes for a reason that only a later release knows, by its status. */
const CODE_OF_UNKNOWN_REASON: Partial<Record<grpcStatus, FailureCode>> = {
  ...CODE_OF_STATUS,
  [grpcStatus.ABORTED]: 'CONFLICT',
};

/**
 * Converts a handler's error to a status. An error that is not a {@link Failure} is a defect: the client gets a neutral
 * text, the log gets the detail. A message beyond the size limit is truncated and says so; violations and details that
 * do not fit are omitted.
 */
export function statusOfError(error: unknown): StatusObject {
  const failure =
    error instanceof Failure ? error : new Failure('INTERNAL', `internal error: see the service’s log ${UNDER_TRACE}`);
  const code = grpcStatus[FAILURE_CODES[failure.code].status];
  const message = fittingMessage(failure.message);
  const metadata = new Metadata();
  metadata.set(DETAILS_KEY, Buffer.from(Status.encode({ code, message, details: packDetails(failure) }).finish()));
  return { code, details: message, metadata };
}

/** The status of an error, as google.rpc.Status, for a message that has it as a field. */
export function encodeFailure(error: unknown): Buffer {
  const [packed] = statusOfError(error).metadata.get(DETAILS_KEY);
  return Buffer.from(packed ?? '');
}

/** The failure that {@link encodeFailure} encoded. */
export function decodeFailure(bytes: Uint8Array): Failure {
  try {
    const status = Status.decode(bytes);
    const { code = 'INTERNAL', ...rest } = unpackDetails(status, grpcStatus.INTERNAL) ?? {};
    return new Failure(code, status.message, rest);
  } catch (cause) {
    return new Failure('INTERNAL', 'a failure that cannot be read: use one release of all programs', { cause });
  }
}

function packDetails(failure: Failure): Any[] {
  const entries = fitting(Object.entries(failure.details), ([name, value]) => name + value);
  const info = ErrorInfo.encode({
    reason: failure.code,
    domain: DOMAIN,
    metadata: Object.fromEntries(entries),
  }).finish();
  const details: Any[] = [{ typeUrl: ERROR_INFO, value: Buffer.from(info) }];
  if (failure.violations.length > 0) {
    const violations = fitting(failure.violations, ({ field, reason }) => field + reason);
    const fieldViolations = violations.map(({ field, reason }) => ({ field, description: reason }));
    const bad = BadRequest.encode(BadRequest.fromPartial({ fieldViolations })).finish();
    details.push({ typeUrl: BAD_REQUEST, value: Buffer.from(bad) });
  }
  return details;
}

/** The message, truncated to its limit, and well-formed: gRPC's escaping throws on half a surrogate pair. */
function fittingMessage(message: string): string {
  const bytes = Buffer.from(message);
  if (bytes.length <= MAX_MESSAGE_BYTES) return bytes.toString();
  return `${bytes.toString('utf8', 0, MAX_MESSAGE_BYTES)}… (truncated; the service’s log has the whole message ${UNDER_TRACE})`;
}

/** Largest overhead of the encoding per item, in bytes. */
const ITEM_OVERHEAD_BYTES = 12;

/** The items that fit into the limit. */
function fitting<Item>(items: readonly Item[], textOf: (item: Item) => string): Item[] {
  let room = MAX_LIST_BYTES;
  return items.filter((item) => (room -= Buffer.byteLength(textOf(item)) + ITEM_OVERHEAD_BYTES) >= 0);
}

/**
 * Converts the error of a client's call to a failure.
 * @param peer - the called service, for the message where the channel itself failed: `podwire-ipam at unix:/run/podwire/ipam.sock`
 * @param traceId - trace ID of the call, if it has one
 */
export function failureOfError(error: ServiceError, peer: string, traceId?: string): Failure {
  const packed = readDetails(error);
  if (packed) {
    const { code, violations, details } = packed;
    return new Failure(code, error.details, { violations, details, cause: error, traceId });
  }
  const largest = error.code === grpcStatus.RESOURCE_EXHAUSTED ? TOO_LARGE.exec(error.details)?.[1] : undefined;
  if (largest !== undefined) {
    const text = `${peer}: request is larger than ${largest} bytes; send a smaller one`;
    return new Failure('INVALID_REQUEST', text, { cause: error, traceId });
  }
  const code = CODE_OF_STATUS[error.code] ?? 'INTERNAL';
  return new Failure(code, `${peer}: ${explain(code, error)}`, { cause: error, traceId });
}

/** grpc-js's message for a request above its size limit, which it does not send. */
const TOO_LARGE = /^Attempted to send message with a size larger than (\d+)$/;

/** grpc-js's message for a deadline that passed before a connection existed. */
const NEVER_SENT = /waiting for LB pick/i;

/**
 * Prefix of grpc-js's own deadline message, followed by the start time and the request's state. The cause keeps the
 * full text for the log.
 */
const OWN_DEADLINE = 'Deadline exceeded after ';

function explain(code: FailureCode, error: ServiceError): string {
  const isSent = !NEVER_SENT.test(error.details);
  const next: Partial<Record<FailureCode, string>> = {
    UNREACHABLE: 'does not answer; check that it runs, and see its log',
    DEADLINE_EXCEEDED: isSent
      ? `did not answer in time; see its log ${UNDER_TRACE}`
      : 'did not answer in time: no connection; check that it runs and listens there',
    UNIMPLEMENTED: 'method is unknown: another service, or an older release; check address and release',
  };
  const text = next[code];
  if (text === undefined) return error.details;
  return error.details.startsWith(OWN_DEADLINE) ? text : `${text} (${error.details})`;
}

interface Details {
  readonly code: FailureCode;
  readonly violations: readonly Violation[];
  readonly details: Readonly<Record<string, string>>;
}

/** @returns undefined where the peer sent no failure of Podwire's, or an unreadable one */
function readDetails({ code, metadata }: ServiceError): Details | undefined {
  const [packed] = metadata.get(DETAILS_KEY);
  if (!Buffer.isBuffer(packed)) return undefined;
  try {
    return unpackDetails(Status.decode(packed), code);
  } catch {
    return undefined;
  }
}

function unpackDetails({ details }: Status, grpc: grpcStatus): Details | undefined {
  const find = (typeUrl: string): Any | undefined => details.find((detail) => detail.typeUrl === typeUrl);
  const packedInfo = find(ERROR_INFO);
  const info = packedInfo && ErrorInfo.decode(packedInfo.value);
  if (info?.domain !== DOMAIN) return undefined;
  const packedViolations = find(BAD_REQUEST);
  const violations = packedViolations ? BadRequest.decode(packedViolations.value).fieldViolations : [];
  return {
    ...(isFailureCode(info.reason)
      ? { code: info.reason, details: info.metadata }
      : {
          code: CODE_OF_UNKNOWN_REASON[grpc] ?? 'UNKNOWN_REASON',
          details: { ...info.metadata, reason: info.reason },
        }),
    violations: violations.map(({ field, description }) => ({ field, reason: description })),
  };
}
