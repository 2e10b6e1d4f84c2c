import type { Attachment } from '@podwire/shared/attachment/attachment';
import { formatAddress } from '@podwire/shared/net/address';
import { splitCidr } from '@podwire/shared/net/prefix';

import { differences, withPodChanges } from '../wiring/diff.js';
import type { Difference } from '@podwire/shared/attachment/pod-network';
import { aliasOf, type Wanted } from '../wiring/network.js';
import type { Observed, ObservedLink } from '../wiring/observed.js';
import { arePeers, isMadeFor, findObstacle } from '../wiring/wire.js';
import type { AttachedLink, Kernel, PodSession } from './kernel.js';

/**
 * Finds the host end of a wire that an operator renamed (`ip link set podw… name …`). Its alias stays, and identifies the
 * attachment.
 */

/**
 * The links under the possible names of an attachment's host end; when none is the attachment's, the links that occupy the names.
 */
export async function findHostLinks(
  kernel: Pick<Kernel, 'hostLink' | 'veths'>,
  attachment: Attachment,
  names: Iterable<string>,
): Promise<ObservedLink[]> {
  const named = await Promise.all([...new Set(names)].map((name) => kernel.hostLink(name)));
  const links = named.flatMap((link) => link ?? []);
  if (links.some((link) => isMadeFor(link, attachment))) return links;
  const renamed = await findByAlias(attachment, kernel);
  return renamed ? [...links, renamed] : links;
}

/** Prefix of the host ends that Calico's plugin makes. */
const CALICO_PREFIX = 'cali';

/** The host end of a pod's interface that Calico's plugin wired before Podwire replaced it on the node. */
export async function findCalicoLink(
  kernel: Pick<Kernel, 'veths'>,
  session: Pick<PodSession, 'podLink'>,
  { interfaceName }: Attachment,
): Promise<ObservedLink | undefined> {
  const end = await session.podLink(interfaceName);
  if (!end) return undefined;
  const veths = await kernel.veths();
  return veths.find((link) => link.name.startsWith(CALICO_PREFIX) && link.alias === null && arePeers(link, end));
}

/** The peer of the pod's interface, when the node has no link of the wanted name. */
export async function findRenamedHostLink(
  kernel: Pick<Kernel, 'veths'>,
  { attachment }: Wanted,
  { host, pod }: Observed,
): Promise<ObservedLink | undefined> {
  if (host.link || !pod.link) return undefined;
  const found = await findByAlias(attachment, kernel);
  return found && arePeers(found, pod.link) ? found : undefined;
}

/** The differences that a check reports: the host end's name, the conflicting link, or all except the pod's own changes. */
export async function wireDifferences(
  kernel: Pick<Kernel, 'veths'>,
  wanted: Wanted,
  observed: Observed,
): Promise<Difference[]> {
  const renamed = await findRenamedHostLink(kernel, wanted, observed);
  if (renamed) return [renameDifference(wanted, renamed)];
  const obstacle = findObstacle(wanted, observed);
  if (!obstacle) return differences(withPodChanges(wanted, observed), observed);
  return [{ object: obstacle.object, wanted: 'this attachment’s', actual: obstacle.actual }];
}

export function renameDifference({ host }: Wanted, found: ObservedLink): Difference {
  const { name } = host.link;
  return { object: `host link ${name} name`, wanted: name, actual: found.name };
}

async function findByAlias(attachment: Attachment, kernel: Pick<Kernel, 'veths'>): Promise<ObservedLink | undefined> {
  const alias = aliasOf(attachment);
  return (await kernel.veths()).find((link) => link.alias === alias);
}

/** The addresses that the node routes to a wire, without prefix length. */
export function addressesOf({ addresses }: Pick<AttachedLink, 'addresses'>): string[] {
  return addresses.flatMap((cidr) => {
    const parts = splitCidr(cidr);
    return parts ? [formatAddress(parts.address)] : [];
  });
}
