import { isAtLeast, type Version } from './versions.js';

/** An interface in a container from before the plugin, one end of a veth pair to the node. */
export interface PrecedingInterface {
  readonly name: string;
  readonly mac: string;
  readonly sandbox: string;
  /** IPv4, CIDR. */
  readonly address: string;
  /** The node's end. */
  readonly far: { readonly name: string; readonly mac: string };
}

/** The result of an earlier plugin in the chain, in the form of version 0.3.0 or later. */
export function previousResult(version: Version, { address, far, ...entry }: PrecedingInterface): object {
  const form = isAtLeast(version, '1.0.0') ? {} : { version: '4' };
  return {
    cniVersion: version,
    interfaces: [entry, far],
    ips: [{ ...form, address, interface: 0 }],
    routes: [{ dst: '198.51.100.0/24' }],
    dns: { nameservers: ['192.0.2.53'], search: ['conformance.example'] },
  };
}
