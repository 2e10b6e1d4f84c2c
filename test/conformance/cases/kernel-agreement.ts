import type { Bench, Pod } from '../bench.js';
import type { KernelLink } from '../machine/namespace.js';
import type { Result, ResultInterface } from '../specification/result.js';

/** Compares a result with the kernel's state. */
export function expectKernelAgrees(bench: Bench, pod: Pod, result: Result): void {
  bench.look(pod);
  const { links: inPod, routes } = pod.namespace.contents();
  const onNode = bench.node.links();
  result.interfaces.forEach((entry, index) => {
    const isPods = entry.sandbox !== undefined;
    if (isPods) {
      bench.require(
        entry.sandbox === pod.namespace.path,
        `interfaces[${index}].sandbox is ${entry.sandbox} and CNI_NETNS is ${pod.namespace.path}`,
      );
    }
    expectLinkAgrees(bench, { entry, index, link: (isPods ? inPod : onNode).find(({ name }) => name === entry.name) });
  });
  expectAddressesAgree(bench, { result, inPod, onNode });
  // The kernel keeps routes to the container's own addresses in another table. Calico's results have one for each.
  const own = new Set(result.ips.map(({ address }) => withoutLength(address)));
  result.routes.forEach(({ dst, gw }, index) => {
    const found = routes.some((route) => route.dst === dst && (gw === undefined || route.gateway === gw));
    bench.require(
      found || own.has(withoutLength(dst)),
      `routes[${index}] (${dst}${gw ? ` via ${gw}` : ''}) is not in the container`,
    );
  });
}

function withoutLength(cidr: string): string | undefined {
  return cidr.split('/')[0];
}

interface LinkComparison {
  readonly entry: ResultInterface;
  readonly index: number;
  readonly link: KernelLink | undefined;
}

function expectLinkAgrees(bench: Bench, { entry, index, link }: LinkComparison): void {
  const path = `interfaces[${index}]`;
  if (link === undefined) {
    const where = entry.sandbox === undefined ? 'on the node' : 'in the container';
    bench.fault(`${path}: there is no ${entry.name} ${where}`);
    return;
  }
  bench.require(
    entry.mac === undefined || entry.mac === link.mac,
    `${path}.mac is ${entry.mac}, the link's ${link.mac}`,
  );
  bench.require(
    entry.mtu === undefined || entry.mtu === link.mtu,
    `${path}.mtu is ${entry.mtu}, the link's ${link.mtu}`,
  );
}

interface AddressComparison {
  readonly result: Result;
  readonly inPod: readonly KernelLink[];
  readonly onNode: readonly KernelLink[];
}

function expectAddressesAgree(bench: Bench, { result, inPod, onNode }: AddressComparison): void {
  result.ips.forEach((ip, index) => {
    const entry = ip.interface === undefined ? undefined : result.interfaces[ip.interface];
    const links = entry !== undefined && entry.sandbox === undefined ? onNode : inPod;
    const candidates = entry === undefined ? links : links.filter(({ name }) => name === entry.name);
    const isThere = candidates.some(({ addresses }) => addresses.includes(ip.address));
    bench.require(isThere, `ips[${index}]: ${ip.address} is not on ${entry?.name ?? 'any interface of the container'}`);
  });
}

/** The requested interface exists, is up, and is in the result, where its form can show that. */
export function expectInterfaceMade(bench: Bench, pod: Pod, result: Result): void {
  const { interfaceName, makesInterface } = bench.occasion.subject;
  const link = pod.namespace.link(interfaceName);
  bench.require(link?.isUp === true, `${interfaceName} is not there and up in the container`);
  if (result.interfaces.length === 0 || !makesInterface) return;
  const named = result.interfaces.some(({ name, sandbox }) => name === interfaceName && sandbox === pod.namespace.path);
  bench.require(named, `no entry of interfaces is ${interfaceName} with the container's namespace`);
}
