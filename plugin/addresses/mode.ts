import type { Variables } from '../cni/environment.js';

/** Another IPAM plugin and its full input. A later process needs the same input to release the addresses. */
export interface Delegate {
  /** `ipam.type`: name of its program. */
  readonly type: string;
  /** The CNI variables as the runtime set them; its program is looked for in `CNI_PATH`. */
  readonly variables: Variables;
  /** The whole network configuration, JSON in UTF-8. */
  readonly configuration: string;
}

/** What of a pod's network is Podwire's work. It follows from the request alone, so that DEL knows it without a record. */
export type Share =
  /** Addresses and wire. */
  | { readonly kind: 'all' }
  /** Another plugin makes the interface, and runs Podwire as its IPAM plugin. */
  | { readonly kind: 'addresses' }
  /** Another IPAM plugin gives the addresses. */
  | { readonly kind: 'wire'; readonly delegate: Delegate };

/** The shim's names where another plugin runs it for its addresses alone. */
const IPAM_PROGRAMS: readonly string[] = ['podwire-ipam', 'calico-ipam'];

/** What the share of a request follows from. */
interface ShareSource {
  /** Name that the executable was run as. */
  readonly plugin: string | undefined;
  readonly variables: Variables;
  readonly configuration: string;
}

/**
 * Decides what is Podwire's work.
 * @param otherIpam - the configuration's IPAM plugin, where it is not Podwire's own
 */
export function shareOf({ plugin, variables, configuration }: ShareSource, otherIpam: string | undefined): Share {
  if (plugin !== undefined && IPAM_PROGRAMS.includes(plugin)) return { kind: 'addresses' };
  if (otherIpam === undefined) return { kind: 'all' };
  return { kind: 'wire', delegate: { type: otherIpam, variables, configuration } };
}

/** The IPAM plugin that gives the addresses in Podwire's place, if one does. */
export function delegateOf(share: Share): Delegate | undefined {
  return share.kind === 'wire' ? share.delegate : undefined;
}
