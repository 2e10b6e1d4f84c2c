import { status } from '@grpc/grpc-js';

/**
 * Every way in which Podwire fails, once: what it is called, which gRPC status and which CNI error code carry it, and
 * whether the same request may succeed when it is repeated.
 * CNI codes: specification 1.1.0, section 2 "Error"; those from 100 on are Podwire's own. The table in README.md says the same.
 */
export const FAILURE_CODES = {
  INVALID_REQUEST: {
    status: status.INVALID_ARGUMENT,
    cni: 7,
    retryable: false,
    about: 'A field of the request is malformed.',
  },
  INVALID_NETNS: {
    status: status.INVALID_ARGUMENT,
    cni: 4,
    retryable: false,
    about: 'The path is missing, no network namespace, or the node’s own.',
  },
  INTERFACE_EXISTS: {
    status: status.ALREADY_EXISTS,
    cni: 101,
    retryable: false,
    about: 'The pod has an interface of that name that is not this attachment’s.',
  },
  HOST_INTERFACE_TAKEN: {
    status: status.ALREADY_EXISTS,
    cni: 101,
    retryable: false,
    about: 'The host interface of that name was not made for this attachment.',
  },
  ROUTE_TAKEN: {
    status: status.ALREADY_EXISTS,
    cni: 101,
    retryable: false,
    about: 'A route to a wanted destination leads elsewhere and was not made by Podwire.',
  },
  POOL_EXISTS: { status: status.ALREADY_EXISTS, cni: 100, retryable: false, about: 'A pool of that name exists.' },
  POOL_NOT_FOUND: { status: status.NOT_FOUND, cni: 100, retryable: false, about: 'There is no pool of that name.' },
  POOL_OVERLAP: {
    status: status.FAILED_PRECONDITION,
    cni: 100,
    retryable: false,
    about: 'The range overlaps another pool, or blocks of another size.',
  },
  POOL_IN_USE: {
    status: status.FAILED_PRECONDITION,
    cni: 100,
    retryable: false,
    about: 'Addresses of the pool are in use.',
  },
  POOL_BEING_DELETED: {
    status: status.FAILED_PRECONDITION,
    cni: 100,
    retryable: false,
    about: 'The pool is being deleted.',
  },
  NO_POOL: { status: status.FAILED_PRECONDITION, cni: 102, retryable: false, about: 'There is no pool of the family.' },
  NO_POOL_SERVES: {
    status: status.FAILED_PRECONDITION,
    cni: 11,
    retryable: false,
    about: 'There are pools of the family, and none may serve the request; the message says why for each.',
  },
  POOLS_EXHAUSTED: {
    status: status.RESOURCE_EXHAUSTED,
    cni: 11,
    retryable: false,
    about: 'The pools that serve have no address to give; the message says why for each.',
  },
  ADDRESS_IN_USE: {
    status: status.ALREADY_EXISTS,
    cni: 106,
    retryable: false,
    about: 'The address asked for is somebody else’s, or cools down after its release.',
  },
  ADDRESS_REFUSED: {
    status: status.FAILED_PRECONDITION,
    cni: 106,
    retryable: false,
    about: 'The address asked for may not be given: its pool, its use or strict affinity forbid it.',
  },
  ADDRESS_DIFFERS: {
    status: status.FAILED_PRECONDITION,
    cni: 106,
    retryable: false,
    about: 'The attachment holds another address than the one it asks for.',
  },
  ADDRESS_NOT_ALLOCATED: {
    status: status.NOT_FOUND,
    cni: 100,
    retryable: false,
    about: 'Nobody holds the address.',
  },
  ALLOCATION_MISMATCH: {
    status: status.FAILED_PRECONDITION,
    cni: 100,
    retryable: false,
    about: 'The address is held, but not as the request expects.',
  },
  HANDLE_NOT_FOUND: { status: status.NOT_FOUND, cni: 100, retryable: false, about: 'The handle holds no address.' },
  HISTORY_NOT_KEPT: {
    status: status.FAILED_PRECONDITION,
    cni: 100,
    retryable: false,
    about: 'The service keeps no history of allocations.',
  },
  CLAIM_REFUSED: {
    status: status.FAILED_PRECONDITION,
    cni: 100,
    retryable: false,
    about: 'The range cannot be claimed: no pool in use has it, or its size is wrong.',
  },
  BLOCK_IN_USE: {
    status: status.FAILED_PRECONDITION,
    cni: 100,
    retryable: false,
    about: 'Addresses of the block are in use.',
  },
  NODE_NOT_FOUND: {
    status: status.NOT_FOUND,
    cni: 107,
    retryable: false,
    about: 'There is no node of that name.',
  },
  NODE_BEING_DELETED: {
    status: status.FAILED_PRECONDITION,
    cni: 107,
    retryable: false,
    about: 'The node gives back what it holds, and gets no address any more.',
  },
  ENDPOINT_NOT_FOUND: {
    status: status.NOT_FOUND,
    cni: 103,
    retryable: false,
    about: 'The attachment holds no address.',
  },
  ATTACHMENT_NOT_FOUND: {
    status: status.NOT_FOUND,
    cni: 103,
    retryable: false,
    about: 'The node knows nothing of the attachment.',
  },
  NOT_AS_WANTED: {
    status: status.FAILED_PRECONDITION,
    cni: 104,
    retryable: false,
    about: 'CHECK found a difference between what is wanted and what is there.',
  },
  RESERVATION_EXISTS: {
    status: status.ALREADY_EXISTS,
    cni: 100,
    retryable: false,
    about: 'A reservation of that name exists.',
  },
  RESERVATION_NOT_FOUND: {
    status: status.NOT_FOUND,
    cni: 100,
    retryable: false,
    about: 'There is no reservation of that name.',
  },
  REQUEST_DENIED: {
    status: status.PERMISSION_DENIED,
    cni: 109,
    retryable: false,
    about: 'A request policy forbids the namespace what its pod asks for.',
  },
  REQUEST_POLICY_EXISTS: {
    status: status.ALREADY_EXISTS,
    cni: 100,
    retryable: false,
    about: 'A request policy of that name exists.',
  },
  REQUEST_POLICY_NOT_FOUND: {
    status: status.NOT_FOUND,
    cni: 100,
    retryable: false,
    about: 'There is no request policy of that name.',
  },
  CONFIG_CONTRADICTION: {
    status: status.FAILED_PRECONDITION,
    cni: 100,
    retryable: false,
    about: 'The settings of the configuration would contradict each other.',
  },
  STALE_VERSION: {
    status: status.ABORTED,
    cni: 100,
    retryable: false,
    about: 'The object was changed since it was read.',
  },
  CONFLICT: {
    status: status.ABORTED,
    cni: 11,
    retryable: true,
    about: 'Too many others changed the same records at the same time.',
  },
  STORE_UNAVAILABLE: { status: status.UNAVAILABLE, cni: 11, retryable: true, about: 'The datastore does not answer.' },
  STORE_LOCKED: {
    status: status.UNAVAILABLE,
    cni: 11,
    retryable: false,
    about: 'Calico’s tools have locked the datastore, as for a migration.',
  },
  STORE_IN_USE: {
    status: status.FAILED_PRECONDITION,
    cni: 100,
    retryable: false,
    about: 'Another process has the embedded datastore open.',
  },
  STORE_DENIED: {
    status: status.FAILED_PRECONDITION,
    cni: 100,
    retryable: false,
    about: 'The datastore refuses the credentials of the service.',
  },
  STORE_LIMIT: {
    status: status.FAILED_PRECONDITION,
    cni: 100,
    retryable: false,
    about: 'The request needs a larger transaction than the datastore allows.',
  },
  STORE_FULL: {
    status: status.RESOURCE_EXHAUSTED,
    cni: 11,
    retryable: false,
    about: 'The datastore has reached its quota; the message says how to give it space.',
  },
  STORE_CORRUPT: { status: status.DATA_LOSS, cni: 100, retryable: false, about: 'A stored record cannot be read.' },
  EXPORT_INVALID: {
    status: status.INVALID_ARGUMENT,
    cni: 100,
    retryable: false,
    about: 'The file is no whole export of a datastore.',
  },
  EXPORT_IO: {
    status: status.FAILED_PRECONDITION,
    cni: 100,
    retryable: false,
    about: 'The file of an export cannot be read or written.',
  },
  IMPORT_REFUSED: {
    status: status.FAILED_PRECONDITION,
    cni: 100,
    retryable: false,
    about: 'The datastore is not one that this export may be imported into.',
  },
  IMPORT_INCOMPLETE: {
    status: status.FAILED_PRECONDITION,
    cni: 100,
    retryable: false,
    about: 'The datastore has a part of an import alone.',
  },
  KERNEL_REFUSED: {
    status: status.INTERNAL,
    cni: 101,
    retryable: false,
    about: 'The kernel refused an operation; the message holds its own text.',
  },
  KERNEL_UNSUPPORTED: {
    status: status.FAILED_PRECONDITION,
    cni: 101,
    retryable: false,
    about: 'The kernel lacks what is needed.',
  },
  POD_UNREADABLE: {
    status: status.FAILED_PRECONDITION,
    cni: 101,
    retryable: false,
    about: 'The pod’s network namespace holds more than is read of one, or changes while it is read.',
  },
  STATE_IO: {
    status: status.FAILED_PRECONDITION,
    cni: 100,
    retryable: false,
    about: 'The node’s state directory cannot be read or written.',
  },
  INSTALL_REFUSED: {
    status: status.FAILED_PRECONDITION,
    cni: 100,
    retryable: false,
    about: 'What is to be installed cannot be used, or something in its place is not Podwire’s.',
  },
  INSTALL_IO: {
    status: status.FAILED_PRECONDITION,
    cni: 100,
    retryable: false,
    about: 'A file of the installation cannot be read or written.',
  },
  TOO_MANY_STREAMS: {
    status: status.RESOURCE_EXHAUSTED,
    cni: 11,
    retryable: true,
    about: 'The server has as many streams open as it may.',
  },
  UNREACHABLE: { status: status.UNAVAILABLE, cni: 11, retryable: true, about: 'A Podwire service does not answer.' },
  DEADLINE_EXCEEDED: {
    status: status.DEADLINE_EXCEEDED,
    cni: 11,
    retryable: true,
    about: 'The time for the request is over.',
  },
  BIRD_UNREACHABLE: {
    status: status.UNAVAILABLE,
    cni: 11,
    retryable: true,
    about: 'BIRD does not answer on its control socket.',
  },
  CANCELLED: { status: status.CANCELLED, cni: 11, retryable: true, about: 'The caller gave up.' },
  UNIMPLEMENTED: {
    status: status.UNIMPLEMENTED,
    cni: 105,
    retryable: false,
    about: 'The other side is of a release that lacks the method.',
  },
  RELEASE_MISMATCH: {
    status: status.FAILED_PRECONDITION,
    cni: 105,
    retryable: false,
    about: 'The other side is of a release too far from this one; the message says which to update.',
  },
  UNKNOWN_REASON: {
    status: status.FAILED_PRECONDITION,
    cni: 100,
    retryable: false,
    about: 'The other side is of a later release and has a reason of its own, which its message tells.',
  },
  NOT_READY: {
    status: status.UNAVAILABLE,
    cni: 50,
    retryable: true,
    about: 'STATUS: no pod can be added; the message says why.',
  },
  PODS_AT_RISK: {
    status: status.FAILED_PRECONDITION,
    cni: 51,
    retryable: true,
    about: 'STATUS: the node cannot keep account of what it deletes.',
  },
  INVALID_SETTINGS: {
    status: status.FAILED_PRECONDITION,
    cni: 100,
    retryable: false,
    about: 'A setting of the process is unknown or has a nonsense value.',
  },
  INCOMPATIBLE_CNI_VERSION: {
    status: status.INVALID_ARGUMENT,
    cni: 1,
    retryable: false,
    about: 'The cniVersion is unknown, or lacks the verb.',
  },
  INVALID_ENVIRONMENT: {
    status: status.INVALID_ARGUMENT,
    cni: 4,
    retryable: false,
    about: 'A CNI environment variable is missing or malformed.',
  },
  CONFIG_NOT_JSON: {
    status: status.INVALID_ARGUMENT,
    cni: 6,
    retryable: false,
    about: 'The network configuration is not a JSON object.',
  },
  INVALID_CONFIG: {
    status: status.INVALID_ARGUMENT,
    cni: 7,
    retryable: false,
    about: 'A key of the network configuration is missing or malformed.',
  },
  DELEGATE_FAILED: {
    status: status.FAILED_PRECONDITION,
    cni: 108,
    retryable: false,
    about: 'Another IPAM plugin refused, broke, or is missing.',
  },
  DELEGATE_UNAVAILABLE: {
    status: status.UNAVAILABLE,
    cni: 11,
    retryable: true,
    about: 'Another IPAM plugin takes too long, or asks to try again.',
  },
  INTERNAL: {
    status: status.INTERNAL,
    cni: 999,
    retryable: false,
    about: 'A defect in Podwire; the log has the details under the same trace.',
  },
} as const satisfies Record<string, CodeEntry>;

interface CodeEntry {
  readonly status: status;
  readonly cni: number;
  readonly retryable: boolean;
  readonly about: string;
}

/** Name of a failure, stable over releases. */
export type FailureCode = keyof typeof FAILURE_CODES;

/** Whether a text, as a peer may have sent it, is the name of a failure that this release knows. */
export function isFailureCode(text: string): text is FailureCode {
  return Object.hasOwn(FAILURE_CODES, text);
}
