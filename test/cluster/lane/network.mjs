// The addresses of the cluster, and the network between its machines.
import { spawn } from 'node:child_process';

import { must } from './wait.mjs';

export const CONTROL_PLANE = '198.18.0.1';
export const CONTROL_PLANE_IPV6 = 'fd00:18::1';
export const SERVICES = { ipv4: '10.96.0.0/16', ipv6: 'fd96::/108' };
/** Cluster IP of the Service "kubernetes": the first one of the range. */
export const SERVICE_OF_API = { ipv4: '10.96.0.1', ipv6: 'fd96::1' };
export const SERVICE_OF_DNS = { ipv4: '10.96.0.53', ipv6: 'fd96::53' };
export const PODS = { ipv4: '10.65.0.0/16', ipv6: 'fd65::/48' };
/** Ranges of pools that pods get only by their annotation; a scenario deletes the second one. */
export const EXTRA_PODS = '10.66.0.0/16';
export const DELETED_PODS = '10.67.0.0/24';

/** A host that has no route to the pods: it sees the address of a node. */
export const OUTSIDE = { ipv4: '203.0.113.10', ipv6: '2001:db8:113::10' };
/** Source of its requests to nodes, and the nodes' default route. */
export const GATEWAY = { ipv4: '198.18.0.254', ipv6: 'fd00:18::fe' };

export const NODES = [
  { name: 'node-a', ipv4: '198.18.0.11', ipv6: 'fd00:18::11' },
  { name: 'node-b', ipv4: '198.18.0.12', ipv6: 'fd00:18::12' },
  { name: 'node-c', ipv4: '198.18.0.13', ipv6: 'fd00:18::13' },
];
/** Only Kubernetes' own tests need the third node: some are about three zones. */
export const nodesOf = (isForE2e) => (isForE2e ? NODES : NODES.slice(0, 2));

/** IPv4 alone, IPv6 alone or both, each with what the parts of the cluster need of it. */
export function familiesOf(name) {
  const families = { ipv4: ['ipv4'], ipv6: ['ipv6'], dual: ['ipv4', 'ipv6'] }[name];
  return { name, families, pick: (values) => families.map((family) => values[family]) };
}

/** Each node has addresses of both families, so that one cluster can have either. */
export function addressesOf(node) {
  return { addresses: [`${node.ipv4}/24`, `${node.ipv6}/64`], gateways: [GATEWAY.ipv4, GATEWAY.ipv6] };
}

/** The bridge between control plane and machines, and behind it a host that serves HTTP on port 8080. */
export function makeNetwork(podProgram) {
  const lines = [
    'link add lan type bridge',
    `address add ${CONTROL_PLANE}/24 dev lan`,
    `address add ${CONTROL_PLANE_IPV6}/64 dev lan nodad`,
    'link set lan up',
    'netns add outside',
    'link add port-outside type veth peer name eth0 netns outside',
    'link set port-outside master lan up',
  ];
  const outside = [
    'link set lo up',
    `address add ${GATEWAY.ipv4}/24 dev eth0`,
    `address add ${GATEWAY.ipv6}/64 dev eth0 nodad`,
    'link set eth0 up',
    `address add ${OUTSIDE.ipv4}/32 dev lo`,
    `address add ${OUTSIDE.ipv6}/128 dev lo nodad`,
  ];
  for (const line of lines) must('ip', line.split(' '));
  for (const line of outside) must('ip', ['-n', 'outside', ...line.split(' ')]);
  spawn('ip', ['netns', 'exec', 'outside', podProgram, 'serve', '8080'], { stdio: 'ignore' });
}
