import type { NodeKernel } from '../routes/kernel.js';
import { ownerOf, TUNNEL_DEVICES } from '../routes/observed.js';
import { formatNodeRoute } from '../routes/step.js';
import type { WantedNode } from '../routes/wanted.js';

/** The slow, obvious answer to what differs between a kernel and what is wanted of it: read anew, compared line by line. */
export async function differences(kernel: NodeKernel, wanted: WantedNode): Promise<string[]> {
  const sysctls = wanted.sysctls.map(({ key }) => key);
  const seen = await kernel.observe({ sysctls, isWanted: () => false });
  const there = [
    ...seen.routes
      .filter((route) => ownerOf(route) === 'node')
      .map((route) => `${formatNodeRoute(route)} ${route.metric}`),
    ...[...seen.devices.values()]
      .filter(({ name }) => TUNNEL_DEVICES.includes(name))
      .map((found) => JSON.stringify(found)),
    ...seen.addresses
      .filter(({ device }) => TUNNEL_DEVICES.includes(device))
      .map(({ device, address }) => `address ${device} ${address}`),
    ...seen.neighbours.map(({ device, address, mac }) => `neighbour ${device} ${address} ${mac}`),
    ...seen.forwarding.map(({ device, mac, nodeAddress }) => `forwarding ${device} ${mac} ${nodeAddress}`),
    ...[...seen.sysctls].map(([key, value]) => `sysctl ${key} ${value ?? 'missing'}`),
  ];
  const meant = [
    ...[...wanted.routes.values()].map(
      (route) => `${formatNodeRoute(route)} ${route.destination.includes(':') ? 1024 : 0}`,
    ),
    ...wanted.tunnels.map((tunnel) => JSON.stringify(asSeen(tunnel))),
    ...wanted.tunnels.flatMap(({ name, address }) => (address === undefined ? [] : [`address ${name} ${address}`])),
    ...wanted.peers.map(({ device, tunnelAddress, mac }) => `neighbour ${device} ${tunnelAddress} ${mac}`),
    ...wanted.peers.map(({ device, mac, nodeAddress }) => `forwarding ${device} ${mac} ${nodeAddress}`),
    ...wanted.sysctls.map(({ key, value }) => `sysctl ${key.join('/')} ${value}`),
  ];
  return [
    ...without(there, meant).map((line) => `too much: ${line}`),
    ...without(meant, there).map((line) => `missing: ${line}`),
  ];
}

/** The lines that are not among the others, counted. */
function without(lines: readonly string[], others: readonly string[]): string[] {
  const left = [...others];
  return lines.filter((line) => {
    const place = left.indexOf(line);
    if (place >= 0) left.splice(place, 1);
    return place < 0;
  });
}

function asSeen(tunnel: WantedNode['tunnels'][number]): unknown {
  const { name, kind, mtuBytes, local } = tunnel;
  if (tunnel.kind === 'ipip') {
    return { name, kind, up: true, mac: null, mtuBytes, tunnel: { kind, local } };
  }
  const { vni, port, parent, mac } = tunnel;
  return {
    name,
    kind,
    up: true,
    mac,
    mtuBytes,
    tunnel: { kind, vni, port, local, parent, isLearning: false, isExternal: false },
  };
}
