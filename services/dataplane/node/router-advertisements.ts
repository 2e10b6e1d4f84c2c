import type { NodeSysctl } from '../routes/wanted.js';
import type { LinkSource, NodeLink } from './links.js';
import { isNodeInterface } from './pod-mtu.js';

/** What a link does with router advertisements, as its sysctls say; null where it has no IPv6. */
interface AdvertisementSettings {
  readonly name: string;
  /** 0: ignores them; 1: follows them unless it forwards; 2: follows them. */
  readonly acceptRa: string | null;
  readonly forwarding: string | null;
}

/**
 * The settings by which links go on following router advertisements once the node forwards IPv6. With `forwarding` the kernel
 * ignores them where `accept_ra` is 1, and forgets at once the default routes it has from them: the node would lose its IPv6.
 * Links that forward already, or ignore advertisements, stay as they are: that is somebody's wish.
 * Source: Linux, Documentation/networking/ip-sysctl.rst; rt6_purge_dflt_routers (net/ipv6/route.c).
 */
export function settingsToGoOn(links: readonly AdvertisementSettings[]): readonly NodeSysctl[] {
  return links
    .filter(({ acceptRa, forwarding }) => acceptRa === '1' && forwarding === '0')
    .map(({ name }) => ({ key: acceptRaKey(name), value: '2' }));
}

/**
 * Lets the node's interfaces go on following router advertisements. Called before forwarding is switched on; changes nothing
 * of what a node does that does not forward. Idempotent.
 * @param patterns - the interfaces: names, or their beginnings with a `*`
 * @returns the names of those that were changed
 * @throws Failure KERNEL_REFUSED
 */
export async function keepFollowingAdvertisements(
  source: Pick<LinkSource, 'links' | 'readSysctls' | 'writeSysctls'>,
  patterns: readonly string[],
): Promise<readonly string[]> {
  const links = (await source.links()).filter(({ name }) => isNodeInterface(name, patterns));
  const values = await source.readSysctls(links.flatMap(({ name }) => [acceptRaKey(name), forwardingKey(name)]));
  const settings = settingsToGoOn(links.map((link, position) => readingAt(link, values, position)));
  if (settings.length > 0) await source.writeSysctls(settings);
  return settings.flatMap(({ key }) => key.at(-2) ?? []);
}

function readingAt({ name }: NodeLink, values: readonly (string | null)[], position: number): AdvertisementSettings {
  return { name, acceptRa: values[2 * position] ?? null, forwarding: values[2 * position + 1] ?? null };
}

function acceptRaKey(name: string): readonly string[] {
  return ['net', 'ipv6', 'conf', name, 'accept_ra'];
}

function forwardingKey(name: string): readonly string[] {
  return ['net', 'ipv6', 'conf', name, 'forwarding'];
}
