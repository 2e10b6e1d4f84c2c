import {
  ConfigServiceService,
  type Config as ConfigMessage,
  type UpdateConfigRequest,
} from '@podwire/proto/podwire/ipam/v1/config';
import { readChecked } from '@podwire/shared/requests/checks';
import type { RpcService } from '@podwire/shared/rpc/server';
import { unaryService, type Unary } from '@podwire/shared/rpc/unary';

import { read, type IpamOptions } from '../engine/updates/operation.js';
import type { IpamConfig } from '../records/config.js';
import {
  configRangeFaults,
  configVersion,
  getConfig,
  updateConfig,
  type ConfigListing,
  type ConfigUpdate,
} from './configuration.js';

export function configService(configuration: Configuration, unary: Unary): RpcService {
  return unaryService(ConfigServiceService, unary, {
    getConfig: async (_, { signal }) => ({ config: configMessage(await configuration.get(signal)) }),
    updateConfig: async (message, { signal }) => {
      const update = readUpdateConfigRequest(message);
      return { config: configMessage(await configuration.update(update, signal)) };
    },
  });
}

const CONFIG_LANE = 'config';

/** Reads and changes the settings of all allocations. */
export class Configuration {
  readonly #options: IpamOptions;

  constructor(options: IpamOptions) {
    this.#options = options;
  }

  get(signal: AbortSignal): Promise<ConfigListing> {
    return read(this.#options, getConfig, signal);
  }

  /** Idempotent without a version. @throws Failure STALE_VERSION, CONFIG_CONTRADICTION */
  async update(update: ConfigUpdate, signal: AbortSignal): Promise<ConfigListing> {
    const { updates, events } = this.#options;
    const { listing, changed } = await updates.update(CONFIG_LANE, (view) => updateConfig(view, update), { signal });
    if (changed) events.log.info({ 'podwire.config': listing.config }, 'changed the configuration');
    return listing;
  }

  /** Whether Calico's tools have locked the datastore, according to this replica's view. */
  isLocked(): Promise<boolean> {
    return this.#options.updates.peek((view) => view.isLocked());
  }
}

const FIELDS: Record<keyof IpamConfig, string> = {
  strictAffinity: 'strict_affinity',
  autoAllocateBlocks: 'auto_allocate_blocks',
  maxBlocksPerHostCount: 'max_blocks_per_node',
  cooldownSeconds: 'cooldown_seconds',
};

function readUpdateConfigRequest(message: UpdateConfigRequest): ConfigUpdate {
  const { strictAffinity, autoAllocateBlocks, maxBlocksPerNode, cooldownSeconds, resourceVersion } = message;
  return readChecked('UpdateConfig', (checks) => {
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

/** Another writer may have stored a cool-down below 0, which means none. */
function configMessage(listing: ConfigListing): ConfigMessage {
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
