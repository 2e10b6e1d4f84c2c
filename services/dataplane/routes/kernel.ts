import type { Failure } from '@podwire/shared/failure/failure';

import type { NodeAbilities, NodeChange, ObservedNode } from './observed.js';
import type { NodeStep } from './step.js';

/**
 * The node's kernel as needed for packets between nodes: tunnel devices and objects on them, and routes of the main table, IPv4
 * and IPv6. Implementations: netlink, and memory (the fake); both pass `testing/node-kernel-contract.ts`.
 *
 * Every method fails with KERNEL_REFUSED when the kernel refuses or cannot be queried, and with KERNEL_UNSUPPORTED when it lacks
 * a feature; both carry the operation, the object, the errno's name and the kernel's own text.
 */
export interface NodeKernel {
  /**
   * Probes which kinds of tunnels the kernel supports.
   * Result: complete, or a failure. Creates no device; the kernel may load a module. Idempotent.
   */
  abilities(): Promise<NodeAbilities>;

  /**
   * Reads the objects of a wanted state, and possible conflicts.
   * Result: complete, or a failure. The parts are read one after the other; a watch opened before notifies of changes made
   * meanwhile. Changes nothing, and yields after every 1,000 routes. Idempotent.
   */
  observe(scope: NodeScope): Promise<ObservedNode>;

  /**
   * Applies all steps in order, in spite of failures; device names are resolved at each step's turn.
   * Result: never a failure: for each step, in the same order, undefined, or why it was refused. A refused step changed nothing,
   * except that one with several attributes of a device may have set some.
   * Not idempotent: creating or adding an existing object is refused with the errno EEXIST; deleting a missing one with ENODEV,
   * ESRCH, ENOENT or EADDRNOTAVAIL. Replacing, setting and writing are idempotent.
   */
  apply(steps: readonly NodeStep[]): Promise<readonly (NodeRefusal | undefined)[]>;

  /**
   * Notifies of all changes to what {@link observe} reads (except sysctls), and to pods' host interfaces, from the moment when
   * the promise resolves. The kernel omits some: IPv4 routes that vanish when their interface goes down or loses its last address,
   * neighbours that vanish with their device's MAC address.
   * Result: a watch, which the caller closes. The listener is called for one change after the other; it must not throw.
   */
  watch(listener: NodeListener): Promise<NodeWatch>;

  /** Closes the node's namespace: later calls fail. The caller has closed its watches. Idempotent. */
  close(): Promise<void>;
}

export interface NodeScope {
  /** Sysctls to read. */
  readonly sysctls: readonly (readonly string[])[];
  /** Whether to include a foreign route: one in the place of a wanted route. */
  readonly isWanted: (destination: string) => boolean;
}

export interface NodeRefusal {
  readonly failure: Failure;
  /** Name of the kernel's error: `EEXIST`. */
  readonly errno: string;
}

export interface NodeListener {
  readonly changed: (change: NodeChange) => void;
  /** Called once when the watch fails; no notifications follow. May be called before {@link NodeKernel.watch} resolves. */
  readonly failed: (failure: Failure) => void;
}

export interface NodeWatch {
  /** Ends the notifications. Idempotent. */
  close(): void;
}
