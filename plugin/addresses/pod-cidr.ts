import { Failure } from '@podwire/shared/failure/failure';
import { familyOf, type Family } from '@podwire/shared/net/address';
import { z } from 'zod';

import type { Ipam, Limits } from '../clients/clients.js';
import type { Delegate } from './ipam-plugin.js';

/** The words of Calico's configurations for the node's podCIDR of each family, in lower case. */
const FAMILY_OF: Readonly<Record<string, Family>> = { usepodcidr: 4, usepodcidripv6: 6 };

/** Replaces them where the addresses do not matter: a release goes by the container. */
const ANY: Readonly<Record<Family, string>> = { 4: '0.0.0.0/0', 6: '::/0' };

const RANGE = z.looseObject({ subnet: z.unknown() });
const CONFIGURATION = z.looseObject({
  ipam: z.looseObject({ subnet: z.unknown(), ranges: z.array(z.array(RANGE)).nullish() }),
});

/** The node's podCIDRs, at most one of each family. */
export type PodCidrs = (limits: Limits) => Promise<readonly string[]>;

/**
 * The podCIDRs of the node's settings, or else of its Kubernetes Node, where they never change.
 * @param configured - of the settings; empty for the Node's
 */
export function nodePodCidrs(configured: readonly string[], ipam: Pick<Ipam, 'podCidrs'>, nodeName: string): PodCidrs {
  let known = configured;
  return async (limits) => {
    if (known.length > 0) return known;
    known = await ipam.podCidrs(nodeName, limits).catch((error: unknown) => {
      if (!(error instanceof Failure)) throw error;
      const { code, message, details } = error;
      const text = `ipam requests the node's podCIDR: ${message}; or set PODWIRE_NODE_POD_CIDR on this node`;
      throw new Failure(code, text, { details, cause: error });
    });
    return known;
  };
}

/**
 * Replaces `usePodCidr` and `usePodCidrIPv6` in a configuration of host-local, as Calico's plugin does.
 * @param podCidrs - read only if needed; undefined: any network, for commands other than ADD
 * @throws Failure INVALID_CONFIG if the node has none of the family; of `podCidrs`
 */
export async function withPodCidrs(delegate: Delegate, podCidrs?: () => Promise<readonly string[]>): Promise<Delegate> {
  if (delegate.type !== 'host-local' || !/"usePodCidr(IPv6)?"/i.test(delegate.configuration)) return delegate;
  const parsed = CONFIGURATION.safeParse(JSON.parse(delegate.configuration)).data;
  if (!parsed) return delegate;
  const known = await podCidrs?.();
  const cidrOf = (subnet: unknown): unknown => {
    const family = typeof subnet === 'string' ? FAMILY_OF[subnet.toLowerCase()] : undefined;
    if (family === undefined) return subnet;
    const cidr = known ? known.find((each) => familyOf(each) === family) : ANY[family];
    if (cidr !== undefined) return cidr;
    throw new Failure(
      'INVALID_CONFIG',
      `ipam requests the node's IPv${family} podCIDR, which neither its Node nor PODWIRE_NODE_POD_CIDR has; set it on this node, or use podwire-ipam`,
    );
  };
  const { ipam } = parsed;
  const ranges = ipam.ranges?.map((set) => set.map((range) => ({ ...range, subnet: cidrOf(range.subnet) })));
  const replaced = { ...ipam, subnet: cidrOf(ipam.subnet), ...(ranges && { ranges }) };
  return { ...delegate, configuration: JSON.stringify({ ...parsed, ipam: replaced }) };
}
