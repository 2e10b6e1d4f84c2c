import { expect } from 'vitest';

import { allocations, attachedPods, auditFindings, footprint } from '../support/leftovers.js';
import { NETWORK } from '../support/pods.js';
import { pings, run } from '../support/programs.js';
import { NODE_ADDRESS, type Stack } from '../support/stack.js';
import { until } from '../support/until.js';

/** A pod that a container runtime runs. */
export interface RunningPod {
  /** CNI's container ID. */
  readonly id: string;
  readonly address: string;
  /** Path of its network namespace. */
  readonly netns: string;
}

/** Podwire followed by plugins of other projects, as in a cluster's configuration. */
export function conflist(socket: string, keys: object = {}): object {
  const capabilities = { 'io.kubernetes.cri.pod-annotations': true };
  const podwire = { type: 'podwire', socket, ipam: { type: 'podwire-ipam' }, capabilities, ...keys };
  const portmap = { type: 'portmap', capabilities: { portMappings: true }, snat: true };
  return { cniVersion: '1.0.0', name: NETWORK, plugins: [podwire, portmap] };
}

/** Rules of the packet filter, counters left out: rules of `iptables`, which portmap makes, and all other rules. */
export function packetFilter(stack: Stack): object {
  const inNode = (...command: readonly [string, ...string[]]) => run('nsenter', `--net=${stack.netnsPath}`, ...command);
  // nft lists tables in the order of their creation.
  const tables = inNode('nft', '--stateless', 'list', 'ruleset').split(/^(?=table )/m);
  return { nat: inNode('iptables', '-t', 'nat', '-S'), tables: tables.toSorted() };
}

/** Objects that pods leave on the node and in the records when something leaks. Equal before and after pods came and went. */
export async function nodeFootprint(stack: Stack): Promise<object> {
  // The tables that guard pods are set up beside the first pods, without delaying them; the last one has the node's address.
  const ruleset = () => run('nsenter', `--net=${stack.netnsPath}`, 'nft', 'list', 'ruleset');
  const marks = [/^table inet podwire \{/m, /^table inet podwire_neighbours \{/m, /set nodes4 \{[^}]*elements/];
  await until(
    () => marks.every((mark) => mark.test(ruleset())),
    () => `the node lacks a table that guards its pods:\n${stack.log('node')}`,
  );
  return { ...(await footprint(stack)), ...packetFilter(stack), findings: await auditFindings(stack) };
}

/** Every pod has a unique address and its interface, in the kernel and in the records, and there are no further ones. */
export async function expectHolding(stack: Stack, pods: readonly RunningPod[]): Promise<void> {
  const expected = pods.map(({ id, address }) => `${NETWORK}.${id} ${address}`).sort();
  const held = (await allocations(stack)).map(({ handleId, address }) => `${handleId} ${address}`);
  expect(held.sort()).toEqual(expected);
  expect(new Set(pods.map(({ address }) => address)).size).toBe(pods.length);
  const attached = (await attachedPods(stack)).map(({ attachment }) => attachment?.containerId);
  expect(attached.sort()).toEqual(pods.map(({ id }) => id).sort());
  expect(await auditFindings(stack)).toEqual([]);
}

/** Every pod reaches the node and the next pod, and the node reaches it. */
export function expectReachable(stack: Stack, pods: readonly RunningPod[]): void {
  const lost = pods.flatMap(({ address, netns }, i) => {
    const next = pods[(i + 1) % pods.length]?.address ?? address;
    return [
      ...(pings(address, stack.netnsPath) ? [] : [`node → ${address}`]),
      ...(pings(NODE_ADDRESS, netns) ? [] : [`${address} → node`]),
      ...(pings(next, netns) ? [] : [`${address} → ${next}`]),
    ];
  });
  expect(lost).toEqual([]);
}
