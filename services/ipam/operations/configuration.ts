import { getConfig, updateConfig, type ConfigListing, type ConfigUpdate } from '../configuration/configuration.js';
import { read, type IpamOptions } from '../engine/updates/operation.js';

const CONFIG_LANE = 'config';

/** Holds what applies to all allocations. */
export class Configuration {
  readonly #options: IpamOptions;

  constructor(options: IpamOptions) {
    this.#options = options;
  }

  get(signal: AbortSignal): Promise<ConfigListing> {
    return read(this.#options, getConfig, signal);
  }

  /** Idempotent where no version is given. @throws Failure STALE_VERSION, CONFIG_CONTRADICTION */
  async update(update: ConfigUpdate, signal: AbortSignal): Promise<ConfigListing> {
    const { updates, events } = this.#options;
    const { listing, changed } = await updates.update(CONFIG_LANE, (view) => updateConfig(view, update), { signal });
    if (changed) events.configChanged(listing.config);
    return listing;
  }

  /** Whether Calico's tools have locked the datastore, as far as this replica knows by now. */
  isLocked(): Promise<boolean> {
    return this.#options.updates.peek((view) => view.isLocked());
  }
}
