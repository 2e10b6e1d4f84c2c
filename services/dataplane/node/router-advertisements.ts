import type { NodeSysctl } from '../routes/wanted.js';
import type { LinkSource, NodeLink } from './links.js';
import { isNodeInterface } from './pod-mtu.js';

/** A link's sysctls for router advertisements; null without IPv6. */
interface LinkSettings {
  readonly name: string;
  /** 0: ignores them; 1: accepts them unless it forwards; 2: accepts them. */
  readonly acceptRa: string | null;
  readonly forwarding: string | null;
}

/**
 * The settings that let links accept router advertisements while the node forwards IPv6. With `forwarding` the kernel ignores
 * them where `accept_ra` is 1, and drops the default routes learned from them: the node would lose its IPv6. Links that already
 * forward, or ignore advertisements, stay unchanged: the administrator configured them.
 * Source: Linux, Documentation/networking/ip-sysctl.rst; rt6_purge_dflt_routers (net/ipv6/route.c).
 */
export function settingsToKeepAccepting(links: readonly LinkSettings[]): readonly NodeSysctl[] {
  return links
    .filter(({ acceptRa, forwarding }) => acceptRa === '1' && forwarding === '0')
    .map(({ name }) => ({ key: acceptRaKey(name), value: '2' }));
}

/**
 * Configures the node's interfaces to keep accepting router advertisements. Call before forwarding is enabled: without forwarding
 * the kernel treats the values 1 and 2 alike. Idempotent.
 * @param patterns - the interfaces: names, or prefixes with a trailing `*`
 * @returns the names of changed interfaces
 * @throws Failure KERNEL_REFUSED
 */
export async function keepAcceptingAdvertisements(
  source: Pick<LinkSource, 'links' | 'readSysctls' | 'writeSysctls'>,
  patterns: readonly string[],
): Promise<readonly string[]> {
  const links = (await source.links()).filter(({ name }) => isNodeInterface(name, patterns));
  const values = await source.readSysctls(links.flatMap(({ name }) => [acceptRaKey(name), forwardingKey(name)]));
  const settings = settingsToKeepAccepting(links.map((link, position) => settingsAt(link, values, position)));
  if (settings.length > 0) await source.writeSysctls(settings);
  return settings.flatMap(({ key }) => key.at(-2) ?? []);
}

function settingsAt({ name }: NodeLink, values: readonly (string | null)[], position: number): LinkSettings {
  return { name, acceptRa: values[2 * position] ?? null, forwarding: values[2 * position + 1] ?? null };
}

function acceptRaKey(name: string): readonly string[] {
  return ['net', 'ipv6', 'conf', name, 'accept_ra'];
}

function forwardingKey(name: string): readonly string[] {
  return ['net', 'ipv6', 'conf', name, 'forwarding'];
}
