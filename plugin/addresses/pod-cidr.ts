import { Failure } from '@podwire/shared/failure/failure';
import { familyOf, type Family } from '@podwire/shared/net/address';
import { z } from 'zod';

import type { Delegate } from './ipam-plugin.js';

/** The words of Calico's configurations for the node's podCIDR of each family, in lower case. */
const FAMILY_OF: Readonly<Record<string, Family>> = { usepodcidr: 4, usepodcidripv6: 6 };

/** Replaces them where the addresses do not matter: a release goes by the container. */
const ANY: Readonly<Record<Family, string>> = { 4: '0.0.0.0/0', 6: '::/0' };

const RANGE = z.looseObject({ subnet: z.unknown() });
const CONFIGURATION = z.looseObject({
  ipam: z.looseObject({ subnet: z.unknown(), ranges: z.array(z.array(RANGE)).nullish() }),
});

/**
 * Replaces `usePodCidr` and `usePodCidrIPv6` in a configuration of host-local, as Calico's plugin does.
 * @param podCidrs - the node's, at most one of each family; undefined: any network, for commands other than ADD
 * @throws Failure INVALID_CONFIG if the node has none of the family
 */
export function withPodCidrs(delegate: Delegate, podCidrs: readonly string[] | undefined): Delegate {
  if (delegate.type !== 'host-local' || !/"usePodCidr(IPv6)?"/i.test(delegate.configuration)) return delegate;
  const parsed = CONFIGURATION.safeParse(JSON.parse(delegate.configuration)).data;
  if (!parsed) return delegate;
  const cidrOf = (subnet: unknown): unknown => {
    const family = typeof subnet === 'string' ? FAMILY_OF[subnet.toLowerCase()] : undefined;
    if (family === undefined) return subnet;
    const cidr = podCidrs ? podCidrs.find((each) => familyOf(each) === family) : ANY[family];
    if (cidr !== undefined) return cidr;
    throw new Failure(
      'INVALID_CONFIG',
      `ipam requests the node's IPv${family} podCIDR, which is not set; set PODWIRE_NODE_POD_CIDR on this node, or use podwire-ipam`,
    );
  };
  const { ipam } = parsed;
  const ranges = ipam.ranges?.map((set) => set.map((range) => ({ ...range, subnet: cidrOf(range.subnet) })));
  const replaced = { ...ipam, subnet: cidrOf(ipam.subnet), ...(ranges && { ranges }) };
  return { ...delegate, configuration: JSON.stringify({ ...parsed, ipam: replaced }) };
}
