import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';

import { PodServiceService, type AttachedPod } from '@podwire/proto/podwire/dataplane/v1/pod';
import { BlockServiceService, type BlockAllocation } from '@podwire/proto/podwire/ipam/v1/block';
import { AuditServiceService, type Finding } from '@podwire/proto/podwire/ipam/v1/maintenance';
import { Peer } from '@podwire/shared/rpc/client';

import type { Stack } from './stack.js';

const LIMITS = () => ({ deadlineMs: Date.now() + 60_000 });

/** Longer than podwire-node needs to bind and return addresses on a busy machine. */
const SETTLING_MS = 10_000;

/** Waits until IPAM knows the addresses of the node's pods, or podwire-node or IPAM are down for too long. */
export async function settled(stack: Stack): Promise<void> {
  const isUnsettled = (name: string) => /"isBound":false|"state":"dead"/.test(readRecord(stack, name));
  for (
    let waitedMs = 0;
    waitedMs < SETTLING_MS && readdirSync(stack.recordsDirectory).some(isUnsettled);
    waitedMs += 10
  )
    await sleep(10);
}

function readRecord(stack: Stack, name: string): string {
  try {
    return readFileSync(join(stack.recordsDirectory, name), 'utf8');
  } catch {
    // It was removed meanwhile.
    return '';
  }
}

/** Every address that IPAM has allocated to an owner; leases of nodes, which no pod has, are left out. */
export async function allocations(stack: Stack): Promise<readonly BlockAllocation[]> {
  await settled(stack);
  const ipam = new Peer('podwire-ipam', `unix:${stack.sockets.ipam}`);
  const request = { pageSize: 1000, pageToken: '', poolName: '', nodeName: '' };
  const { blocks } = await ipam.call(BlockServiceService.listBlocks, request, LIMITS());
  ipam.close();
  return blocks.flatMap((block) => block.allocations).filter(({ handleId }) => !handleId.startsWith('podwire-lease.'));
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

/** Routes without the blackholes of the node's own blocks, which it keeps without pods. */
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
