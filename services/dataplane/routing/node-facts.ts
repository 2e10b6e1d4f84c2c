import { formatAddress, type Address, type Family } from '@podwire/shared/net/address';
import { splitCidr } from '@podwire/shared/net/prefix';

import type { ClusterNode } from '../cluster/cluster.js';
import { isOwnDevice } from '../routes/diff.js';
import type { KnownNode } from '../routes/known-node.js';
import type { NodeAbilities } from '../routes/observed.js';
import type { NodeFacts, RoutingMode } from './facts.js';

/** Assumed where no interface has the node's address, in bytes: Ethernet's. */
const UNKNOWN_MTU_BYTES = 1500;

export interface FactsContext {
  readonly known: Pick<KnownNode, 'devices' | 'addresses' | 'routed'>;
  /** This node as IPAM knows it, or last knew it. */
  readonly self: Pick<ClusterNode, 'ipv4' | 'ipv6'> | undefined;
  readonly abilities: NodeAbilities;
  readonly routing: RoutingMode;
}

/** What routes depend on of this node, from what is known of its kernel. Tunnels get the least MTU of the node's interfaces. */
export function factsOf({ known, self, abilities, routing }: FactsContext): NodeFacts {
  const parents: Record<Family, string | undefined> = {
    4: parentOf(self?.ipv4?.address, known),
    6: parentOf(self?.ipv6?.address, known),
  };
  const mtus = Object.values(parents).flatMap((name) =>
    name === undefined ? [] : (known.devices.get(name)?.mtuBytes ?? []),
  );
  return {
    parents,
    mtuBytes: mtus.length === 0 ? UNKNOWN_MTU_BYTES : Math.min(...mtus),
    ...abilities,
    routing,
    routed: known.routed,
  };
}

/** The interface that has an address. */
function parentOf(address: Address | undefined, known: FactsContext['known']): string | undefined {
  if (!address) return undefined;
  const text = formatAddress(address);
  for (const [name, addresses] of known.addresses) {
    const device = known.devices.get(name);
    if (!device || isOwnDevice(device)) continue;
    for (const cidr of addresses) if (isSame(cidr, text, address)) return name;
  }
  return undefined;
}

function isSame(cidr: string, text: string, address: Address): boolean {
  if (cidr.startsWith(`${text}/`)) return true;
  const parts = address.family === 6 && cidr.includes(':') ? splitCidr(cidr) : undefined;
  return parts?.address.value === address.value;
}
