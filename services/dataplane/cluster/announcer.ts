import { formatAddress, type Address } from '@podwire/shared/net/address';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { NetworkLink, NodeNetwork, NodeNetworkState } from '../kernel/node-network-interface.js';
import type { ClusterEvents } from '../node/events.js';

export interface AnnouncerOptions {
  readonly network: Pick<NodeNetwork, 'announce'>;
  readonly clock: Clock;
  readonly events: Pick<ClusterEvents, 'announced' | 'notAnnounced'>;
}

/**
 * When an address is announced, in milliseconds: a link that has just come up may lose what is sent at once, as may the switch
 * that it is plugged into.
 */
const ANNOUNCED_AT_MS = [0, 1000, 3000];

/**
 * Tells the neighbours of this node when its address has moved to another MAC address, as with an interface that was made anew. They
 * would send to the earlier one for 15 to 45 s (`base_reachable_time`), and all of that time no pod of this node hears of them.
 */
export class Announcer {
  readonly #options: AnnouncerOptions;
  readonly #stop = new AbortController();
  /** Where each address was seen last, by the address. */
  readonly #places = new Map<string, string>();
  readonly #underWay = new Map<string, { readonly end: AbortController; readonly done: Promise<void> }>();

  constructor(options: AnnouncerOptions) {
    this.#options = options;
  }

  /**
   * Takes note of where the node's addresses are. One that is seen for the first time is announced to nobody, as it has been known
   * before, or to none.
   */
  look({ links, addresses }: NodeNetworkState, own: readonly Address[]): void {
    for (const address of own) {
      const on = addresses.find(
        (found) => found.lasting && found.address.family === address.family && found.address.value === address.value,
      );
      const link = links.find(({ index, up }) => up && index === on?.linkIndex);
      if (!link) continue;
      const text = formatAddress(address);
      const place = `${link.index} ${link.mac}`;
      const earlier = this.#places.get(text);
      this.#places.set(text, place);
      if (earlier !== undefined && earlier !== place) this.#begin(link, address);
    }
  }

  /** Nothing is sent any more. Idempotent. */
  async stop(): Promise<void> {
    this.#stop.abort();
    await Promise.all([...this.#underWay.values()].map(({ done }) => done));
  }

  #begin(link: NetworkLink, address: Address): void {
    const text = formatAddress(address);
    this.#underWay.get(text)?.end.abort();
    const end = new AbortController();
    const done = this.#announce(link, address, AbortSignal.any([end.signal, this.#stop.signal]));
    this.#underWay.set(text, { end, done });
  }

  async #announce(link: NetworkLink, address: Address, signal: AbortSignal): Promise<void> {
    const { network, clock, events } = this.#options;
    const text = formatAddress(address);
    const startMs = clock.nowMs();
    let isTold = false;
    let failure: unknown;
    for (const atMs of ANNOUNCED_AT_MS) {
      await clock.sleep(startMs + atMs - clock.nowMs(), signal);
      if (signal.aborted) return;
      try {
        await network.announce(link, address);
        if (!isTold) events.announced(text, link.name);
        isTold = true;
      } catch (error) {
        failure = error;
      }
    }
    if (!isTold) events.notAnnounced(text, failure);
  }
}
