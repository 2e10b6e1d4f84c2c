import type { AllocatedAddress, NetnsIdentity, PodName } from '@podwire/shared/attachment/allocation';
import type { Attachment } from '@podwire/shared/attachment/attachment';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { Allocation, Endpoint, Ipam, Limits, NodeAddresses, NodeEndpoint, ProbePod } from '../clients/clients.js';
import type { AttachConfig } from '../cni/config.js';
import type { Variables } from '../cni/environment.js';
import type { PodRequest } from '../cni/pod-request.js';
import type { Delegate, PluginName } from './ipam-plugin.js';

/** Part of a pod's network that Podwire provides. It follows from the request alone, so that DEL needs no record. */
export type Mode =
  /** Addresses and wire are Podwire's. */
  | { readonly kind: 'full'; readonly delegate?: undefined }
  /** Another plugin creates the interface and runs Podwire as its IPAM plugin. */
  | { readonly kind: 'ipam-only'; readonly delegate?: undefined }
  /** The wire is Podwire's; a delegated IPAM plugin allocates the addresses. */
  | { readonly kind: 'delegated-ipam'; readonly delegate: Delegate };

/** Names of the shim that mean ipam-only mode. */
const IPAM_PROGRAMS: readonly string[] = ['podwire-ipam', 'calico-ipam'];

/** The parts of a request that determine its mode. */
interface ModeSource {
  /** Name that the executable was run as. */
  readonly plugin: string | undefined;
  readonly variables: Variables;
  readonly configuration: string;
}

/** @param otherIpam - `ipam.type` of the configuration, unless it is Podwire's own */
export function modeOf({ plugin, variables, configuration }: ModeSource, otherIpam: string | undefined): Mode {
  if (plugin !== undefined && IPAM_PROGRAMS.includes(plugin)) return { kind: 'ipam-only' };
  if (otherIpam === undefined) return { kind: 'full' };
  return { kind: 'delegated-ipam', delegate: { type: otherIpam, variables, configuration } };
}

/** Source of the provider: a mode, or the stored part of a journal entry. Without a delegate it is podwire-ipam. */
export interface ProviderSource {
  readonly delegate?: Delegate | undefined;
}

/** The part of an ADD or CHECK that concerns addresses. */
export interface AddressRequest {
  readonly attachment: Attachment;
  /** The Kubernetes pod, if the runtime names one. */
  readonly pod: PodName | undefined;
  readonly podRequest: PodRequest;
  readonly config: Pick<AttachConfig, 'nodeName' | 'prevResult'>;
  readonly mode: Pick<Mode, 'kind'>;
}

/** Dependencies of podwire-ipam's provider. */
export interface IpamAddressesDeps {
  readonly ipam: Ipam;
  readonly nodeAddresses: NodeAddresses;
  /** Default for network configurations without a node name. */
  readonly nodeName: string;
  readonly clock: Clock;
}

/** The same for one call. */
export interface AddressTools extends IpamAddressesDeps {
  readonly limits: Limits;
}

/** An allocation that a failed ADD can take back. */
export interface ProvidedAllocation extends Allocation {
  /** Releases these addresses, and no later allocation. Call it when no wire uses them. Idempotent. */
  readonly undo: (limits: Limits) => Promise<void>;
}

/** The addresses that GC collects. */
export interface AddressCollection {
  readonly network: string;
  readonly nodeName: string;
  /** Calls `release` for each of the allocations that is garbage, in the queue of its attachment. */
  readonly releaseGarbage: (
    allocations: readonly NodeEndpoint[],
    release: (allocation: NodeEndpoint) => Promise<void>,
  ) => Promise<void>;
}

/** Allocates and releases the addresses of attachments. Implementations: podwire-ipam, and a delegated IPAM plugin. */
export interface AddressProvider {
  /** `ipam.type` of its configurations. */
  readonly type: string;
  /** Name for failures. */
  readonly name: 'podwire-ipam' | PluginName;
  /** Its part of a journal entry. A delegate is a program, which each call starts. */
  readonly source: ProviderSource;

  /** @throws Failure if its program or a requirement of it is missing: the DEL after a failed ADD has nothing to release then */
  prepare(limits: Limits): Promise<void> | void;
  /** @throws Failure, also REQUEST_DENIED; after any other one the attachment may hold addresses */
  allocate(request: AddressRequest, netns: NetnsIdentity, limits: Limits): Promise<ProvidedAllocation>;
  /** Whether an error of an ADD is a rejection by a plugin, which by CNI holds no addresses then. */
  isRefusal(error: unknown): boolean;
  /**
   * Releases addresses of an attachment. Releasing addresses that it does not hold succeeds.
   * @param held - the allocation; undefined if unknown, which means all addresses of the attachment
   */
  release(attachment: Attachment, held: readonly AllocatedAddress[] | undefined, limits: Limits): Promise<void>;
  /** Verifies the allocation for CHECK. @returns the recorded addresses; undefined if there are none */
  check(request: AddressRequest, limits: Limits): Promise<Endpoint | undefined>;
  /** Collects the garbage of a network on this node. */
  collect(collection: AddressCollection, limits: Limits): Promise<void>;
  /** Whether it can serve. @throws Failure why it cannot */
  isServing(limits: Limits): Promise<boolean>;
  /** Whether the node has addresses for a pod without it. Absent: it never has. */
  readonly hasAddresses?: (pod: ProbePod) => boolean;
  /** Why a pod would get no address; undefined when it would get one. Absent: that is unknown. */
  readonly refusalOf?: (pod: ProbePod, limits: Limits) => Promise<string | undefined>;
  /** Name and address of the service while there is no connection to it. Absent: it is a program. */
  readonly unreachablePeer?: () => string | undefined;
}
