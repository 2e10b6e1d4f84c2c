import { makeNamespace, openNamespace, type Namespace, type Probe, type ProbeAnswer } from '@podwire/netlink';
import type { Address } from '@podwire/shared/net/address';
import { parsePrefix, prefixContains } from '@podwire/shared/net/prefix';

import { MAIN_TABLE } from './pod-observe.js';
import { callKernel } from './refusal.js';

/** @returns a descriptor of a new network namespace, which ends with it @throws Failure */
export function makeProbeNamespace(): Promise<number> {
  return callKernel(() => makeNamespace());
}

/**
 * Listens for TCP in a namespace.
 * @returns the descriptor of the socket, and the MTU of an interface
 * @throws Failure
 */
export function listenIn(path: string, port: number, interfaceName: string) {
  return inNamespace(path, async (namespace) => {
    const links = await namespace.links();
    const mtuBytes = links.find(({ name }) => name === interfaceName)?.mtuBytes ?? 0;
    return { descriptor: await namespace.listenTcp(port), mtuBytes };
  });
}

/** Sends probes from a namespace, or from the node for undefined. @throws Failure */
export function sendProbes(
  path: string | undefined,
  probes: readonly Probe[],
  timeoutMs: number,
): Promise<readonly ProbeAnswer[]> {
  return inNamespace(path, (namespace) => namespace.probe(probes, { timeoutMs }));
}

/**
 * The node's route of the main table to an address: the longest prefix, then the lowest metric.
 * @returns in the notation of `ip route`; empty: there is none
 * @throws Failure
 */
export function routeTo(destination: Address): Promise<string> {
  return inNamespace(undefined, async (node) => {
    const routes = await node.routes({ table: MAIN_TABLE, family: destination.family });
    const [best] = routes
      .flatMap((route) => {
        const parsed = parsePrefix(route.destination);
        return parsed.ok && prefixContains(parsed.prefix, destination) ? { route, length: parsed.prefix.length } : [];
      })
      .sort((a, b) => b.length - a.length || a.route.metric - b.route.metric);
    if (!best) return '';
    const { routeType, destination: to, gateway, outputIndex, protocol } = best.route;
    const device = (await node.links()).find(({ index }) => index === outputIndex)?.name;
    const type = routeType === 'unicast' ? [] : [routeType];
    const [via, dev] = [gateway === null ? [] : ['via', gateway], device === undefined ? [] : ['dev', device]];
    return [...type, to, ...via, ...dev, 'proto', protocol].join(' ');
  });
}

async function inNamespace<Answer>(
  path: string | undefined,
  work: (namespace: Namespace) => Promise<Answer>,
): Promise<Answer> {
  const namespace = await callKernel(() => openNamespace(path));
  try {
    return await callKernel(() => work(namespace));
  } finally {
    await namespace.close();
  }
}

export type { Probe, ProbeAnswer };
