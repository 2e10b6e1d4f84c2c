import { NodeServiceService, TunnelKind, type RegisterNodeRequest } from '@podwire/proto/podwire/ipam/v1/node';
import { formatAddress, type Address, type Family } from '@podwire/shared/net/address';
import { backoffMs, type BackoffBounds } from '@podwire/shared/retry/schedule';
import type { Peer } from '@podwire/shared/rpc/client';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { ClusterNode, IpamFollower, IpamView } from '../cluster/cluster.js';
import type { Condition } from '../conditions/conditions.js';
import { tunnelMac } from '../routes/tunnels.js';
import {
  addressesOf,
  chooseAddress,
  describeMethod,
  isNodeInterface,
  type AddressMethod,
  type ChosenAddress,
} from './address-method.js';
import type { ClusterEvents } from './events.js';
import type { NetworkLink, NodeNetwork, NodeNetworkState } from './links.js';
import { RetryingTask } from './retrying-task.js';

/** A node's addresses in IPAM: each with prefix length, or empty. */
export interface RegisteredAddresses {
  readonly ipv4Address: string;
  readonly ipv6Address: string;
}

/** Method of finding the node's address of each family. */
type AddressMethods = Readonly<Record<Family, AddressMethod>>;

export interface RegistrationOptions {
  /** Name of this node. */
  readonly self: string;
  readonly methods: AddressMethods;
  readonly network: NodeNetwork;
  readonly ipam: Pick<Peer, 'call' | 'description'>;
  readonly events: ClusterEvents;
  readonly clock: Clock;
  /** Uniform in [0, 1). */
  readonly random: () => number;
  /** Polling interval for the node's addresses, in milliseconds. Default: 30,000. */
  readonly pollMs?: number;
}

const CALL_TIMEOUT_MS = 10_000;
const BACKOFF: BackoffBounds = { baseMs: 250, maxMs: 30_000 };

/** Changes of addresses that arrive within this time cause one reading. */
const DEBOUNCE_MS = 100;

/** Limits of RegisterNode. */
const MAX_INTERFACES_COUNT = 64;
const MAX_ADDRESSES_COUNT = 64;

const FAMILIES: readonly Family[] = [4, 6];

/**
 * Keeps this node registered in IPAM: registers it at the start, when its addresses change, and when its registration was deleted.
 * Retries until that succeeds. A node without any address keeps its last registration. Notifies neighbours when an address moved
 * to another MAC address.
 */
export class Registration implements IpamFollower {
  readonly #options: Required<RegistrationOptions>;
  readonly #stopping = new AbortController();
  readonly #task: RetryingTask;
  readonly #announcer: AddressAnnouncer;
  #polling: Promise<unknown> | undefined;
  /** Ends the pause before the next reading of the addresses. */
  #changed = new AbortController();
  /** The last registration; undefined: none, or IPAM has lost it. */
  #registered: RegisterNodeRequest | undefined;
  #isAddressMissing = false;
  #ipamNode: ClusterNode | undefined;

  constructor(options: RegistrationOptions) {
    this.#options = { pollMs: 30_000, ...options };
    const { network, clock, random, events } = this.#options;
    this.#announcer = new AddressAnnouncer({ network, clock, events });
    this.#task = new RetryingTask({
      task: (signal) => this.#register(signal),
      onFailure: (error, retryInMs) => events.retried('register this node', error, retryInMs),
      backoff: BACKOFF,
      clock,
      random,
    });
  }

  /** Starts; call once. */
  start(): void {
    this.#polling ??= Promise.all([this.#watchAddresses(), this.#poll()]);
  }

  follow({ cluster, self }: IpamView): void {
    this.#ipamNode = cluster.nodes.get(self);
    if (this.#ipamNode || !this.#registered) return;
    this.#registered = undefined;
    this.#task.request();
  }

  /** The last registration; undefined: none yet, or IPAM has lost it. */
  get registered(): RegisteredAddresses | undefined {
    return this.#registered;
  }

  /** Conditions of the registration. */
  conditions(): readonly Condition[] {
    const { self, methods } = this.#options;
    if (this.#isAddressMissing) {
      const methodTexts = FAMILIES.map((family) => `IPv${family}: ${describeMethod(methods[family])}`).join(', ');
      const message = `no interface of node ${self} has an address that other nodes can reach (${methodTexts}); assign one, or set PODWIRE_DATAPLANE_NODE_IPV4 or _IPV6`;
      return [{ reason: 'NodeAddressMissing', message }];
    }
    const other = this.#conflictingAddress();
    if (other === undefined) return [];
    const message = `node ${self} is registered in IPAM with the address ${other}, which is not this node's; give each node its own name (PODWIRE_DATAPLANE_NODE_NAME)`;
    return [{ reason: 'NodeNameTaken', message }];
  }

  async stop(): Promise<void> {
    this.#stopping.abort();
    await Promise.all([this.#task.stop(), this.#polling]);
    await this.#announcer.stop();
  }

  /** The address that another process registered under this node's name. */
  #conflictingAddress(): string | undefined {
    if (!this.#ipamNode || !this.#registered) return undefined;
    const { ipv4, ipv6 } = this.#ipamNode;
    const known = [ipv4, ipv6].map((one) => (one ? formatAddress(one.address) : ''));
    const own = [this.#registered.ipv4Address, this.#registered.ipv6Address].map((text) => text.split('/')[0]);
    return known.find((text, at) => text !== own[at]);
  }

  /** Requests the first reading once the watch is open or has failed. */
  #watchAddresses(): Promise<void> {
    const { network, methods, clock, random, events } = this.#options;
    const targets = Object.values(methods).flatMap((method) => (method.type === 'can-reach' ? method.address : []));
    const changed = (): void => this.#changed.abort();
    const opened = (): void => this.#task.request();
    const lost = (error: unknown, retryInMs: number): void => {
      events.kernelWatchFailed('addresses', error, retryInMs);
      this.#task.request();
    };
    return watchAddresses({ network, targets, clock, random, changed, opened, lost }, this.#stopping.signal);
  }

  async #poll(): Promise<void> {
    const { clock, pollMs } = this.#options;
    const { signal } = this.#stopping;
    while (!signal.aborted) {
      const woken = await clock.sleep(pollMs, AbortSignal.any([signal, this.#changed.signal]));
      if (woken === 'aborted') await clock.sleep(DEBOUNCE_MS, signal);
      this.#changed = new AbortController();
      // A call in flight may use an interface that is gone.
      if (woken === 'aborted') this.#task.restart();
      else this.#task.request();
    }
  }

  async #register(signal: AbortSignal): Promise<void> {
    const { network, ipam, events, clock } = this.#options;
    const state = await network.read();
    const request = this.#requestOf(state);
    this.#announcer.observe(
      state,
      FAMILIES.flatMap((family) => this.#choose(family, state)?.address ?? []),
    );
    this.#isAddressMissing = request.ipv4Address === '' && request.ipv6Address === '';
    if (this.#isAddressMissing || isSameRequest(request, this.#registered)) return;
    const limits = { deadlineMs: clock.nowMs() + CALL_TIMEOUT_MS, signal };
    const { created } = await ipam.call(NodeServiceService.registerNode, request, limits);
    this.#registered = request;
    events.registered(request, created);
  }

  #choose(family: Family, state: NodeNetworkState): ChosenAddress | undefined {
    return chooseAddress(this.#options.methods[family], family, state);
  }

  #requestOf(state: NodeNetworkState): RegisterNodeRequest {
    const { self } = this.#options;
    const [ipv4, ipv6] = FAMILIES.map((family) => this.#choose(family, state));
    const interfaces = state.links
      .filter((link) => link.up && isNodeInterface(link))
      .map((link) => ({
        name: link.name,
        addresses: FAMILIES.flatMap((family) => addressesOf(link, family, state)).map(formatCidr),
      }))
      .filter(({ addresses }) => addresses.length > 0)
      .toSorted((a, b) => (a.name < b.name ? -1 : 1));
    return {
      name: self,
      ipv4Address: ipv4 ? formatCidr(ipv4) : '',
      ipv6Address: ipv6 ? formatCidr(ipv6) : '',
      labels: {},
      interfaces: interfaces
        .slice(0, MAX_INTERFACES_COUNT)
        .map(({ name, addresses }) => ({ name, addresses: addresses.slice(0, MAX_ADDRESSES_COUNT) })),
      tunnelMacs: [
        { kind: TunnelKind.TUNNEL_KIND_VXLAN_IPV4, macAddress: tunnelMac(self, 4) },
        { kind: TunnelKind.TUNNEL_KIND_VXLAN_IPV6, macAddress: tunnelMac(self, 6) },
      ],
    };
  }
}

function formatCidr({
  address,
  length,
}: ChosenAddress | { readonly address: Address; readonly length: number }): string {
  return `${formatAddress(address)}/${length}`;
}

function isSameRequest(a: RegisterNodeRequest, b: RegisterNodeRequest | undefined): boolean {
  return JSON.stringify(a) === JSON.stringify(b);
}

interface AddressWatchOptions {
  readonly network: Pick<NodeNetwork, 'watch'>;
  /** Destinations whose routes matter. */
  readonly targets: readonly Address[];
  readonly clock: Clock;
  /** Uniform in [0, 1). */
  readonly random: () => number;
  readonly changed: () => void;
  /** The watch is open; earlier changes were not announced. */
  readonly opened: () => void;
  /** The watch failed, and is retried. None of the functions may throw. */
  readonly lost: (error: unknown, retryInMs: number) => void;
}

const ADDRESS_BACKOFF: BackoffBounds = { baseMs: 250, maxMs: 30_000 };

/** Watches the node's addresses until the signal fires; reopens a watch that fails or is refused. Never rejects. */
async function watchAddresses(options: AddressWatchOptions, signal: AbortSignal): Promise<void> {
  const { clock, random, lost } = options;
  for (let attempt = 0; ; attempt++) {
    const sinceMs = clock.nowMs();
    const failure = await watchOnce(options, signal);
    if (signal.aborted) return;
    // A watch that fails right after opening counts as refused, for the back-off.
    if (clock.nowMs() - sinceMs >= ADDRESS_BACKOFF.maxMs) attempt = 0;
    const retryInMs = backoffMs(attempt, ADDRESS_BACKOFF, random());
    lost(failure, retryInMs);
    await clock.sleep(retryInMs, signal);
  }
}

/** @returns the failure that ended it */
async function watchOnce(
  { network, targets, changed, opened }: AddressWatchOptions,
  signal: AbortSignal,
): Promise<unknown> {
  let end: (failure: unknown) => void = () => undefined;
  const over = new Promise<unknown>((resolve) => (end = resolve));
  const stop = (): void => end(undefined);
  signal.addEventListener('abort', stop, { once: true });
  try {
    const unwatch = await network.watch({ changed, ended: end }, targets);
    if (signal.aborted) stop();
    else opened();
    const failure = await over;
    unwatch();
    return failure;
  } catch (error) {
    return error;
  } finally {
    signal.removeEventListener('abort', stop);
  }
}

interface AddressAnnouncerOptions {
  readonly network: Pick<NodeNetwork, 'announce'>;
  readonly clock: Clock;
  readonly events: Pick<ClusterEvents, 'announced' | 'notAnnounced'>;
}

/**
 * Times of the announcements of an address, in milliseconds: a link that has just come up, or its switch port, may lose packets.
 */
const ANNOUNCE_TIMES_MS = [0, 1000, 3000];

/**
 * Notifies this node's neighbours when its address moved to another MAC address, as with a recreated interface. Otherwise they
 * send to the earlier one for 15 to 45 s (`base_reachable_time`), and this node's pods are unreachable from them.
 */
export class AddressAnnouncer {
  readonly #options: AddressAnnouncerOptions;
  readonly #stopping = new AbortController();
  /** Last known link and MAC address of each address. */
  readonly #locations = new Map<string, string>();
  readonly #inFlight = new Map<string, { readonly end: AbortController; readonly done: Promise<void> }>();

  constructor(options: AddressAnnouncerOptions) {
    this.#options = options;
  }

  /**
   * Records the links of the node's addresses, and announces those that moved. A first observation is not announced: neighbours
   * have the right entry, or none.
   */
  observe({ links, addresses }: NodeNetworkState, own: readonly Address[]): void {
    for (const address of own) {
      const on = addresses.find(
        (found) =>
          found.isPermanent && found.address.family === address.family && found.address.value === address.value,
      );
      const link = links.find(({ index, up }) => up && index === on?.linkIndex);
      if (!link) continue;
      const text = formatAddress(address);
      const location = `${link.index} ${link.mac}`;
      const earlier = this.#locations.get(text);
      this.#locations.set(text, location);
      if (earlier !== undefined && earlier !== location) this.#begin(link, address);
    }
  }

  /** Ends the announcements. Idempotent. */
  async stop(): Promise<void> {
    this.#stopping.abort();
    await Promise.all([...this.#inFlight.values()].map(({ done }) => done));
  }

  #begin(link: NetworkLink, address: Address): void {
    const text = formatAddress(address);
    this.#inFlight.get(text)?.end.abort();
    const end = new AbortController();
    const done = this.#announce(link, address, AbortSignal.any([end.signal, this.#stopping.signal]));
    this.#inFlight.set(text, { end, done });
  }

  async #announce(link: NetworkLink, address: Address, signal: AbortSignal): Promise<void> {
    const { network, clock, events } = this.#options;
    const text = formatAddress(address);
    const startMs = clock.nowMs();
    let isAnnounced = false;
    let failure: unknown;
    for (const atMs of ANNOUNCE_TIMES_MS) {
      await clock.sleep(startMs + atMs - clock.nowMs(), signal);
      if (signal.aborted) return;
      try {
        await network.announce(link, address);
        if (!isAnnounced) events.announced(text, link.name);
        isAnnounced = true;
      } catch (error) {
        failure = error;
      }
    }
    if (!isAnnounced) events.notAnnounced(text, failure);
  }
}
