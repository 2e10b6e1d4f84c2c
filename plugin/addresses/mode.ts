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

/** Which part of a pod's network Podwire provides. It follows from the request alone, so that DEL needs no record. */
export type Mode =
  /** Addresses and wire are Podwire's. */
  | { readonly kind: 'full' }
  /** Another plugin creates the interface and runs Podwire as its IPAM plugin. */
  | { readonly kind: 'ipam-only' }
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

/** The delegated IPAM plugin; undefined in the other modes. */
export function delegateOf(mode: Mode): Delegate | undefined {
  return mode.kind === 'delegated-ipam' ? mode.delegate : undefined;
}
