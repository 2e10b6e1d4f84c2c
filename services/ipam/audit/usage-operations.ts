import { observeMetrics, type Observe } from '@podwire/shared/telemetry/instruments';

import { NO_AFFINITY, type Usage } from './usage.js';

const GAUGES = [
  'podwire.ipam.allocations.in_use',
  'podwire.ipam.allocations.borrowed',
  'podwire.ipam.allocations.leased',
  'podwire.ipam.allocations.cooling',
  'podwire.ipam.namespace.addresses',
  'podwire.ipam.blocks',
  'podwire.ipam.ippool.size',
  'podwire.ipam.ippool.reserved',
  'podwire.ipam.ippool.available',
] as const;

/**
 * Usage gauges, like the gauges of Calico's kube-controllers. Counted only when they are collected.
 * @param usage - fails while the datastore is unavailable; then nothing is reported
 * @returns a function that removes the gauges
 */
export function observeUsage(usage: () => Promise<Usage>): () => void {
  return observeMetrics(GAUGES, async (observe) => {
    const latest = await usage().catch(() => undefined);
    if (latest) report(latest, observe);
  });
}

function report({ nodeUsages, namespaces, pools, cooling }: Usage, observe: Observe<(typeof GAUGES)[number]>): void {
  for (const { poolName, nodeName, inUse, borrowed, leased, blocks } of nodeUsages) {
    const labels = { ippool: poolName, node: nodeName };
    if (nodeName !== NO_AFFINITY) {
      observe('podwire.ipam.allocations.in_use', inUse, labels);
      observe('podwire.ipam.allocations.borrowed', borrowed, labels);
      observe('podwire.ipam.allocations.leased', leased, labels);
    }
    if (blocks > 0) observe('podwire.ipam.blocks', blocks, labels);
  }
  for (const { poolName, family, size, reserved, available } of pools) {
    const labels = { ippool: poolName, family: `ipv${family}` };
    // A gauge is a floating-point number: the size of a large IPv6 pool is rounded.
    observe('podwire.ipam.ippool.size', Number(size), labels);
    observe('podwire.ipam.ippool.reserved', Number(reserved), labels);
    observe('podwire.ipam.ippool.available', Number(available), labels);
  }
  for (const { namespace, inUse } of namespaces) observe('podwire.ipam.namespace.addresses', inUse, { namespace });
  observe('podwire.ipam.allocations.cooling', cooling);
}
