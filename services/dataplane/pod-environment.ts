import { Failure } from '@podwire/shared/failure/failure';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { Config } from './config.js';
import { TunnelGuard } from './filters/tunnel-guard.js';
import { Masquerader } from './kernel/nft/masquerader.js';
import type { Nft } from './kernel/nft/nft.js';
import { SourceGuard } from './kernel/nft/source-guard.js';
import type { PodGuard } from './kernel/pod-guard.js';
import type { LinkSource } from './node/links.js';
import { PodMtu } from './node/pod-mtu.js';
import { keepFollowingAdvertisements } from './node/router-advertisements.js';
import type { Events } from './pods/events.js';
import type { AttachmentRecord } from './pods/record.js';
import type { Condition } from './routes/wanted.js';
import type { TellingFollower } from './startup.js';

export interface PodEnvironmentOptions {
  readonly config: Config;
  /** Closed in the end. */
  readonly links: LinkSource;
  readonly nft: Nft;
  readonly events: Events;
  readonly clock: Clock;
  /** From 0 (included) to 1 (excluded). */
  readonly random: () => number;
}

/** What the node does for all of its pods: the MTU they get, the addresses they may send from, and the one they have outside. */
export class PodEnvironment {
  readonly #options: PodEnvironmentOptions;
  readonly #guard: SourceGuard;
  readonly #mtu: PodMtu;
  readonly #tunnelGuard: TunnelGuard;
  readonly #masquerader: Masquerader;

  constructor(options: PodEnvironmentOptions) {
    const { config, links, nft, events, clock, random } = options;
    this.#options = options;
    this.#guard = new SourceGuard({ nft, events, clock, random });
    this.#tunnelGuard = new TunnelGuard({ nft, events, clock, random });
    const settings = { exclude: config.natExclude, interfaces: config.natInterfaces, ports: config.natPorts };
    this.#masquerader = new Masquerader({ nft, events, clock, random, settings });
    const [fixedBytes, patterns] = [config.mtuBytes, config.mtuInterfaces];
    this.#mtu = new PodMtu({ links, clock, random, events, fixedBytes, patterns });
  }

  get guard(): PodGuard {
    return this.#guard;
  }

  /** MTU of pods that ask for none, in bytes. */
  get mtuBytes(): number {
    return this.#mtu.mtuBytes;
  }

  /** What follows the cluster's pools and nodes. A node's packets are let in before there is a route to it. */
  get followers(): readonly TellingFollower[] {
    return [this.#tunnelGuard, this.#masquerader, this.#mtu];
  }

  /**
   * Begins, before pods are wired: looks at the node's links, and guards the pods that are there. What fails is told and tried again.
   * @param records - of the pods that are there, and of the dead
   */
  async start(records: readonly AttachmentRecord[]): Promise<void> {
    const { events, links, config } = this.#options;
    // Of two with one interface, the one that was wired last has it.
    const alive = records.filter(({ state }) => state !== 'dead').toSorted((a, b) => a.createdAtMs - b.createdAtMs);
    const prefixes = alive.map(({ network }) => [network.hostInterfaceName, network.sourcePrefixes] as const);
    // The guard tells of its failures; pods that need it wait for it.
    this.#guard.start(new Map(prefixes)).catch(() => undefined);
    const follow = alive.filter(({ network }) => network.mtuBytes === undefined);
    await this.#mtu.start(follow.map(({ network }) => network.hostInterfaceName));
    try {
      // Nothing of the service has switched forwarding on yet.
      events.advertisementsKept(await keepFollowingAdvertisements(links, config.mtuInterfaces));
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      events.advertisementsUnknown(error);
    }
  }

  /** Tells from here on when pods that ask for no MTU are to have another. The listener must not throw. */
  onMtuChange(listener: () => void): void {
    this.#mtu.onChange(listener);
  }

  conditions(): readonly Condition[] {
    return this.#guard.conditions();
  }

  /** Leaves everything in force. The followers are stopped by those who tell them. */
  async stop(): Promise<void> {
    await this.#guard.stop();
    await Promise.all(this.followers.map((follower) => follower.stop()));
    await this.#options.links.close();
  }
}
