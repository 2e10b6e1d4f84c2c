import { Failure, type Violation } from '@podwire/shared/failure/failure';

import { requireReadable } from '../records/absence.js';
import { DEFAULT_CONFIG, type IpamConfig } from '../records/config.js';
import { versionOf } from '../records/versions.js';
import type { Decision, View } from '../records/view.js';

/** The configuration that holds. */
export interface ConfigListing {
  readonly config: IpamConfig;
  /** False while none is stored and the defaults hold. */
  readonly isStored: boolean;
}

/** Reads without storing the defaults. @throws Failure STORE_CORRUPT */
export function getConfig(view: View): ConfigListing {
  requireReadable(view, { kind: 'config' });
  const stored = view.config();
  return { config: stored ?? DEFAULT_CONFIG, isStored: stored !== undefined };
}

/** Changes once the defaults are stored: from then on they stay even where another release has different ones. */
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

/** Why numbers are out of their range. */
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
  return [{ field, reason: `is ${value}; it has to be from 0 to ${largest}` }];
}

/**
 * Changes the configuration. Idempotent where no version is given. A stored one that contradicts itself, as another writer may have
 * left it, is refused until the change resolves that too.
 * @throws Failure STALE_VERSION, CONFIG_CONTRADICTION, STORE_CORRUPT
 */
export function updateConfig(view: View, { changes, resourceVersion }: ConfigUpdate): Decision<UpdatedConfig> {
  const before = getConfig(view);
  if (resourceVersion !== '' && resourceVersion !== configVersion(before)) {
    const text = `the configuration was changed since resource version ${resourceVersion}; read it again and decide anew`;
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
  const claims = 'nodes would neither claim blocks nor keep to their own; let them do one of the two';
  const cap = `a node with ${maxBlocksPerHostCount} blocks would go on in those of others, so the cap would mean nothing; set strict affinity, or the cap to 0`;
  return [...(autoAllocateBlocks ? [] : [claims]), ...(maxBlocksPerHostCount > 0 ? [cap] : [])];
}
