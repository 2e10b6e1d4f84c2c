import type {
  AllocatedAddress,
  NetnsIdentity,
  PodName,
  RecordedAllocation,
} from '@podwire/shared/attachment/allocation';
import type { Attachment } from '@podwire/shared/attachment/attachment';
import type { Difference, PodNetwork } from '@podwire/shared/attachment/pod-network';
import type { Failure } from '@podwire/shared/failure/failure';
import type { Address, Family } from '@podwire/shared/net/address';
import type { Mac } from '@podwire/shared/net/mac';

import type { PodRequest } from '../cni/pod-request.js';

/** Podwire's services as the commands see them. Every call is idempotent; transient failures are retried until the deadline. */

/** How long a call may take, retries included. */
export interface Limits {
  /** Deadline in epoch milliseconds. */
  readonly deadlineMs: number;
  /** Cancels the call; its reason is a Failure, which the call then throws. */
  readonly signal: AbortSignal;
}

/** Addresses and interface names of an attachment. */
export interface Endpoint {
  /** Addresses, at least one. */
  readonly addresses: readonly Address[];
  /** Whether podwire-ipam allocated them. */
  readonly addressesFromIpam: boolean;
  /** The same addresses with sequence numbers, so that a release frees no later allocation. */
  readonly held: readonly AllocatedAddress[];
  readonly macAddress: Mac;
  readonly hostInterfaceName: string;
}

export interface AllocationRequest {
  readonly attachment: Attachment;
  readonly nodeName: string;
  readonly pod: PodName | undefined;
  /** Namespace; undefined for a gateway address, which belongs to no namespace. */
  readonly netns: NetnsIdentity | undefined;
  /** Empty: the families of the requested addresses, or else IPv4. */
  readonly families: readonly Family[];
  /** Pools by name or CIDR; empty: podwire-ipam chooses. */
  readonly pools: readonly string[];
  /** Requested addresses, without prefix length. */
  readonly addresses: readonly string[];
  /** Input of request policies beside pools and addresses; absent for a gateway address. */
  readonly policyInput?: PolicyInput;
}

/** The parts of a pod's request that request policies evaluate. */
export type PolicyInput = Pick<
  PodRequest,
  'chosenFamilies' | 'addressesWithoutIpam' | 'macAddress' | 'sourcePrefixes' | 'poolChoices'
>;

/** A request whose addresses podwire-ipam does not allocate. */
export interface AuthorizationRequest {
  readonly pod: PodName;
  /** Addresses requested from the provider, without prefix length. */
  readonly addresses: readonly string[];
  readonly policyInput: PolicyInput;
}

export interface Allocation {
  readonly endpoint: Endpoint;
  /** Whether it existed before: from an earlier ADD, or from an attempt of this one whose answer was lost. */
  readonly alreadyAllocated: boolean;
  /** Pool and block of each address, in the same order; absent unless Allocate of podwire-ipam returned them. */
  readonly origins?: readonly { readonly poolName: string; readonly blockCidr: string }[];
  /** The node's leases that it consists of. */
  readonly leases?: readonly LeasedAddress[];
  /** Whether podwire-ipam has recorded it for the attachment. Default: true. */
  readonly isBound?: boolean;
  /** DNS settings for the result, if the address provider returned any. */
  readonly dns?: unknown;
}

/** The allocation of an attachment of this node. */
export interface NodeEndpoint {
  readonly attachment: Attachment;
  readonly held: readonly AllocatedAddress[];
  /** The boot in which it was allocated; undefined if not recorded. */
  readonly bootId: string | undefined;
  /** Creation in epoch milliseconds; undefined if not recorded. */
  readonly createdAtMs: number | undefined;
}

/** The hypothetical pod of a readiness probe. */
export interface ProbePod {
  readonly nodeName: string;
  readonly network: string;
  readonly podRequest: Pick<PodRequest, 'families' | 'pools' | 'poolChoices'>;
}

/** podwire-ipam. Methods throw the service's Failure, or UNREACHABLE, DEADLINE_EXCEEDED, UNIMPLEMENTED or the signal's reason. */
export interface Ipam {
  /** Allocates addresses; the outcome after a failure is unknown. */
  allocate(request: AllocationRequest, limits: Limits): Promise<Allocation>;
  /** Read-only. @throws Failure REQUEST_DENIED if a request policy denies it */
  authorize(request: AuthorizationRequest, limits: Limits): Promise<void>;
  /** Releasing addresses that are not held succeeds. */
  release(attachment: Attachment, limits: Limits): Promise<void>;
  /** @returns undefined when the attachment has no allocation */
  getEndpoint(attachment: Attachment, limits: Limits): Promise<Endpoint | undefined>;
  poolCidr(name: string, limits: Limits): Promise<string>;
  /** The podCIDRs of the Kubernetes Node; none without Kubernetes. */
  podCidrs(nodeName: string, limits: Limits): Promise<readonly string[]>;
  /** Releases these addresses of the attachment, and no later allocation. Idempotent. Call it from the attachment's queue. */
  releaseHeld(attachment: Attachment, held: readonly AllocatedAddress[], limits: Limits): Promise<void>;
  /** Allocations of a node's attachments to a network. */
  endpointsOf(of: { readonly nodeName: string; readonly network: string }, limits: Limits): Promise<NodeEndpoint[]>;
  /** Why a pod of a node would get no address; undefined when it would get one. Not retried. */
  refusalOf(pod: ProbePod, limits: Limits): Promise<string | undefined>;
  /** Whether the service reports SERVING. Not retried. */
  isServing(limits: Limits): Promise<boolean>;
  /** Name and address of the service while there is no connection to it; undefined while there is one. */
  unreachablePeer(): string | undefined;
}

/** One end of a veth pair. */
interface Interface {
  readonly name: string;
  /** Null: the kernel reports none. */
  readonly mac: Mac | null;
  readonly mtuBytes: number;
}

export interface Wire {
  readonly host: Interface;
  readonly pod: Interface;
}

export interface Detachment {
  readonly attachment: Attachment;
  /** Absolute path of the pod's network namespace, if known. */
  readonly netns?: string | undefined;
}

/** An attachment that could not be removed, and why. */
export interface CollectionFailure {
  readonly attachment: Attachment;
  readonly message: string;
}

/** A pod wire of this node. */
export interface NodeWire {
  readonly attachment: Attachment;
  /** Addresses that the node routes to it, without prefix length. */
  readonly addresses: readonly string[];
}

/** The node's record of an attachment. */
export interface RecordedPod {
  /** Undefined: its addresses are not podwire-ipam's. */
  readonly allocation: RecordedAllocation | undefined;
  /** Inode of its network namespace. */
  readonly netnsInode: bigint;
  /** Its detach has begun; the dataplane completes it in the background. */
  readonly isDetaching: boolean;
  /** Its wire is gone; its addresses are returned in the background. */
  readonly isDead: boolean;
}

/** An address that podwire-ipam has lent to the node. */
export interface LeasedAddress extends AllocatedAddress {
  readonly poolName: string;
}

export type TakenLeases =
  | { readonly leases: readonly LeasedAddress[] }
  /** Why there are none; a value of the metric's label `reason`. */
  | { readonly leases?: undefined; readonly reason: 'off' | 'known' | 'locked' | 'unavailable' | 'exhausted' };

/** The addresses that this node has without podwire-ipam: leases, and addresses of its pods. */
export interface NodeAddresses {
  /** Starts the work in the background. Called once, before the first command. */
  start(plugin: PluginAttachments): void;
  /**
   * Why no ADD with addresses of podwire-ipam may be answered, also not one that podwire-ipam allocates for: another machine has
   * the node's name. Undefined: it may.
   */
  readonly refusal: Failure | undefined;
  /**
   * Waits until podwire-ipam has said, once in the life of this process, that this machine has the node's name. Before, another
   * machine may have it, and podwire-ipam would allocate for both.
   * @throws Failure NODE_NAME_TAKEN; UNREACHABLE or DEADLINE_EXCEEDED without an answer; the signal's reason
   */
  requireName(signal: AbortSignal): Promise<void>;
  /**
   * Takes one address of each family for a new attachment: a lease, or while podwire-ipam is unreachable one that a deleted pod of this
   * node had. Waits shortly for leases that are on their way.
   */
  take(attachment: Attachment, families: readonly Family[], signal: AbortSignal): Promise<TakenLeases>;
  /** Undoes {@link take} for an attachment that was never wired. */
  giveBack(leases: readonly LeasedAddress[]): void;
  /** Whether a pod of these families would get addresses without podwire-ipam. */
  hasLeases(families: readonly Family[]): boolean;
  /** @returns undefined if the attachment has no record */
  recorded(attachment: Attachment): RecordedPod | undefined;
  /** Whether the record of another attachment that has not ended has the address (without prefix length). */
  isHeldByOtherPod(attachment: Attachment, address: string): boolean;
  /**
   * Returns at once what ended attachments of this node had of these: the addresses of this attachment's earlier ADD, and requested
   * ones. @throws the signal's reason
   */
  returned(attachment: Attachment, addresses: readonly string[], signal: AbortSignal): Promise<void>;
  /**
   * Compares the node's addresses with podwire-ipam's records of them, now.
   * @returns allocations of attachments of the network that neither a record nor an interface of the node has, and that the node
   * cannot return by itself: another main plugin may have wired them
   */
  unknownAllocations(network: string, limits: Limits): Promise<readonly NodeEndpoint[]>;
}

/**
 * State of an attachment without a record: a release of it is pending; it is a node's gateway address; Podwire
 * wires all pods of its network; or another main plugin may have wired it.
 */
export type AttachmentUsage = 'pending' | 'gateway' | 'wired' | 'unknown';

/** Attachments as only the plugin knows them. */
export interface PluginAttachments {
  /** Runs work in the attachment's turn among the commands. @throws errors of the work; DEADLINE_EXCEEDED before it has begun */
  runExclusive<Result>(attachment: Attachment, timeoutMs: number, work: () => Promise<Result>): Promise<Result>;
  /** Addresses of pending releases, without prefix length. */
  pendingAddresses(): readonly string[];
  usageOf(attachment: Attachment): AttachmentUsage;
}

/** The dataplane of this process. Methods throw its Failure, or DEADLINE_EXCEEDED or the signal's reason. */
export interface Dataplane {
  /**
   * A failure of the dataplane means that it rolled back; after a timeout or an abort the outcome is unknown.
   * @param allocation - for the record; undefined: the addresses are not podwire-ipam's
   */
  attachPod(network: PodNetwork, limits: Limits, allocation?: RecordedAllocation): Promise<Wire>;
  /** Detaching an unknown attachment succeeds. */
  detachPod(detachment: Detachment, limits: Limits): Promise<void>;
  /** @returns the first difference, in the order of repair, or undefined */
  checkPod(network: PodNetwork, limits: Limits): Promise<Difference | undefined>;
  /** Whether the kernel holds a wire of the attachment. */
  isAttached(attachment: Attachment, limits: Limits): Promise<boolean>;
  /** Removes the network's wires that are not in `valid`. Continues after a wire that cannot be removed. Idempotent. */
  collectGarbage(
    garbage: { readonly network: string; readonly valid: readonly Attachment[] },
    limits: Limits,
  ): Promise<readonly CollectionFailure[]>;
  /** The wires of all networks in the kernel. */
  wires(limits: Limits): Promise<readonly NodeWire[]>;
  /** Whether the dataplane can wire pods. */
  isServing(): boolean;
}
