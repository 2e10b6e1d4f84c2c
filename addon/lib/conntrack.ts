/** The filter of connection tracking entries, and its checks. */
import { isIP } from 'node:net';

import { ArgumentError } from './errors.js';
import type { NativeConntrackFilter } from './native.js';
import { checkAddress, checkArray, checkInteger, checkRecord, PORT, PROTOCOLS } from './scalars.js';

/** Which entries to delete: flows of an address, or flows to ports in both families. */
export type ConntrackFilter =
  /** IPv4 or IPv6, as original source or destination, or as source of the replies. */
  | { readonly address: string }
  | {
      /** `tcp`, `udp`, `sctp`, `icmp` or `icmpv6`. */
      readonly protocol: string;
      /**
       * Original destination ports, 1 to 65535, at least one. Each call reads the kernel's whole table, so one call for many ports is
       * faster than many calls.
       */
      readonly destinationPorts: readonly number[];
    };

/** The filter in the addon's form, once for each family. */
export function checkConntrackFilter(filter: ConntrackFilter): NativeConntrackFilter[] {
  checkRecord('filter', filter);
  if ('address' in filter) {
    const address = checkAddress('filter.address', filter.address);
    return [{ family: isIP(address) === 4 ? 4 : 6, address, protocol: null, destinationPorts: [] }];
  }
  const protocol = PROTOCOLS.get(filter.protocol);
  if (protocol === undefined) {
    throw new ArgumentError('filter.protocol', `must be one of ${[...PROTOCOLS.keys()].join(', ')}`);
  }
  const destinationPorts = checkPorts(filter.destinationPorts);
  return FAMILIES.map((family) => ({ family, address: null, protocol, destinationPorts }));
}

const FAMILIES = [4, 6] as const;

function checkPorts(ports: readonly number[]): readonly number[] {
  checkArray('filter.destinationPorts', ports);
  if (ports.length === 0) throw new ArgumentError('filter.destinationPorts', 'must have a port');
  return ports.map((port, position) => checkInteger(`filter.destinationPorts[${position}]`, port, PORT));
}

export function describeConntrack(filter: ConntrackFilter): string {
  return 'address' in filter ? filter.address : `${filter.protocol} port ${filter.destinationPorts.join(', ')}`;
}
