import type { Failure } from '@podwire/shared/failure/failure';

import type { NodeAbilities, NodeChange, ObservedNode } from './observed.js';
import type { NodeStep } from './step.js';

/**
 * The kernel of the node, as far as packets between nodes need it: tunnel devices and what is on them, and routes of the main
 * table, IPv4 and IPv6. Implementations: netlink, and memory (the fake); both pass `node-kernel.contract.ts`.
 *
 * Every method fails with KERNEL_REFUSED when the kernel refuses or cannot be asked, and with KERNEL_UNSUPPORTED when it lacks
 * what is needed; both carry the operation, the object, the errno's name and the kernel's own text.
 */
export interface NodeKernel {
  /**
   * Asks which kinds of tunnels the kernel can make.
   * Result: complete, or a failure. Makes no device; the kernel may load a module. Idempotent.
   */
  abilities(): Promise<NodeAbilities>;

  /**
   * Reads all that a wanted state speaks of, and what stands in its way.
   * Result: complete, or a failure. The parts are read one after the other; changes that happen meanwhile are announced by a
   * watch that was opened before. Changes nothing, and holds up nobody for longer than a list of 1,000 routes takes. Idempotent.
   */
  observe(scope: NodeScope): Promise<ObservedNode>;

  /**
   * Carries out steps in their order, all of them, whichever fail; names are those of devices as they are when a step's turn comes.
   * Result: never a failure: for each step, in the same order, undefined, or why it was refused. A step that was refused changed
   * nothing, but that of several attributes of a device some may be set.
   * Not idempotent: creating or adding what exists is refused with the errno EEXIST; deleting what is not there with ENODEV, ESRCH,
   * ENOENT or EADDRNOTAVAIL. Replacing, setting and writing are idempotent.
   */
  apply(steps: readonly NodeStep[]): Promise<readonly (NodeRefusal | undefined)[]>;

  /**
   * Tells changes of what {@link observe} reads (sysctls excepted), and of pods' host interfaces, whoever makes them, from the moment
   * when the promise resolves. The kernel itself keeps silent about some: IPv4 routes that vanish as their interface goes
   * down or loses its last address, neighbours that vanish with their device's MAC address.
   * Result: a watch, which the caller closes. The listener is called one change after the other; it must not throw.
   */
  watch(listener: NodeListener): Promise<NodeWatch>;

  /** Lets go of the node's namespace; calls that come later fail. Watches end. Idempotent. */
  close(): Promise<void>;
}

export interface NodeScope {
  /** Sysctls to be read. */
  readonly sysctls: readonly (readonly string[])[];
  /** Whether a route that is not the node's is to be told as well: one in whose place the caller wants its own. */
  readonly isWanted: (destination: string) => boolean;
}

export interface NodeRefusal {
  readonly failure: Failure;
  /** Name of the kernel's error: `EEXIST`. */
  readonly errno: string;
}

export interface NodeListener {
  readonly changed: (change: NodeChange) => void;
  /** The watch has ended by itself, once, and tells nothing any more; it may do so before {@link NodeKernel.watch} resolves. */
  readonly failed: (failure: Failure) => void;
}

export interface NodeWatch {
  /** Nothing is told any more. Idempotent. */
  close(): void;
}
