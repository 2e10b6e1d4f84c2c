import type { PodName } from '@podwire/shared/attachment/allocation';
import type { Attachment } from '@podwire/shared/attachment/attachment';
import type { PortProtocol } from '@podwire/shared/attachment/host-port';
import type { Difference, PodNetwork } from '@podwire/shared/attachment/pod-network';
import type { Failure } from '@podwire/shared/failure/failure';

import type { NamespaceIdentity } from '../records/record.js';
import type { Wanted } from '../wiring/network.js';
import type { Observed, ObservedLink } from '../wiring/observed.js';
import type { Rule, Side, Step } from '../wiring/step.js';

/**
 * The kernel of the node, as far as pods' networks need it. Implementations: netlink, and memory (the fake); both pass
 * the contracts in `testing`.
 *
 * Every method fails with KERNEL_REFUSED when the kernel refuses or cannot be queried, and with KERNEL_UNSUPPORTED when it lacks
 * a needed feature; both carry the operation, the object, the errno's name and the kernel's own text.
 */
export interface Kernel {
  /**
   * Checks that the kernel responds and supports veth pairs.
   * Result: nothing, or a failure that names the missing feature. Changes nothing. Idempotent.
   */
  probe(): Promise<void>;

  /**
   * Opens the network namespace at a path.
   * Result: a session with the node's and that namespace, which the caller closes.
   * Errors: INVALID_NETNS when the path has no file, no network namespace, or the node's own.
   * Idempotent: sessions do not exclude each other; the caller serializes changes of one attachment.
   */
  open(netns: string): Promise<PodSession>;

  /**
   * Identifies the network namespace at a path.
   * Result: its identity, or undefined when the path has no network namespace. Idempotent.
   */
  identify(netns: string): Promise<NamespaceIdentity | undefined>;

  /**
   * Result: the node's link of that name, or undefined when there is none. Idempotent.
   */
  hostLink(name: string): Promise<ObservedLink | undefined>;

  /**
   * Deletes a link of the node with everything on it. Deleting a veth also deletes its peer in any namespace.
   * Result: true once the kernel has announced the removal; false when there is no such link. Idempotent.
   */
  deleteHostLink(link: Pick<ObservedLink, 'name' | 'index'>): Promise<boolean>;

  /**
   * Renames a link of the node. Everything on it stays, except routes and neighbours on kernels that cannot rename a link that is
   * up (before 6.2).
   * Errors: KERNEL_REFUSED with ENODEV when there is no such link, and with EEXIST when another has the name. Idempotent.
   */
  renameHostLink(link: Pick<ObservedLink, 'name' | 'index'>, name: string): Promise<void>;

  /**
   * Result: all veth links of the node, including foreign ones, unordered; complete, or a failure. Cheaper than {@link attachedLinks},
   * which reads routes too. Idempotent.
   */
  veths(): Promise<readonly ObservedLink[]>;

  /**
   * Result: the attachments that host links record, in the order of the links' names; complete, or a failure. Attachments created
   * or removed during the call may or may not be included.
   */
  attachedLinks(): Promise<readonly AttachedLink[]>;

  /**
   * Deletes connection tracking entries of an address without prefix length: flows of its previous pod.
   * Result: number of entries; 0 where the kernel tracks no connections. Idempotent.
   */
  deleteFlows(address: string): Promise<number>;

  /**
   * Deletes connection tracking entries of flows that were sent to any of some ports, before any translation. A call takes 20 ms.
   * Result: number of entries; 0 where the kernel tracks no connections. Idempotent.
   */
  deletePortFlows(protocol: PortProtocol, ports: readonly number[]): Promise<number>;

  /** Closes the node's namespace; later calls fail, also calls of open sessions. Idempotent. */
  close(): Promise<void>;
}

/** The node's network namespace and one pod's, for the time of one call. */
export interface PodSession {
  /** Identity of the pod's namespace. */
  readonly identity: NamespaceIdentity;

  /**
   * Reads the objects of a wanted state, and possible conflicts.
   * Result: complete, or a failure. The parts are read one after another; the caller prevents its own concurrent changes.
   * Idempotent.
   */
  observe(wanted: Wanted): Promise<Observed>;

  /** Result: the pod's link of that name, or undefined when there is none. Idempotent. */
  podLink(name: string): Promise<ObservedLink | undefined>;

  /**
   * Result: the pod's rules that Podwire made and that lead to a table, of both families; complete, or a failure. Idempotent.
   */
  rules(table: number): Promise<readonly Rule[]>;

  /**
   * Result: Podwire's rules of both families for interfaces that the pod no longer has. Their table belongs to no link and has no
   * routes, so they affect no packet. Complete, or a failure. Idempotent.
   */
  orphanRules(): Promise<readonly Rule[]>;

  /**
   * Applies steps in both namespaces in order, in one call to the kernel, and stops at the first failure; a failed optional step
   * is a warning. Deleting a link takes a separate call.
   * Result: never a failure: the progress, finished steps first to last. A failed step changed nothing.
   * Errors of steps: as above; an exclusive creation of an existing object has the errno EEXIST.
   * Not idempotent: depends on each step.
   */
  apply(steps: readonly Step[]): Promise<BatchOutcome>;

  /** Closes the pod's namespace. Idempotent. */
  close(): Promise<void>;
}

/** Result of applying steps. */
export interface BatchOutcome {
  /** Steps as applied: a sysctl step that reads the previous value includes it. */
  readonly finished: readonly Step[];
  readonly warnings: readonly StepFailure[];
  /** Undefined: all steps were applied. */
  readonly failed: StepFailure | undefined;
  /** The last link that a step created or changed in each namespace, read back after the steps there; empty after a failure. */
  readonly links: Links;
}

/** The two ends of a wire, as far as known. */
export type Links = Readonly<Partial<Record<Side, ObservedLink>>>;

export interface StepFailure {
  readonly step: Step;
  readonly failure: Failure;
  /** Name of the kernel's error: `EEXIST`. */
  readonly errno: string;
}

/** An attachment as a host link records it. */
export interface AttachedLink {
  readonly attachment: Attachment;
  readonly link: ObservedLink;
  /** CIDRs that the node routes to it, by Podwire's own routes. */
  readonly addresses: readonly string[];
}

/** A pod's network, and the pod if it is known. */
export interface FilteredPod extends PodNetwork {
  readonly pod: PodName | undefined;
}

/**
 * A filter of a pod's packets at its interface of the node, beside the settings of that interface: IPv6 has no reverse-path
 * filter, and a pod may be allowed prefixes besides its own addresses.
 *
 * Every method fails with KERNEL_UNSUPPORTED or KERNEL_REFUSED; the filter then retries the request.
 */
export interface PodFilter {
  /**
   * Filters the packets of a pod as its network requires; that replaces the earlier requirement. Resolves when it is in force:
   * before the interface is up. Idempotent.
   */
  install(network: FilteredPod): Promise<void>;

  /** Filters the packets of a wired pod without a record: only its interface is known. */
  adopt?(hostInterfaceName: string): Promise<void>;

  /** Parts of a pod's requirement that the kernel lacks, or has otherwise. @throws Failure KERNEL_REFUSED or KERNEL_UNSUPPORTED */
  differences?(network: FilteredPod): Promise<readonly Difference[]>;

  /** Ends what leads packets to a pod from outside, when its attachment begins to end. Idempotent. */
  release?(hostInterfaceName: string): Promise<void>;

  /** Stops filtering at an interface that is gone. Idempotent. */
  forget(hostInterfaceName: string): Promise<void>;
}
