import type { Address } from '@podwire/shared/net/address';
import { formatPrefix, hostPrefix } from '@podwire/shared/net/prefix';

import type { Wanted } from '../wiring/network.js';
import type { Observed } from '../wiring/observed.js';

interface Pair {
  readonly wanted: Wanted;
  readonly observed: Observed;
}

/**
 * The same without the node's routes to addresses that another pod was given since: they are neither asked for nor taken away, as they
 * are that pod's.
 */
export function withoutRoutesTo(lost: readonly { readonly address: Address }[], { wanted, observed }: Pair): Pair {
  if (lost.length === 0) return { wanted, observed };
  const destinations = lost.map(({ address }) => formatPrefix(hostPrefix(address)));
  const isOwn = ({ destination }: { readonly destination: string }) => !destinations.includes(destination);
  return {
    wanted: { ...wanted, host: { ...wanted.host, routes: wanted.host.routes.filter(isOwn) } },
    observed: { ...observed, host: { ...observed.host, routes: observed.host.routes.filter(isOwn) } },
  };
}
