import { Failure, type Violation } from '@podwire/shared/failure/failure';

import { requireReadable } from '../records/absence.js';
import { DEFAULT_CONFIG, type IpamConfig } from '../records/config.js';
import { versionOf } from '../records/versions.js';
import type { Decision, View } from '../records/view.js';

/** The effective configuration. */
export interface ConfigListing {
  readonly config: IpamConfig;
  /** False while none is stored and the defaults apply. */
  readonly isStored: boolean;
}

/** Reads without storing the defaults. @throws Failure STORE_CORRUPT */
export function getConfig(view: View): ConfigListing {
  requireReadable(view, { kind: 'config' });
  const stored = view.config();
  return { config: stored ?? DEFAULT_CONFIG, isStored: stored !== undefined };
}

/** The version changes when the defaults are stored: from then on, other defaults of another release do not apply. */
export function configVersion({ config, isStored }: ConfigListing): string {
  return versionOf({ ...config, isStored });
}

/** The settings to change; omitted ones keep their values. */
export interface ConfigUpdate {
  readonly changes: Partial<IpamConfig>;
  /** Change only if the configuration still is of this version; empty for any. */
  readonly resourceVersion: string;
}

interface UpdatedConfig {
  readonly listing: ConfigListing;
  readonly changed: boolean;
}

const MAX_BLOCKS_PER_HOST_COUNT = 1_000_000;
const MAX_COOLDOWN_SECONDS = 1200;

/** Settings that are out of range. */
export function configRangeFaults({ maxBlocksPerHostCount, cooldownSeconds }: Partial<IpamConfig>): ConfigFault[] {
  return [
    ...rangeFault('maxBlocksPerHostCount', maxBlocksPerHostCount, MAX_BLOCKS_PER_HOST_COUNT),
    ...rangeFault('cooldownSeconds', cooldownSeconds, MAX_COOLDOWN_SECONDS),
  ];
}

interface ConfigFault extends Violation {
  readonly field: keyof IpamConfig;
}

function rangeFault(field: keyof IpamConfig, value: number | undefined, largest: number): ConfigFault[] {
  if (value === undefined || (Number.isInteger(value) && value >= 0 && value <= largest)) return [];
  return [{ field, reason: `is ${value}; it must be from 0 to ${largest}` }];
}

/**
 * Changes the configuration. Idempotent without a version. If another writer stored a contradictory configuration,
 * changes are refused until one resolves the contradiction.
 * @throws Failure STALE_VERSION, CONFIG_CONTRADICTION, STORE_CORRUPT
 */
export function updateConfig(view: View, { changes, resourceVersion }: ConfigUpdate): Decision<UpdatedConfig> {
  const before = getConfig(view);
  if (resourceVersion !== '' && resourceVersion !== configVersion(before)) {
    const text = `the configuration was changed since resource version ${resourceVersion}; read it again and retry`;
    throw new Failure('STALE_VERSION', text);
  }
  const config = { ...before.config, ...changes };
  const faults = contradictions(config);
  if (faults.length > 0)
    throw new Failure('CONFIG_CONTRADICTION', `the configuration stays as it is: ${faults.join('; ')}`);
  const changed =
    Object.keys(changes).length > 0 && (!before.isStored || versionOf(config) !== versionOf(before.config));
  if (!changed) return { changes: [], outcome: { listing: before, changed } };
  return {
    changes: [{ type: 'put', record: { kind: 'config', value: config } }],
    outcome: { listing: { config, isStored: true }, changed },
  };
}

function contradictions({ strictAffinity, autoAllocateBlocks, maxBlocksPerHostCount }: IpamConfig): string[] {
  if (strictAffinity) return [];
  const claims =
    'nodes would neither claim blocks nor be restricted to their own; enable auto_allocate_blocks or strict_affinity';
  const cap = `a node with ${maxBlocksPerHostCount} blocks would borrow from other blocks, so the cap has no effect; set strict_affinity, or the cap to 0`;
  return [...(autoAllocateBlocks ? [] : [claims]), ...(maxBlocksPerHostCount > 0 ? [cap] : [])];
}
