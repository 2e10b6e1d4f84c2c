import type { BatchObservableResult, Meter, Observable } from '@opentelemetry/api';

import { NO_AFFINITY, type Usage } from './usage.js';

/**
 * Usage gauges with the names of Calico's kube-controllers (`ipam_allocations_in_use` and so on; Prometheus shows
 * `podwire_ipam_…`). Counted only when they are collected.
 * @param usage - fails while the datastore is unavailable; then nothing is reported
 * @returns a function that removes the gauges
 */
export function observeUsage(meter: Meter, usage: () => Promise<Usage>): () => void {
  const gauge = (name: string, unit: string, description: string): Observable =>
    meter.createObservableGauge(`podwire.ipam.${name}`, { unit, description });
  const gauges: Gauges = {
    inUse: gauge('allocations.in_use', '{address}', 'Addresses in use, by their pool and the node that uses them'),
    borrowed: gauge('allocations.borrowed', '{address}', 'Addresses in use from blocks of other nodes'),
    blocks: gauge('blocks', '{block}', 'Blocks, by their pool and the node that owns them'),
    cooling: gauge('allocations.cooling', '{address}', 'Addresses that cool down after their release'),
    size: gauge('ippool.size', '{address}', 'Addresses of a pool'),
    reserved: gauge('ippool.reserved', '{address}', 'Addresses of a pool that reservations cover, allocated or not'),
    available: gauge('ippool.available', '{address}', 'Addresses of a pool that are neither allocated nor reserved'),
  };
  const observe = async (result: BatchObservableResult): Promise<void> => {
    const latestUsage = await usage().catch(() => undefined);
    if (latestUsage) observeGauges(result, gauges, latestUsage);
  };
  const all = Object.values(gauges);
  meter.addBatchObservableCallback(observe, all);
  return () => meter.removeBatchObservableCallback(observe, all);
}

interface Gauges extends Record<string, Observable> {
  readonly inUse: Observable;
  readonly borrowed: Observable;
  readonly blocks: Observable;
  readonly cooling: Observable;
  readonly size: Observable;
  readonly reserved: Observable;
  readonly available: Observable;
}

function observeGauges(result: BatchObservableResult, gauges: Gauges, { nodeUsages, pools, cooling }: Usage): void {
  for (const { poolName, nodeName, inUse, borrowed, blocks } of nodeUsages) {
    const attributes = { ippool: poolName, node: nodeName };
    if (nodeName !== NO_AFFINITY) {
      result.observe(gauges.inUse, inUse, attributes);
      result.observe(gauges.borrowed, borrowed, attributes);
    }
    if (blocks > 0) result.observe(gauges.blocks, blocks, attributes);
  }
  for (const { poolName, size, reserved, available } of pools) {
    // A gauge is a floating-point number: the size of a large IPv6 pool is rounded.
    result.observe(gauges.size, Number(size), { ippool: poolName });
    result.observe(gauges.reserved, Number(reserved), { ippool: poolName });
    result.observe(gauges.available, Number(available), { ippool: poolName });
  }
  result.observe(gauges.cooling, cooling);
}
