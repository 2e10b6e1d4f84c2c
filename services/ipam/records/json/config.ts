import type { IpamConfig } from '../config.js';
import type { ClusterInformation } from '../view.js';
import { field, isAbsent, readCount, readFlag, readObject, unreadable, type Field } from './fields.js';
import type { JsonObject } from './json.js';

/**
 * Calico's IPAMConfig (libcalico-go/lib/backend/model/ipam_config.go). A missing field has its zero value, so `{}`
 * disables automatic claims of blocks.
 */

const LARGEST_BLOCK_COUNT = 1_000_000;

export function decodeConfig(raw: JsonObject): IpamConfig {
  const maxBlocks = field(raw, 'maxBlocksPerHost');
  return {
    strictAffinity: readFlag(field(raw, 'strict_affinity')),
    autoAllocateBlocks: readFlag(field(raw, 'auto_allocate_blocks')),
    maxBlocksPerHostCount: isAbsent(maxBlocks) ? 0 : readCount(maxBlocks, LARGEST_BLOCK_COUNT),
    cooldownSeconds: readSeconds(field(raw, 'ipCooldownSeconds')),
  };
}

/** A negative value in the raw key means the same as 0: no cool-down. */
function readSeconds(source: Field): number {
  if (isAbsent(source)) return 0;
  const { value } = source;
  if (typeof value !== 'number' || !Number.isInteger(value)) throw unreadable(source, 'an integer');
  return value;
}

export function encodeConfig(config: IpamConfig, raw: JsonObject): JsonObject {
  return {
    ...raw,
    strict_affinity: config.strictAffinity,
    auto_allocate_blocks: config.autoAllocateBlocks,
    maxBlocksPerHost: config.maxBlocksPerHostCount,
    ipCooldownSeconds: config.cooldownSeconds,
  };
}

/** Calico's ClusterInformation (projectcalico/api, pkg/apis/projectcalico/v3/clusterinfo.go). Read only. */
export function decodeClusterInformation(raw: JsonObject): ClusterInformation {
  const ready = field(readObject(field(raw, 'spec')), 'datastoreReady', 'spec');
  return { isLocked: !isAbsent(ready) && !readFlag(ready) };
}
