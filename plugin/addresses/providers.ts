import type { AllocatedAddress } from '@podwire/shared/attachment/allocation';
import type { Attachment } from '@podwire/shared/attachment/attachment';

import type { AddressProvider, AddressRequest, IpamAddressesDeps, Mode, ProviderSource } from './address-provider.js';
import { ipamAddresses } from './ipam-addresses.js';
import { pluginName } from './ipam-plugin.js';
import { addressesWithoutIpam, pluginAddresses, type PluginAddressesDeps } from './plugin-addresses.js';
import type { ProviderHistory } from './provider-history.js';

interface ProvidersOptions extends IpamAddressesDeps, PluginAddressesDeps {
  readonly history: ProviderHistory;
}

/** An allocation to release. */
interface ProvidedAddresses extends ProviderSource {
  readonly attachment: Attachment;
  /** Held addresses; undefined if unknown. */
  readonly held: readonly AllocatedAddress[] | undefined;
}

/** The address providers of this node: podwire-ipam, and the IPAM plugins of the network configurations. */
export class Providers {
  readonly #options: ProvidersOptions;
  /** podwire-ipam. */
  readonly ipam: AddressProvider;

  constructor(options: ProvidersOptions) {
    this.#options = options;
    this.ipam = ipamAddresses(options);
  }

  of({ delegate }: ProviderSource): AddressProvider {
    return delegate ? pluginAddresses(delegate, this.#options) : this.ipam;
  }

  /** The provider of an ADD or CHECK, which may request addresses without IPAM. */
  ofRequest({ mode, podRequest }: Pick<AddressRequest, 'podRequest'> & { readonly mode: Mode }): AddressProvider {
    const own = this.of(mode);
    const hasAddresses = mode.kind !== 'ipam-only' && podRequest.addressesWithoutIpam.length > 0;
    return hasAddresses ? { ...own, ...addressesWithoutIpam(this.#options) } : own;
  }

  /** The providers that may hold the addresses of an attachment: its own, then providers of earlier configurations. */
  holding({ attachment, held, delegate }: ProvidedAddresses): readonly AddressProvider[] {
    const own = this.of({ delegate });
    if (held && held.length > 0) return [own];
    const former = this.#options.history.formerProviders(attachment, { delegate });
    return [own, ...(former.isIpam ? [this.ipam] : []), ...former.delegates.map((each) => this.of({ delegate: each }))];
  }

  /** Types of the providers that a pending release calls; `podwire-ipam` for Podwire's own. */
  typesOf(pending: ProvidedAddresses): readonly string[] {
    return [...new Set(this.holding(pending).map(({ type }) => type))];
  }

  /** Persists the provider of a network before it allocates any address. */
  record(network: string, mode: Mode): Promise<void> {
    return this.#options.history.record(network, mode);
  }

  /** Whether podwire-ipam allocated addresses in a network since boot. */
  hasIpamAllocated(network: string): boolean {
    return this.#options.history.hasIpamAllocated(network);
  }

  /** Names of the providers of a network that did not answer their last call. */
  unresponsive(network: string): ReadonlySet<string> {
    return new Set(this.#options.circuitBreaker.openFor(network).map((type) => pluginName({ type })));
  }
}
