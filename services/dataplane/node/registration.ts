import { NodeServiceService, type RegisterNodeRequest } from '@podwire/proto/podwire/ipam/v1/node';
import { Failure } from '@podwire/shared/failure/failure';
import { failureOfSignal } from '@podwire/shared/failure/signal';
import { FAMILIES, formatAddress, type Address, type Family } from '@podwire/shared/net/address';
import { formatPrefix, prefixesOverlap, splitCidr } from '@podwire/shared/net/prefix';
import { exponentialBackoff, WorkQueue, type NextRun } from '@podwire/shared/reconcile/work-queue';
import type { BackoffBounds } from '@podwire/shared/reconcile/schedule';
import type { Peer } from '@podwire/shared/rpc/client';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { ClusterNode, IpamFollower, IpamPool, IpamView } from '../cluster/cluster.js';
import { formatList, type Condition } from '../conditions/conditions.js';
import {
  addressesOf,
  alternatives,
  chooseAddress,
  describeMethod,
  isNodeInterface,
  type AddressMethod,
  type ChosenAddress,
} from './address-method.js';
import type { ClusterEvents } from './events.js';
import type { NetworkLink, NodeNetwork, NodeNetworkState } from './links.js';

/** A node's addresses in IPAM: each with prefix length, or empty. */
export interface RegisteredAddresses {
  readonly ipv4Address: string;
  readonly ipv6Address: string;
}

/** Machine that has the node's name: only this one may register its addresses. */
export interface NodeNameClaim {
  /** Why this machine has not got the name, while another one has it. */
  readonly refusal: Failure | undefined;
  /**
   * Makes this machine the owner of the name, unless another one has it and runs.
   * @param address - of this machine, for messages
   * @returns false if IPAM has no such node yet, so that no machine can have its name
   * @throws Failure NODE_NAME_TAKEN, or of the call
   */
  claim(address: string, signal: AbortSignal): Promise<boolean>;
}

/** Method of finding the node's address of each family. */
type AddressMethods = Readonly<Record<Family, AddressMethod>>;

export interface RegistrationOptions {
  /** Name of this node. */
  readonly self: string;
  readonly methods: AddressMethods;
  readonly network: NodeNetwork;
  readonly name: NodeNameClaim;
  readonly ipam: Pick<Peer, 'call' | 'description'>;
  readonly events: ClusterEvents;
  readonly clock: Clock;
  /** Uniform in [0, 1). */
  readonly random: () => number;
  /** Called with each reading. Must not throw. */
  readonly onRead?: (state: NodeNetworkState) => void;
  /** Polling interval for the node's addresses, in milliseconds. Default: 30,000. */
  readonly pollMs?: number;
}

const CALL_TIMEOUT_MS = 10_000;
const BACKOFF: BackoffBounds = { baseMs: 250, maxMs: 30_000 };

/** Changes of addresses that arrive within this time cause one reading. */
const DEBOUNCE_MS = 100;

/** Time until other addresses in IPAM are replaced, in milliseconds. */
const REPLACED_DELAY_MS = 1000;

/** Limits of RegisterNode. */
const MAX_INTERFACES_COUNT = 64;
const MAX_ADDRESSES_COUNT = 64;

/**
 * Keeps this node registered in IPAM: registers it at the start, when its addresses change, and when its registration was deleted or
 * replaced.
 * Retries until that succeeds. A node without any address keeps its last registration, and a machine whose node's name another one
 * has registers nothing: it would cut the other one off. Notifies neighbours when an address moved to another MAC address.
 */
export class Registration implements IpamFollower {
  readonly #options: Required<RegistrationOptions>;
  readonly #queue: WorkQueue<'registration' | 'watch'>;
  readonly #announcer: AddressAnnouncer;
  /** Cancels the reading that follows a change of addresses. */
  #cancelReading: (() => void) | undefined;
  /** The last registration; undefined: none, or IPAM has lost it. */
  #registered: RegisterNodeRequest | undefined;
  /** Whether IPAM has other addresses than the last registration: of another machine, whose call was late. */
  #isReplaced = false;
  /** The addresses of the last registration, of this process or an earlier one; undefined before the first view. */
  #known: Readonly<Record<Family, Address | undefined>> | undefined;
  #isAddressMissing = false;
  /** Why IPAM refuses this node's addresses: another node or a pod has one. */
  #refusal: Failure | undefined;
  #poolConditions: readonly Condition[] = [];
  /** Alternatives to the chosen address, by family. */
  #ambiguities: readonly Condition[] = [];

  constructor(options: RegistrationOptions) {
    this.#options = { pollMs: 30_000, onRead: () => undefined, ...options };
    const { network, clock, random, events } = this.#options;
    this.#announcer = new AddressAnnouncer({ network, clock, events });
    this.#queue = new WorkQueue({
      reconcile: (key, signal) => (key === 'watch' ? this.#watchAddresses(signal) : this.#register(signal)),
      retryInMs: exponentialBackoff(BACKOFF, random),
      resetAfterMs: BACKOFF.maxMs,
      onFailure: (error, retryInMs, key) => {
        if (key === 'registration') {
          events.retried('register-node', error, retryInMs);
          return;
        }
        events.kernelWatchFailed('addresses', error, retryInMs);
        this.#queue.request('registration');
      },
      clock,
    });
  }

  /** Starts; call once. The first reading happens once the watch is open or has failed. */
  start(): void {
    this.#queue.request('watch');
    // A watch that hangs while it opens must not prevent the registration.
    this.#queue.request('registration', this.#options.pollMs);
  }

  follow({
    cluster,
    self,
  }: {
    readonly self: string;
    readonly cluster: Pick<IpamView['cluster'], 'nodes' | 'pools'>;
  }): void {
    const node = cluster.nodes.get(self);
    this.#poolConditions = node ? poolConditions(node, cluster.pools.values()) : [];
    if (!this.#known) this.#queue.request('registration');
    this.#known ??= { 4: node?.ipv4?.address, 6: node?.ipv6?.address };
    if (!this.#registered) return;
    if (node && hasAddresses(node, this.#registered)) {
      this.#isReplaced = false;
      return;
    }
    if (node) this.#isReplaced = true;
    else this.#registered = undefined;
    // The view may be older than the last registration.
    this.#queue.request('registration', node ? REPLACED_DELAY_MS : 0);
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
      const message = `no interface of node ${self} has an address that other nodes can reach (${methodTexts}); assign one, or set PODWIRE_NODE_IPV4 or _IPV6`;
      return [{ reason: 'NodeAddressMissing', message }];
    }
    const refusal = this.#refusal && { reason: 'NodeAddressInUse', message: this.#refusal.message };
    return [...(refusal ? [refusal] : []), ...this.#poolConditions, ...this.#ambiguities];
  }

  async stop(): Promise<void> {
    this.#cancelReading?.();
    await this.#queue.stop();
    await this.#announcer.stop();
  }

  /** Watches the node's addresses, as long as the kernel announces them. */
  async #watchAddresses(signal: AbortSignal): Promise<undefined> {
    const { network, methods } = this.#options;
    const targets = Object.values(methods).flatMap((method) => (method.type === 'can-reach' ? method.address : []));
    let end: (failure: unknown) => void = () => undefined;
    const over = new Promise<never>((_, reject) => (end = reject));
    // It may end before it is awaited.
    over.catch(() => undefined);
    signal.addEventListener('abort', () => end(failureOfSignal(signal)));
    const unwatch = await network.watch({ changed: () => this.#readSoon(), ended: end }, targets);
    // Earlier changes were not announced.
    this.#queue.request('registration');
    try {
      return await over;
    } finally {
      unwatch();
    }
  }

  /** Restarts, because a call in flight may use an interface that is gone. */
  #readSoon(): void {
    this.#cancelReading ??= this.#options.clock.after(DEBOUNCE_MS, () => {
      this.#cancelReading = undefined;
      this.#queue.restart('registration');
    });
  }

  async #register(signal: AbortSignal): Promise<NextRun> {
    const { network, name, ipam, events, clock, pollMs, onRead, methods } = this.#options;
    const next = { inMs: pollMs };
    const state = await network.read();
    onRead(state);
    const isAmbiguous = FAMILIES.some((family) => alternatives(methods[family], family, state).length > 1);
    // The first view has the address that an earlier process registered, and requests this again.
    if (isAmbiguous && !this.#known) return next;
    this.#ambiguities = FAMILIES.flatMap((family) => this.#ambiguity(family, state) ?? []);
    const request = this.#requestOf(state);
    this.#announcer.observe(
      state,
      FAMILIES.flatMap((family) => this.#choose(family, state)?.address ?? []),
    );
    this.#isAddressMissing = request.ipv4Address === '' && request.ipv6Address === '';
    // The other machine registers its own addresses.
    if (name.refusal) this.#registered = undefined;
    const isSame = isSameRequest(request, this.#registered);
    if (this.#isAddressMissing || (isSame && !this.#isReplaced)) return next;
    const [address = ''] = (request.ipv4Address || request.ipv6Address).split('/');
    const isOwner = await name.claim(address, signal);
    this.#isReplaced = false;
    const limits = { deadlineMs: clock.nowMs() + CALL_TIMEOUT_MS, signal };
    const { created } = await ipam.call(NodeServiceService.registerNode, request, limits).catch((error: unknown) => {
      this.#refusal = error instanceof Failure && error.code === 'ADDRESS_IN_USE' ? error : undefined;
      // A refused node has lost its former addresses in IPAM.
      this.#isReplaced = true;
      throw error;
    });
    this.#refusal = undefined;
    // Another machine may have registered its addresses meanwhile: the addresses of the machine that gets the name count.
    if (!isOwner) return { inMs: BACKOFF.baseMs };
    this.#registered = request;
    this.#known = { 4: addressOf(request.ipv4Address), 6: addressOf(request.ipv6Address) };
    if (!isSame) events.registered(request, created);
    return next;
  }

  #choose(family: Family, state: NodeNetworkState): ChosenAddress | undefined {
    return chooseAddress(this.#options.methods[family], family, state, this.#known?.[family]);
  }

  #ambiguity(family: Family, state: NodeNetworkState): Condition | undefined {
    const { self, methods } = this.#options;
    const chosen = this.#choose(family, state);
    const candidates = alternatives(methods[family], family, state).filter(
      ({ address }) => address.value !== chosen?.address.value,
    );
    if (!chosen || candidates.length === 0) return undefined;
    const message =
      `node ${self} uses ${formatCidr(chosen)}, and ${describeMethod(methods[family])} could choose ` +
      `${formatList(candidates.map(formatCidr))} too; set PODWIRE_NODE_IPV${family} to one of them`;
    return { reason: 'NodeAddressAmbiguous', message };
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
    };
  }
}

function addressOf(cidr: string): Address | undefined {
  return splitCidr(cidr)?.address;
}

function formatCidr({
  address,
  length,
}: ChosenAddress | { readonly address: Address; readonly length: number }): string {
  return `${formatAddress(address)}/${length}`;
}

function hasAddresses({ ipv4, ipv6 }: ClusterNode, { ipv4Address, ipv6Address }: RegisteredAddresses): boolean {
  const isSame = (node: ClusterNode['ipv4'], cidr: string) =>
    cidr === (node ? formatCidr({ address: node.address, length: node.subnet.length }) : '');
  return isSame(ipv4, ipv4Address) && isSame(ipv6, ipv6Address);
}

/** A node inside a pool: hosts of its own network, or the node itself, have addresses that pods may get. */
function poolConditions({ name, ipv4, ipv6 }: ClusterNode, pools: Iterable<IpamPool>): Condition[] {
  return [...pools].flatMap((pool) => {
    const inside = [ipv4, ipv6].find((own) => own && prefixesOverlap(own.subnet, pool.cidr));
    if (!inside || !pool.isActive || pool.loadBalancerOnly) return [];
    const message =
      `pool ${pool.name} ${formatPrefix(pool.cidr)} overlaps the network of node ${name}, ` +
      `${formatPrefix(inside.subnet)}: pods may get addresses of other hosts there; disable the pool and create one of another range`;
    return [{ reason: 'NodeInPool', message }];
  });
}

function isSameRequest(a: RegisterNodeRequest, b: RegisterNodeRequest | undefined): boolean {
  return JSON.stringify(a) === JSON.stringify(b);
}

interface AddressAnnouncerOptions {
  readonly network: Pick<NodeNetwork, 'announce'>;
  readonly clock: Clock;
  readonly events: Pick<ClusterEvents, 'announced' | 'notAnnounced'>;
}

/**
 * Pauses before the second and the third announcement of an address, in milliseconds: a link that has just come up, or its switch
 * port, may lose packets.
 */
const ANNOUNCE_PAUSES_MS = [1000, 2000];

/**
 * Notifies this node's neighbours when its address moved to another MAC address, as with a recreated interface. Otherwise they
 * send to the earlier one for 15 to 45 s (`base_reachable_time`), and this node's pods are unreachable from them.
 */
export class AddressAnnouncer {
  readonly #options: AddressAnnouncerOptions;
  readonly #queue: WorkQueue<string>;
  /** Last known link and MAC address of each address. */
  readonly #locations = new Map<string, string>();
  /** The announcements in progress, by address. */
  readonly #announcements = new Map<string, Announcement>();

  constructor(options: AddressAnnouncerOptions) {
    this.#options = options;
    this.#queue = new WorkQueue({
      reconcile: (text) => this.#announce(text),
      retryInMs: () => 0,
      onFailure: () => undefined,
      clock: options.clock,
    });
  }

  /**
   * Records the links of the node's addresses, and announces moved ones. A first observation is not announced: neighbours
   * have the right entry, or none.
   */
  observe({ links, addresses }: NodeNetworkState, own: readonly Address[]): void {
    for (const address of own) {
      const on = addresses.find(
        (found) => found.isUsable && found.address.family === address.family && found.address.value === address.value,
      );
      const link = links.find(({ index, up }) => up && index === on?.linkIndex);
      if (!link) continue;
      const text = formatAddress(address);
      const location = `${link.index} ${link.mac}`;
      const earlier = this.#locations.get(text);
      this.#locations.set(text, location);
      if (earlier === undefined || earlier === location) continue;
      this.#announcements.set(text, { link, address, count: 0, isAnnounced: false, failure: undefined });
      this.#queue.restart(text);
    }
  }

  /** Ends the announcements. Idempotent. */
  stop(): Promise<void> {
    return this.#queue.stop();
  }

  /** One announcement of an address. */
  async #announce(text: string): Promise<NextRun | undefined> {
    const { network, events } = this.#options;
    const announcement = this.#announcements.get(text);
    if (!announcement) return undefined;
    const { link, address } = announcement;
    try {
      await network.announce(link, address);
      if (!announcement.isAnnounced) events.announced(text, link.name);
      announcement.isAnnounced = true;
    } catch (error) {
      announcement.failure = error;
    }
    const pauseMs = ANNOUNCE_PAUSES_MS[announcement.count++];
    if (pauseMs !== undefined) return { inMs: pauseMs };
    if (!announcement.isAnnounced) events.notAnnounced(text, announcement.failure);
    return undefined;
  }
}

interface Announcement {
  readonly link: NetworkLink;
  readonly address: Address;
  /** Earlier announcements. */
  count: number;
  isAnnounced: boolean;
  /** Failure of the last failed attempt. */
  failure: unknown;
}
