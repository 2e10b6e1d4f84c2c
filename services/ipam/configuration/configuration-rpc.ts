import type { Config as ConfigMessage, UpdateConfigRequest } from '@podwire/proto/podwire/ipam/v1/config';
import { checked } from '@podwire/shared/rpc/checks';

import type { IpamConfig } from '../allocator/records.js';
import { configRangeFaults, configVersion, type ConfigListing, type ConfigUpdate } from './configuration.js';

const FIELDS: Record<keyof IpamConfig, string> = {
  strictAffinity: 'strict_affinity',
  autoAllocateBlocks: 'auto_allocate_blocks',
  maxBlocksPerHostCount: 'max_blocks_per_node',
  cooldownSeconds: 'cooldown_seconds',
};

export function readUpdateConfigRequest(message: UpdateConfigRequest): ConfigUpdate {
  const { strictAffinity, autoAllocateBlocks, maxBlocksPerNode, cooldownSeconds, resourceVersion } = message;
  return checked('UpdateConfig', (checks) => {
    const changes: Partial<IpamConfig> = {
      ...(strictAffinity === undefined ? {} : { strictAffinity }),
      ...(autoAllocateBlocks === undefined ? {} : { autoAllocateBlocks }),
      ...(maxBlocksPerNode === undefined ? {} : { maxBlocksPerHostCount: maxBlocksPerNode }),
      ...(cooldownSeconds === undefined ? {} : { cooldownSeconds }),
    };
    for (const { field, reason } of configRangeFaults(changes)) checks.check(FIELDS[field], reason);
    return { changes, resourceVersion };
  });
}

/** A cool-down below 0, as another writer may have stored it, means none. */
export function configMessage(listing: ConfigListing): ConfigMessage {
  const { config, isStored } = listing;
  return {
    strictAffinity: config.strictAffinity,
    autoAllocateBlocks: config.autoAllocateBlocks,
    maxBlocksPerNode: config.maxBlocksPerHostCount,
    cooldownSeconds: Math.max(0, config.cooldownSeconds),
    resourceVersion: configVersion(listing),
    stored: isStored,
  };
}
