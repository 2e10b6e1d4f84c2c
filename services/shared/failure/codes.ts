import { status } from '@grpc/grpc-js';

/**
 * Every failure of Podwire: its name, its gRPC status, its CNI error code, and whether a retry of the same request may
 * succeed.
 * CNI codes: specification 1.1.0, section 2 "Error"; codes from 100 on are specific to Podwire. README.md has the same table.
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
    about: 'The path is missing, not a network namespace, or the node’s own.',
  },
  INTERFACE_EXISTS: {
    status: status.ALREADY_EXISTS,
    cni: 101,
    retryable: false,
    about: 'Another interface of the pod has that name.',
  },
  HOST_INTERFACE_TAKEN: {
    status: status.ALREADY_EXISTS,
    cni: 101,
    retryable: false,
    about: 'Another host interface has that name.',
  },
  HOST_PORT_TAKEN: {
    status: status.ALREADY_EXISTS,
    cni: 11,
    retryable: true,
    about: 'Another pod of the node has the host port.',
  },
  ROUTE_TAKEN: {
    status: status.ALREADY_EXISTS,
    cni: 101,
    retryable: false,
    about: 'Another program’s route to a required destination leads elsewhere.',
  },
  POOL_EXISTS: { status: status.ALREADY_EXISTS, cni: 100, retryable: false, about: 'A pool of that name exists.' },
  POOL_NOT_FOUND: { status: status.NOT_FOUND, cni: 100, retryable: false, about: 'There is no pool of that name.' },
  POOL_OVERLAP: {
    status: status.FAILED_PRECONDITION,
    cni: 100,
    retryable: false,
    about: 'The range overlaps another pool, blocks of another size, or addresses of hosts.',
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
    about: 'No pool of the family serves the request; the message names the reasons.',
  },
  POOLS_EXHAUSTED: {
    status: status.RESOURCE_EXHAUSTED,
    cni: 11,
    retryable: false,
    about: 'The pools that serve the request have no free address.',
  },
  ADDRESS_IN_USE: {
    status: status.ALREADY_EXISTS,
    cni: 106,
    retryable: false,
    about: 'The requested address has another owner, or cools down.',
  },
  ADDRESS_REFUSED: {
    status: status.FAILED_PRECONDITION,
    cni: 106,
    retryable: false,
    about: 'Pool, use, strict affinity or the shares of other nodes forbid the requested address.',
  },
  ADDRESS_DIFFERS: {
    status: status.FAILED_PRECONDITION,
    cni: 106,
    retryable: false,
    about: 'The attachment holds another address.',
  },
  ADDRESS_NOT_ALLOCATED: {
    status: status.NOT_FOUND,
    cni: 100,
    retryable: false,
    about: 'The address is not allocated.',
  },
  ALLOCATION_MISMATCH: {
    status: status.FAILED_PRECONDITION,
    cni: 100,
    retryable: false,
    about: 'The address is allocated, but not as the request expects.',
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
    about: 'No usable pool contains the range, or its size is wrong.',
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
    about: 'The node is being deleted, and gets no addresses.',
  },
  NODE_NAME_TAKEN: {
    status: status.FAILED_PRECONDITION,
    cni: 107,
    retryable: false,
    about: 'Another running machine has the node’s name.',
  },
  NODE_IN_USE: {
    status: status.FAILED_PRECONDITION,
    cni: 100,
    retryable: false,
    about: 'Pods of a node that runs have the addresses.',
  },
  SESSION_SUPERSEDED: {
    status: status.FAILED_PRECONDITION,
    cni: 11,
    retryable: false,
    about: 'The call is of an earlier session of the node, or the datastore was restored.',
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
    about: 'The node has no record of the attachment.',
  },
  NOT_AS_WANTED: {
    status: status.FAILED_PRECONDITION,
    cni: 104,
    retryable: false,
    about: 'CHECK found the actual state different from the recorded one.',
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
    about: 'A request policy denies the pod’s request in its namespace.',
  },
  ACCESS_DENIED: {
    status: status.PERMISSION_DENIED,
    cni: 110,
    retryable: false,
    about: 'The caller is unknown, or its role does not permit the call.',
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
  CERTIFICATE_NOT_FOUND: {
    status: status.NOT_FOUND,
    cni: 100,
    retryable: false,
    about: 'The certificate is not revoked.',
  },
  CONFIG_CONTRADICTION: {
    status: status.FAILED_PRECONDITION,
    cni: 100,
    retryable: false,
    about: 'The settings would contradict each other.',
  },
  POLICIES_NOT_SERVED: {
    status: status.FAILED_PRECONDITION,
    cni: 100,
    retryable: false,
    about: 'This podwire-ipam has no API server for network policies, or does not lead.',
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
    about: 'The transaction conflicted with concurrent changes in every attempt.',
  },
  STORE_UNAVAILABLE: { status: status.UNAVAILABLE, cni: 11, retryable: true, about: 'The datastore does not answer.' },
  STORE_LOCKED: {
    status: status.UNAVAILABLE,
    cni: 11,
    retryable: false,
    about: 'Calico’s tools have locked the datastore.',
  },
  STORE_RESTORED: {
    status: status.UNAVAILABLE,
    cni: 11,
    retryable: true,
    about: 'The datastore was restored: allocations wait for the reports of the nodes.',
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
    about: 'The datastore has reached its quota; the message names the remedy.',
  },
  STORE_CORRUPT: { status: status.DATA_LOSS, cni: 100, retryable: false, about: 'A stored record cannot be read.' },
  EXPORT_INVALID: {
    status: status.INVALID_ARGUMENT,
    cni: 100,
    retryable: false,
    about: 'The file is not a complete export of a datastore.',
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
    about: 'This export may not be imported into the datastore.',
  },
  IMPORT_INCOMPLETE: {
    status: status.FAILED_PRECONDITION,
    cni: 100,
    retryable: false,
    about: 'The datastore contains an incomplete import.',
  },
  KERNEL_REFUSED: {
    status: status.INTERNAL,
    cni: 101,
    retryable: false,
    about: 'The kernel refused an operation.',
  },
  KERNEL_UNSUPPORTED: {
    status: status.FAILED_PRECONDITION,
    cni: 101,
    retryable: false,
    about: 'The kernel lacks a required feature.',
  },
  POD_UNREADABLE: {
    status: status.FAILED_PRECONDITION,
    cni: 101,
    retryable: false,
    about: 'The pod’s network namespace has too many objects, or changes while it is read.',
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
    about: 'A file to install is unusable, or its path has a file of another program.',
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
    about: 'The server or the caller has too many open streams.',
  },
  TOO_MANY_REQUESTS: {
    status: status.RESOURCE_EXHAUSTED,
    cni: 11,
    retryable: true,
    about: 'The caller has too many open calls.',
  },
  UNREACHABLE: { status: status.UNAVAILABLE, cni: 11, retryable: true, about: 'A Podwire service does not answer.' },
  DEADLINE_EXCEEDED: {
    status: status.DEADLINE_EXCEEDED,
    cni: 11,
    retryable: true,
    about: 'The deadline of the request has passed.',
  },
  BIRD_UNREACHABLE: {
    status: status.UNAVAILABLE,
    cni: 11,
    retryable: true,
    about: 'BIRD does not answer on its control socket.',
  },
  CANCELLED: { status: status.CANCELLED, cni: 11, retryable: true, about: 'The caller cancelled the request.' },
  UNIMPLEMENTED: {
    status: status.UNIMPLEMENTED,
    cni: 105,
    retryable: false,
    about: 'The release of the peer lacks the method.',
  },
  RELEASE_MISMATCH: {
    status: status.FAILED_PRECONDITION,
    cni: 105,
    retryable: false,
    about: 'The release of the peer is incompatible; update one of them.',
  },
  UNKNOWN_REASON: {
    status: status.FAILED_PRECONDITION,
    cni: 100,
    retryable: false,
    about: 'The peer is of a later release and reports an unknown code; see its message.',
  },
  NOT_READY: {
    status: status.UNAVAILABLE,
    cni: 50,
    retryable: true,
    about: 'STATUS: no pod can be added.',
  },
  PODS_AT_RISK: {
    status: status.FAILED_PRECONDITION,
    cni: 51,
    retryable: true,
    about: 'STATUS: the node cannot record its pending releases.',
  },
  INVALID_SETTINGS: {
    status: status.FAILED_PRECONDITION,
    cni: 100,
    retryable: false,
    about: 'A setting of the process is unknown or invalid.',
  },
  INCOMPATIBLE_CNI_VERSION: {
    status: status.INVALID_ARGUMENT,
    cni: 1,
    retryable: false,
    about: 'The cniVersion is unknown, or lacks the command.',
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
    about: 'Another IPAM plugin refused, failed, or is missing.',
  },
  DELEGATE_UNAVAILABLE: {
    status: status.UNAVAILABLE,
    cni: 11,
    retryable: true,
    about: 'Another IPAM plugin timed out, or asks to retry.',
  },
  INTERNAL: {
    status: status.INTERNAL,
    cni: 999,
    retryable: false,
    about: 'A defect in Podwire; the log has the details.',
  },
} as const satisfies Record<string, CodeEntry>;

interface CodeEntry {
  readonly status: status;
  readonly cni: number;
  readonly retryable: boolean;
  readonly about: string;
}

/** Name of a failure, stable across releases. */
export type FailureCode = keyof typeof FAILURE_CODES;

/** Whether a text, such as one from a peer, is the name of a failure that this release knows. */
export function isFailureCode(text: string): text is FailureCode {
  return Object.hasOwn(FAILURE_CODES, text);
}
