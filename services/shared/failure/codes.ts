import type { status } from '@grpc/grpc-js';

/** The name of a gRPC status: its number would load grpc-js, which takes 50 ms. */
type GrpcStatus = keyof typeof status;

interface CodeEntry {
  readonly status: GrpcStatus;
  readonly cni: number;
  readonly retryable: boolean;
  readonly about: string;
}

const permanent = (code: GrpcStatus, cni: number, about: string): CodeEntry => {
  return { status: code, cni, retryable: false, about };
};
const retryable = (code: GrpcStatus, cni: number, about: string): CodeEntry => {
  return { status: code, cni, retryable: true, about };
};

/**
 * Every failure of Podwire: its name, its gRPC status, its CNI error code, and whether a retry of the same request may
 * succeed.
 * CNI codes: specification 1.1.0, section 2 "Error"; codes from 100 on are specific to Podwire. README.md has the same table.
 */
export const FAILURE_CODES = {
  INVALID_REQUEST: permanent('INVALID_ARGUMENT', 7, 'A field of the request is malformed.'),
  INVALID_NETNS: permanent('INVALID_ARGUMENT', 4, 'The path is missing, not a network namespace, or the node’s own.'),
  INTERFACE_EXISTS: permanent('ALREADY_EXISTS', 101, 'Another interface of the pod has that name.'),
  HOST_INTERFACE_TAKEN: permanent('ALREADY_EXISTS', 101, 'Another host interface has that name.'),
  HOST_PORT_TAKEN: retryable('ALREADY_EXISTS', 11, 'Another pod of the node has the host port.'),
  ROUTE_TAKEN: permanent('ALREADY_EXISTS', 101, 'Another program’s route to a required destination leads elsewhere.'),
  POOL_EXISTS: permanent('ALREADY_EXISTS', 100, 'A pool of that name exists.'),
  POOL_NOT_FOUND: permanent('NOT_FOUND', 100, 'There is no pool of that name.'),
  POOL_OVERLAP: permanent(
    'FAILED_PRECONDITION',
    100,
    'The range overlaps another pool, blocks of another size, or addresses of hosts.',
  ),
  POOL_IN_USE: permanent('FAILED_PRECONDITION', 100, 'Addresses of the pool are in use.'),
  POOL_BEING_DELETED: permanent('FAILED_PRECONDITION', 100, 'The pool is being deleted.'),
  NO_POOL: permanent('FAILED_PRECONDITION', 102, 'There is no pool of the family.'),
  NO_POOL_SERVES: permanent(
    'FAILED_PRECONDITION',
    11,
    'No pool of the family serves the request; the message names the reasons.',
  ),
  POOLS_EXHAUSTED: permanent('RESOURCE_EXHAUSTED', 11, 'The pools that serve the request have no free address.'),
  ADDRESS_IN_USE: permanent('ALREADY_EXISTS', 106, 'The requested address has another owner, or cools down.'),
  ADDRESS_REFUSED: permanent(
    'FAILED_PRECONDITION',
    106,
    'Pool, use, strict affinity or the shares of other nodes forbid the requested address.',
  ),
  ADDRESS_DIFFERS: permanent('FAILED_PRECONDITION', 106, 'The attachment holds another address.'),
  ADDRESS_NOT_ALLOCATED: permanent('NOT_FOUND', 100, 'The address is not allocated.'),
  ALLOCATION_MISMATCH: permanent(
    'FAILED_PRECONDITION',
    100,
    'The address is allocated, but not as the request expects.',
  ),
  HANDLE_NOT_FOUND: permanent('NOT_FOUND', 100, 'The handle holds no address.'),
  HISTORY_NOT_KEPT: permanent('FAILED_PRECONDITION', 100, 'The service keeps no history of allocations.'),
  CLAIM_REFUSED: permanent('FAILED_PRECONDITION', 100, 'No usable pool contains the range, or its size is wrong.'),
  BLOCK_IN_USE: permanent('FAILED_PRECONDITION', 100, 'Addresses of the block are in use.'),
  NODE_NOT_FOUND: permanent('NOT_FOUND', 107, 'There is no node of that name.'),
  NODE_BEING_DELETED: permanent('FAILED_PRECONDITION', 107, 'The node is being deleted, and gets no addresses.'),
  NODE_NAME_TAKEN: permanent('FAILED_PRECONDITION', 107, 'Another running machine has the node’s name.'),
  NODE_IN_USE: permanent('FAILED_PRECONDITION', 100, 'Pods of a node that runs have the addresses.'),
  SESSION_SUPERSEDED: permanent(
    'FAILED_PRECONDITION',
    11,
    'The call is of an earlier session of the node, or the datastore was restored.',
  ),
  ENDPOINT_NOT_FOUND: permanent('NOT_FOUND', 103, 'The attachment holds no address.'),
  ATTACHMENT_NOT_FOUND: permanent('NOT_FOUND', 103, 'The node has no record of the attachment.'),
  NOT_AS_WANTED: permanent('FAILED_PRECONDITION', 104, 'CHECK found the actual state different from the recorded one.'),
  RESERVATION_EXISTS: permanent('ALREADY_EXISTS', 100, 'A reservation of that name exists.'),
  RESERVATION_NOT_FOUND: permanent('NOT_FOUND', 100, 'There is no reservation of that name.'),
  REQUEST_DENIED: permanent('PERMISSION_DENIED', 109, 'A request policy denies the pod’s request in its namespace.'),
  ACCESS_DENIED: permanent('PERMISSION_DENIED', 110, 'The caller is unknown, or its role does not permit the call.'),
  REQUEST_POLICY_EXISTS: permanent('ALREADY_EXISTS', 100, 'A request policy of that name exists.'),
  REQUEST_POLICY_NOT_FOUND: permanent('NOT_FOUND', 100, 'There is no request policy of that name.'),
  CERTIFICATE_NOT_FOUND: permanent('NOT_FOUND', 100, 'The certificate is not revoked.'),
  CONFIG_CONTRADICTION: permanent('FAILED_PRECONDITION', 100, 'The settings would contradict each other.'),
  POLICIES_NOT_SERVED: permanent(
    'FAILED_PRECONDITION',
    100,
    'This podwire-ipam has no API server for network policies, or does not lead.',
  ),
  STALE_VERSION: permanent('ABORTED', 100, 'The object was changed since it was read.'),
  CONFLICT: retryable('ABORTED', 11, 'The transaction conflicted with concurrent changes in every attempt.'),
  STORE_UNAVAILABLE: retryable('UNAVAILABLE', 11, 'The datastore does not answer.'),
  STORE_LOCKED: permanent('UNAVAILABLE', 11, 'Calico’s tools have locked the datastore.'),
  STORE_RESTORED: retryable(
    'UNAVAILABLE',
    11,
    'The datastore was restored: allocations wait for the reports of the nodes.',
  ),
  STORE_IN_USE: permanent('FAILED_PRECONDITION', 100, 'Another process has the embedded datastore open.'),
  STORE_DENIED: permanent('FAILED_PRECONDITION', 100, 'The datastore refuses the credentials of the service.'),
  STORE_LIMIT: permanent(
    'FAILED_PRECONDITION',
    100,
    'The request needs a larger transaction than the datastore allows.',
  ),
  STORE_FULL: permanent('RESOURCE_EXHAUSTED', 11, 'The datastore has reached its quota; the message names the remedy.'),
  STORE_CORRUPT: permanent('DATA_LOSS', 100, 'A stored record cannot be read.'),
  EXPORT_INVALID: permanent('INVALID_ARGUMENT', 100, 'The file is not a complete export of a datastore.'),
  EXPORT_IO: permanent('FAILED_PRECONDITION', 100, 'The file of an export cannot be read or written.'),
  IMPORT_REFUSED: permanent('FAILED_PRECONDITION', 100, 'This export may not be imported into the datastore.'),
  IMPORT_INCOMPLETE: permanent('FAILED_PRECONDITION', 100, 'The datastore contains an incomplete import.'),
  KERNEL_REFUSED: permanent('INTERNAL', 101, 'The kernel refused an operation.'),
  KERNEL_UNSUPPORTED: permanent('FAILED_PRECONDITION', 101, 'The kernel lacks a required feature.'),
  POD_UNREADABLE: permanent(
    'FAILED_PRECONDITION',
    101,
    'The pod’s network namespace has too many objects, or changes while it is read.',
  ),
  STATE_IO: permanent('FAILED_PRECONDITION', 100, 'The node’s state directory cannot be read or written.'),
  INSTALL_REFUSED: permanent(
    'FAILED_PRECONDITION',
    100,
    'A file to install is unusable, or its path has a file of another program.',
  ),
  INSTALL_IO: permanent('FAILED_PRECONDITION', 100, 'A file of the installation cannot be read or written.'),
  TOO_MANY_STREAMS: retryable('RESOURCE_EXHAUSTED', 11, 'The server or the caller has too many open streams.'),
  TOO_MANY_REQUESTS: retryable('RESOURCE_EXHAUSTED', 11, 'The caller has too many open calls.'),
  UNREACHABLE: retryable('UNAVAILABLE', 11, 'A Podwire service does not answer.'),
  DEADLINE_EXCEEDED: retryable('DEADLINE_EXCEEDED', 11, 'The deadline of the request has passed.'),
  BIRD_UNREACHABLE: retryable('UNAVAILABLE', 11, 'BIRD does not answer on its control socket.'),
  CANCELLED: retryable('CANCELLED', 11, 'The caller cancelled the request.'),
  UNIMPLEMENTED: permanent('UNIMPLEMENTED', 105, 'The release of the peer lacks the method.'),
  RELEASE_MISMATCH: permanent(
    'FAILED_PRECONDITION',
    105,
    'The release of the peer is incompatible; update one of them.',
  ),
  UNKNOWN_REASON: permanent(
    'FAILED_PRECONDITION',
    100,
    'The peer is of a later release and reports an unknown code; see its message.',
  ),
  NOT_READY: retryable('UNAVAILABLE', 50, 'STATUS: no pod can be added.'),
  PODS_AT_RISK: retryable('FAILED_PRECONDITION', 51, 'STATUS: the node cannot record its pending releases.'),
  INVALID_SETTINGS: permanent('FAILED_PRECONDITION', 100, 'A setting of the process is unknown or invalid.'),
  INCOMPATIBLE_CNI_VERSION: permanent('INVALID_ARGUMENT', 1, 'The cniVersion is unknown, or lacks the command.'),
  INVALID_ENVIRONMENT: permanent('INVALID_ARGUMENT', 4, 'A CNI environment variable is missing or malformed.'),
  CONFIG_NOT_JSON: permanent('INVALID_ARGUMENT', 6, 'The network configuration is not a JSON object.'),
  INVALID_CONFIG: permanent('INVALID_ARGUMENT', 7, 'A key of the network configuration is missing or malformed.'),
  DELEGATE_FAILED: permanent('FAILED_PRECONDITION', 108, 'Another IPAM plugin refused, failed, or is missing.'),
  DELEGATE_UNAVAILABLE: retryable('UNAVAILABLE', 11, 'Another IPAM plugin timed out, or asks to retry.'),
  INTERNAL: permanent('INTERNAL', 999, 'A defect in Podwire; the log has the details.'),
};

/** Name of a failure, stable across releases. */
export type FailureCode = keyof typeof FAILURE_CODES;

/** Whether a text, such as one from a peer, is the name of a failure that this release knows. */
export function isFailureCode(text: string): text is FailureCode {
  return Object.hasOwn(FAILURE_CODES, text);
}
