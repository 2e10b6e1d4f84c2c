import { PodServiceService, type AttachedPod } from '@podwire/proto/podwire/dataplane/v1/pod';
import { BlockServiceService, type BlockAllocation } from '@podwire/proto/podwire/ipam/v1/block';
import { AuditServiceService, type Finding } from '@podwire/proto/podwire/ipam/v1/maintenance';
import { Peer } from '@podwire/shared/rpc/client';

import type { Stack } from './stack.js';

const LIMITS = () => ({ deadlineMs: Date.now() + 60_000 });

/** Every allocated address in IPAM. */
export async function allocations(stack: Stack): Promise<readonly BlockAllocation[]> {
  const ipam = new Peer('podwire-ipam', `unix:${stack.sockets.ipam}`);
  const request = { pageSize: 1000, pageToken: '', poolName: '', nodeName: '' };
  const { blocks } = await ipam.call(BlockServiceService.listBlocks, request, LIMITS());
  ipam.close();
  return blocks.flatMap((block) => block.allocations);
}

/** IPAM's findings in its datastore. */
export async function auditFindings(stack: Stack): Promise<readonly Finding[]> {
  const ipam = new Peer('podwire-ipam', `unix:${stack.sockets.ipam}`);
  const request = { pageSize: 1000, pageToken: '', kinds: [], includeInformation: false, topNodes: 0 };
  const { findings } = await ipam.call(AuditServiceService.audit, request, LIMITS());
  ipam.close();
  return findings;
}

/** Every attachment in the node's kernel. */
export async function attachedPods(stack: Stack): Promise<readonly AttachedPod[]> {
  const dataplane = new Peer('podwire-node', `unix:${stack.sockets.dataplane}`);
  const { pods } = await dataplane.call(PodServiceService.listPods, { pageSize: 1000, pageToken: '' }, LIMITS());
  dataplane.close();
  return pods;
}

/** Without the blackholes of the node's own blocks, which it keeps without pods. */
function routes(stack: Stack): string[] {
  const lines = stack.ip('route', 'show', 'table', 'all').split('\n');
  return lines.filter((line) => !line.startsWith('blackhole '));
}

/**
 * Objects that pods leave behind when something leaks: the node's links and routes, and the addresses in IPAM. Equal before
 * and after pods came and went.
 */
export async function footprint(stack: Stack): Promise<object> {
  return {
    links: stack.ip('-br', 'link'),
    routes: routes(stack),
    neighbours: stack.ip('neigh'),
    allocations: await allocations(stack),
    attached: await attachedPods(stack),
  };
}
