import type { Attachment } from '@podwire/shared/attachment/attachment';
import type { Failure } from '@podwire/shared/failure/failure';
import type { Prefix } from '@podwire/shared/net/prefix';

import type { Wanted } from '../wiring/network.js';
import type { Observed, ObservedLink } from '../wiring/observed.js';
import type { Rule, Side, Step } from '../wiring/step.js';

/**
 * The kernel of the node, as far as pods' networks need it. Implementations: netlink, and memory (the fake); both pass
 * `kernel.contract.ts`.
 *
 * Every method fails with KERNEL_REFUSED when the kernel refuses or cannot be asked, and with KERNEL_UNSUPPORTED when it lacks
 * what is needed; both carry the operation, the object, the errno's name and the kernel's own text.
 */
export interface Kernel {
  /**
   * Makes sure that the kernel can be asked and knows veth pairs.
   * Result: nothing, or a failure that says what is missing. Changes nothing. Idempotent.
   */
  probe(): Promise<void>;

  /**
   * Opens the network namespace at a path.
   * Result: a session with the node's and that namespace, which the caller closes.
   * Errors: INVALID_NETNS when there is nothing at the path, something else than a network namespace, or the node's own.
   * Idempotent: sessions do not exclude each other; who changes one attachment at a time is the caller's affair.
   */
  open(netns: string): Promise<PodSession>;

  /**
   * Looks which network namespace is at a path.
   * Result: its identity, or undefined when there is nothing at the path, or something else. Idempotent.
   */
  identify(netns: string): Promise<NetnsIdentity | undefined>;

  /**
   * Result: the node's link of that name, or undefined when there is none. Idempotent.
   */
  hostLink(name: string): Promise<ObservedLink | undefined>;

  /**
   * Deletes a link of the node, and with a veth its peer, wherever that is, with everything on both.
   * Result: true once the kernel has announced the removal; false when there is no such link. Idempotent.
   */
  deleteHostLink(link: Pick<ObservedLink, 'name' | 'index'>): Promise<boolean>;

  /**
   * Gives a link of the node another name. What is on it stays, but for routes and neighbours where the kernel renames no link that is
   * up (before 6.2).
   * Errors: KERNEL_REFUSED with ENODEV when there is no such link, and with EEXIST when another has the name. Idempotent.
   */
  renameHostLink(link: Pick<ObservedLink, 'name' | 'index'>, name: string): Promise<void>;

  /**
   * Result: the node's veth links, whoever made them, in no order; complete, or a failure. Cheaper than {@link attached}, which
   * reads routes too. Idempotent.
   */
  veths(): Promise<readonly ObservedLink[]>;

  /**
   * Result: the attachments that host links record, in the order of the links' names; complete, or a failure. What comes or
   * goes meanwhile may or may not be among them.
   */
  attached(): Promise<readonly AttachedLink[]>;

  /**
   * Deletes what the node's connection tracking remembers of an address, without length: flows of the pod that had it before.
   * Result: how many entries there were; 0 where the kernel tracks no connections. Idempotent.
   */
  forgetFlows(address: string): Promise<number>;

  /** Lets go of the node's namespace; calls that come later fail, those of open sessions too. Idempotent. */
  close(): Promise<void>;
}

/** What tells a network namespace from others of the same boot. */
export interface NetnsIdentity {
  /** Of the file that the kernel shows for it. The inode is used again as soon as the namespace is gone. */
  readonly device: bigint;
  readonly inode: bigint;
  /** What no other namespace of this boot ever has; null where the kernel does not tell it (before 5.14). */
  readonly cookie: bigint | null;
}

/** The node's network namespace and one pod's, for the time of one call. */
export interface PodSession {
  /** Of the pod's namespace. */
  readonly identity: NetnsIdentity;

  /**
   * Reads what is there of a wanted state, and what could stand in its way.
   * Result: complete, or a failure. The parts are read one after another; the caller keeps changes of its own away. Idempotent.
   */
  observe(wanted: Wanted): Promise<Observed>;

  /** Result: the pod's link of that name, or undefined when there is none. Idempotent. */
  podLink(name: string): Promise<ObservedLink | undefined>;

  /**
   * Result: the pod's rules that Podwire made and that lead to a table, of both families; complete, or a failure. Idempotent.
   */
  rules(table: number): Promise<readonly Rule[]>;

  /**
   * Result: the pod's rules that Podwire made for an interface that the pod does not have any more, of both families: their table is
   * that of no link, and has no route, so that they lead no packet anywhere. Complete, or a failure. Idempotent.
   */
  strayRules(): Promise<readonly Rule[]>;

  /**
   * Carries out steps of both namespaces in their order, in one hop to the kernel, and ends with the first that fails; an
   * optional step that fails is a warning. A deletion of a link takes a hop of its own.
   * Result: never a failure: what was reached, finished steps first to last. A step that failed changed nothing.
   * Errors of steps: as above; an exclusive creation of what exists has the errno EEXIST.
   * Not idempotent: each step says by itself whether it is.
   */
  apply(steps: readonly Step[]): Promise<BatchOutcome>;

  /** Lets go of the pod's namespace. Idempotent. */
  close(): Promise<void>;
}

/** What came of steps. */
export interface BatchOutcome {
  /** As they were carried out: with the value that a sysctl had before, where that was to be read. */
  readonly finished: readonly Step[];
  readonly warnings: readonly StepFailure[];
  /** Undefined: all were carried out. */
  readonly failed: StepFailure | undefined;
  /** The last link that a step made or set in each namespace, read back after the steps there; none after a failure. */
  readonly links: Links;
}

/** The two ends of a wire, as far as they are known. */
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

/**
 * What keeps pods from sending from others' addresses where the settings of their interfaces cannot: IPv6 has no reverse-path
 * filter, and a pod may be allowed prefixes besides its own addresses.
 *
 * Every method fails with KERNEL_UNSUPPORTED or KERNEL_REFUSED; what was asked for is then in force later by itself.
 */
export interface PodGuard {
  /** Resolves when pods' IPv6 addresses are guarded. Idempotent. */
  ready(): Promise<void>;

  /**
   * Guards an interface of the node, there or not yet, and lets its pod send from these prefixes besides its own addresses; they
   * replace those before. Resolves when that is in force. Idempotent.
   */
  setSourcePrefixes(device: string, allowed: readonly Prefix[]): Promise<void>;

  /** Lets an interface go that is no more. Idempotent. */
  forget(device: string): Promise<void>;
}
