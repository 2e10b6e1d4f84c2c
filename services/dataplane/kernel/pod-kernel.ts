import { NetlinkError, openNamespace, type ConntrackFilter, type Namespace } from '@podwire/netlink';
import type { PortProtocol } from '@podwire/shared/attachment/host-port';
import { Failure } from '@podwire/shared/failure/failure';
import { compareNames } from '@podwire/shared/words/order';

import { openFailure, ownNamespaceFailure } from '../pods/errno.js';
import type { AttachedLink, Kernel, PodSession } from '../pods/kernel.js';
import type { NamespaceIdentity } from '../records/record.js';
import { attachmentOfAlias, ROUTE_PROTOCOL } from '../wiring/network.js';
import type { ObservedLink } from '../wiring/observed.js';
import { POD_LIST_BOUNDS, type PodListBounds } from './pod-lists.js';
import { getLink, MAIN_TABLE, toObservedLink } from './pod-observe.js';
import { NetlinkSession } from './pod-session.js';
import { callKernel, failureOfNetlink, hasErrno, refusalOf } from './refusal.js';

/** An MTU that a kernel refuses with EINVAL when it supports veth, and with EOPNOTSUPP when it does not. */
const IMPOSSIBLE_MTU_BYTES = 1;

/** Errors of a kernel whose connection tracking cannot be queried (nf_conntrack_netlink). */
const WITHOUT_CONNTRACK: readonly string[] = ['EPROTONOSUPPORT', 'EINVAL', 'EOPNOTSUPP'];

const PROBE = { name: 'podwprobe', peer: 'podwprobe0' } as const;

interface KernelOptions {
  readonly path?: string;
  readonly podLists?: PodListBounds;
}

/** The real kernel, through rtnetlink and /proc/sys. */
export class NetlinkKernel implements Kernel {
  readonly #node: Namespace;
  readonly #podLists: PodListBounds;

  private constructor(node: Namespace, podLists: PodListBounds) {
    this.#node = node;
    this.#podLists = podLists;
  }

  /**
   * @param options - path: the node's network namespace; default: the namespace of this process
   * @throws Failure KERNEL_REFUSED when no netlink socket can be opened
   */
  static async open({ path, podLists = POD_LIST_BOUNDS }: KernelOptions = {}): Promise<NetlinkKernel> {
    return new NetlinkKernel(await callKernel(() => openNamespace(path)), podLists);
  }

  async probe(): Promise<void> {
    const [outcome] = await callKernel(() =>
      this.#node.sequence([
        {
          type: 'link.add',
          kind: 'veth',
          name: PROBE.name,
          mtuBytes: IMPOSSIBLE_MTU_BYTES,
          peer: { name: PROBE.peer, namespace: this.#node },
        },
      ]),
    );
    if (outcome?.ok !== false)
      throw new Error(`the kernel created a veth pair with the invalid MTU ${IMPOSSIBLE_MTU_BYTES}`);
    if (hasErrno(outcome.error, 'EINVAL')) return;
    if (hasErrno(outcome.error, 'EOPNOTSUPP')) {
      throw new Failure('KERNEL_UNSUPPORTED', 'the kernel has no veth; load the module (modprobe veth)', {
        cause: outcome.error,
      });
    }
    throw failureOfNetlink(outcome.error);
  }

  async open(netns: string): Promise<PodSession> {
    const pod = await openPod(netns);
    if (isSame(pod, this.#node)) {
      await pod.close();
      throw ownNamespaceFailure(netns);
    }
    return new NetlinkSession({ host: this.#node, pod }, this.#podLists);
  }

  async identify(netns: string): Promise<NamespaceIdentity | undefined> {
    try {
      const namespace = await openPod(netns);
      await namespace.close();
      return namespace.identity;
    } catch (error) {
      if (error instanceof Failure && error.code === 'INVALID_NETNS') return undefined;
      throw error;
    }
  }

  hostLink(name: string): Promise<ObservedLink | undefined> {
    return callKernel(async () => {
      const link = await getLink(this.#node, { name });
      return link && toObservedLink(link);
    });
  }

  async deleteHostLink({ index }: Pick<ObservedLink, 'index'>): Promise<boolean> {
    try {
      await this.#node.deleteLink({ index });
      return true;
    } catch (error) {
      if (!(error instanceof NetlinkError)) throw error;
      if (hasErrno(error, 'ENODEV')) return false;
      throw failureOfNetlink(error);
    }
  }

  renameHostLink({ index }: Pick<ObservedLink, 'index'>, name: string): Promise<void> {
    return callKernel(() => renameLink(this.#node, { index, name }));
  }

  veths(): Promise<readonly ObservedLink[]> {
    return callKernel(async () => {
      const links = await this.#node.links();
      return links.filter(({ kind }) => kind === 'veth').map(toObservedLink);
    });
  }

  attachedLinks(): Promise<readonly AttachedLink[]> {
    return callKernel(async () => {
      const links = await this.#node.links();
      const routes = await this.#node.routes({ table: MAIN_TABLE });
      const ours = routes.filter((route) => route.protocol === ROUTE_PROTOCOL);
      return links.toSorted(compareNames).flatMap((link): AttachedLink[] => {
        const attachment = attachmentOfAlias(link.alias);
        const addresses = ours.filter((route) => route.outputIndex === link.index).map((route) => route.destination);
        return attachment ? [{ attachment, link: toObservedLink(link), addresses }] : [];
      });
    });
  }

  deleteFlows(address: string): Promise<number> {
    return this.#deleteConntrack({ address });
  }

  deletePortFlows(protocol: PortProtocol, ports: readonly number[]): Promise<number> {
    return this.#deleteConntrack({ protocol, destinationPorts: ports });
  }

  close(): Promise<void> {
    return this.#node.close();
  }

  async #deleteConntrack(filter: ConntrackFilter): Promise<number> {
    try {
      return await this.#node.deleteConntrack(filter);
    } catch (error) {
      if (!(error instanceof NetlinkError)) throw error;
      if (WITHOUT_CONNTRACK.includes(error.code)) return 0;
      throw failureOfNetlink(error);
    }
  }
}

async function openPod(netns: string): Promise<Namespace> {
  try {
    return await openNamespace(netns);
  } catch (error) {
    throw error instanceof NetlinkError ? openFailure(netns, refusalOf(error)) : error;
  }
}

function isSame(a: Namespace, b: Namespace): boolean {
  return a.identity.inode === b.identity.inode && a.identity.device === b.identity.device;
}

/**
 * Renames a link. Before Linux 6.2 a link that is up keeps its name (EBUSY): it is set down first, and loses its routes.
 * @throws NetlinkError
 */
export async function renameLink(
  namespace: Pick<Namespace, 'sequence'>,
  { index, name }: { readonly index: number; readonly name: string },
): Promise<void> {
  const link = { index };
  const rename = { type: 'link.set', link, name } as const;
  const [atOnce] = await namespace.sequence([rename]);
  if (atOnce?.ok !== false) return;
  if (!hasErrno(atOnce.error, 'EBUSY')) throw atOnce.error;
  const down = { type: 'link.set', link, up: false } as const;
  const up = { type: 'link.set', link, up: true } as const;
  const [isDown, isRenamed] = await namespace.sequence([down, { optional: true, ...rename }, up]);
  for (const outcome of [isDown, isRenamed]) if (outcome?.ok === false) throw outcome.error;
}
