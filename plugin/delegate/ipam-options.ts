import { violationsFailure } from '@podwire/shared/failure/failure';
import { formatAddress, parseAddress } from '@podwire/shared/net/address';
import { splitCidr } from '@podwire/shared/net/prefix';
import { z } from 'zod';

import { DNS, type Dns } from '../cni/dns.js';
import type { ResultRoute } from '../cni/result-form.js';

/** What a configuration says about the answer of `podwire-ipam` to the plugin above it. */
export interface IpamOptions {
  /** Gateways in place of the node's own, one of a family at most; undefined leaves them to Podwire. */
  readonly gateways: readonly string[] | undefined;
  /** Routes to pass on. */
  readonly routes: readonly ResultRoute[];
  /** DNS settings to pass on; undefined where there are none. */
  readonly dns: Dns | undefined;
}

const GATEWAYS = z.array(
  z.string({ error: 'is no text' }).transform((text, context) => {
    const address = parseAddress(text);
    if (address) return formatAddress(address);
    context.addIssue({ code: 'custom', message: 'is no IP address' });
    return z.NEVER;
  }),
  { error: 'is no list' },
);

const ROUTE = z.looseObject(
  {
    dst: z.string({ error: 'is missing' }).refine((dst) => splitCidr(dst) !== undefined, { error: 'is no CIDR' }),
    gw: z
      .string({ error: 'is no text' })
      .refine((gateway) => parseAddress(gateway) !== undefined, { error: 'is no IP address' })
      .optional(),
  },
  { error: 'is no object' },
);

const OPTIONS = z.object({
  ipam: z.object(
    {
      gateways: GATEWAYS.optional(),
      routes: z.array(ROUTE, { error: 'is no list' }).nullish(),
      dns: DNS.optional(),
    },
    { error: 'is missing' },
  ),
});

/**
 * Reads the options.
 * @param text - the network configuration, a JSON object
 * @throws Failure INVALID_CONFIG that lists every malformed key
 */
export function readIpamOptions(text: string): IpamOptions {
  const parsed = OPTIONS.safeParse(JSON.parse(text));
  if (parsed.success) {
    const { gateways, routes, dns } = parsed.data.ipam;
    return { gateways, routes: routes ?? [], dns };
  }
  const violations = parsed.error.issues.map(({ path, message }) => ({ field: path.join('.'), reason: message }));
  throw violationsFailure('INVALID_CONFIG', 'network configuration refused', violations);
}
