import type { Attachment } from '@podwire/shared/attachment/attachment';
import type { Family } from '@podwire/shared/net/address';
import type { Mac } from '@podwire/shared/net/mac';

import type { Pod } from '../cni/environment.js';
import type { Wish } from '../cni/pod-request.js';

/** What the plugin wants from Podwire's services, in its own values. Every call is idempotent and repeated while that may help. */

/** How long a call, with all its repetitions, may take. */
export interface Limits {
  /** When its answer is of no use any more, in epoch milliseconds. */
  readonly deadlineMs: number;
  /** Ends it early; with a Failure as its reason, which the call then throws. */
  readonly signal: AbortSignal;
  /** Receives the duration of a method, including retries and the pauses between them. */
  readonly noteDuration?: (method: ServiceMethod, durationMs: number) => void;
}

/** What was asked of whom: `podwire-ipam`, `Allocate`. */
export interface ServiceMethod {
  readonly service: string;
  readonly method: string;
}

/**
 * A call that is opened while what it is about is still awaited, so that less is left to do then. It is closed in any case; one that was
 * opened and not made has done nothing.
 */
export interface CallToCome<Subject, Answer> {
  readonly make: (subject: Subject, limits: Limits) => Promise<Answer>;
  /** Idempotent. */
  readonly close: () => void;
}

/** One address of an allocation: with its sequence number it names this allocation, and no later one of the same address. */
export interface HeldAddress {
  /** Without prefix length (`10.65.0.7`). */
  readonly address: string;
  readonly sequenceNumber: bigint;
}

/** What IPAM gave an attachment. */
export interface Endpoint {
  /** Addresses as CIDRs of full length (`10.65.0.7/32`), at least one. */
  readonly addresses: readonly string[];
  /** The same addresses as this allocation's, so that giving them back frees no later one. */
  readonly held: readonly HeldAddress[];
  readonly macAddress: Mac;
  readonly hostInterfaceName: string;
}

export interface AllocationRequest {
  readonly attachment: Attachment;
  readonly nodeName: string;
  readonly pod: Pod | undefined;
  /** Undefined where the addresses are not for a namespace. */
  readonly netns: NetnsIdentity | undefined;
  /** The families wanted; empty means those of the addresses, and IPv4 where there are none. */
  readonly families: readonly Family[];
  /** Pools to take from, by name or CIDR; empty leaves them to IPAM. */
  readonly pools: readonly string[];
  /** Addresses wanted by themselves, without prefix length. */
  readonly addresses: readonly string[];
  /** What request policies judge beside pools and addresses; not there for what is no pod's. */
  readonly asked?: AskedOfPod;
}

/** What request policies have to know of a pod's wishes. */
export type AskedOfPod = Pick<
  Wish,
  | 'chosenFamilies'
  | 'addressesWithoutIpam'
  | 'macAddress'
  | 'sourcePrefixes'
  | 'floatingIps'
  | 'poolChoices'
  | 'namespaceLabels'
>;

/** A pod that is to get what IPAM does not give. */
export interface AuthorizationRequest {
  readonly pod: Pod;
  /** Addresses requested from the provider, without prefix length. */
  readonly addresses: readonly string[];
  readonly asked: AskedOfPod;
}

export interface Allocation {
  readonly endpoint: Endpoint;
  /** Whether it was there before: from an earlier ADD, or from an attempt of this one whose answer was lost. */
  readonly alreadyAllocated: boolean;
  /** Names of the pools that the addresses are of, in their order; empty where IPAM did not give them. */
  readonly poolNames: readonly string[];
  /** DNS settings for the result, if the address provider returned any. */
  readonly dns?: unknown;
}

/** podwire-ipam. Methods throw the service's Failure, or UNREACHABLE, DEADLINE_EXCEEDED or the signal's reason. */
export interface Ipam {
  /** After a failure it may have happened or not. */
  allocate(request: AllocationRequest, limits: Limits): Promise<Allocation>;
  /** Changes nothing. @throws Failure REQUEST_DENIED where a request policy forbids it */
  authorize(request: AuthorizationRequest, limits: Limits): Promise<void>;
  /** Releasing what is not held succeeds. */
  release(attachment: Attachment, limits: Limits): Promise<void>;
  /** For a {@link release}. */
  openRelease(limits: Limits): CallToCome<Attachment, void>;
  /** @returns undefined when the attachment holds nothing */
  getEndpoint(attachment: Attachment, limits: Limits): Promise<Endpoint | undefined>;
  /** The range of a pool, as CIDR. */
  poolCidr(name: string, limits: Limits): Promise<string>;
}

/** The wanted state of one attachment in the kernel. */
export interface WantedPod extends Endpoint {
  readonly attachment: Attachment;
  /** Path of the pod's network namespace. */
  readonly netns: string;
  /** MTU of both ends in bytes; 0 leaves it to the dataplane. */
  readonly mtuBytes: number;
  readonly ipForwarding: boolean;
  /** What the pod may send from besides its own addresses, as CIDRs. */
  readonly sourcePrefixes: readonly string[];
  /** Number of transmit and of receive queues; 0 leaves it to the kernel. */
  readonly queueCount: number;
  /** Whether podwire-ipam gave the addresses. */
  readonly addressesFromIpam: boolean;
}

/** One end of a veth pair. */
export interface Interface {
  readonly name: string;
  readonly macAddress: Mac;
  readonly mtuBytes: number;
}

export interface Wire {
  readonly hostInterface: Interface;
  readonly podInterface: Interface;
}

/** Something in the kernel that is not as wanted, in the notation of `ip` and `sysctl`. */
export interface Difference {
  readonly object: string;
  readonly wanted: string;
  readonly actual: string;
}

export interface Detachment {
  readonly attachment: Attachment;
  /** Absolute path of the pod's network namespace, where it is known. */
  readonly netns?: string | undefined;
}

/** podwire-dataplane. Methods throw the service's Failure, or UNREACHABLE, DEADLINE_EXCEEDED or the signal's reason. */
export interface Dataplane {
  /** Starts an AttachPod. If the service fails, it has rolled everything back; if the answer is lost, the result is unknown. */
  openAttachPod(limits: Limits): CallToCome<WantedPod, Wire>;
  /** Detaching what is not attached succeeds. */
  detachPod(detachment: Detachment, limits: Limits): Promise<void>;
  /** @returns the first difference, in the order of repair, or undefined */
  checkPod(pod: WantedPod, limits: Limits): Promise<Difference | undefined>;
  /** Whether the kernel holds a wire of the attachment. */
  isAttached(attachment: Attachment, limits: Limits): Promise<boolean>;
}

/** Identifies a network namespace uniquely over the lifetime of the node. */
export interface NetnsIdentity {
  /** Identity of the node's boot (proc(5), /proc/sys/kernel/random/boot_id). */
  readonly bootId: string;
  /** Inode number of the namespace. */
  readonly inode: bigint;
}
