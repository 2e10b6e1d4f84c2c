import { NodeServiceService, TunnelKind, type RegisterNodeRequest } from '@podwire/proto/podwire/ipam/v1/node';
import { formatAddress, type Address, type Family } from '@podwire/shared/net/address';
import type { BackoffBounds } from '@podwire/shared/retry/schedule';
import type { Peer } from '@podwire/shared/rpc/client';
import type { Clock } from '@podwire/shared/runtime/clock';

import { watchAddresses } from '../cluster/address-watch.js';
import { Announcer } from '../cluster/announcer.js';
import { addressesOf, chooseAddress, isNodeInterface, type ChosenAddress } from '../cluster/choose-address.js';
import type { ClusterNode } from '../cluster/cluster.js';
import type { KnownFollower, KnownView } from '../cluster/known-cluster.js';
import type { NodeNetwork, NodeNetworkState } from '../kernel/node-network-interface.js';
import type { Condition } from '../routes/wanted.js';
import { tunnelMac } from '../routing/tunnel-mac.js';
import { describeMethod, type AddressMethod } from './address-method.js';
import type { ClusterEvents } from './events.js';
import { Repeated } from './retrying-task.js';

/** A node's addresses in IPAM: each with the length of its subnet, or empty. */
export interface RegisteredAddresses {
  readonly ipv4Address: string;
  readonly ipv6Address: string;
}

/** How the node's address of each family is found. */
type AddressMethods = Readonly<Record<Family, AddressMethod>>;

export interface RegistrationOptions {
  /** Name of this node. */
  readonly self: string;
  readonly methods: AddressMethods;
  readonly network: NodeNetwork;
  readonly ipam: Pick<Peer, 'call' | 'description'>;
  readonly events: ClusterEvents;
  readonly clock: Clock;
  /** A number from 0 (included) to 1 (excluded). */
  readonly random: () => number;
  /** How often the node's addresses are looked at without being told of a change, in milliseconds. Default: 30,000. */
  readonly pollMs?: number;
}

const CALL_TIMEOUT_MS = 10_000;
const BACKOFF: BackoffBounds = { baseMs: 250, maxMs: 30_000 };

/** Changes of addresses come in swarms. */
const GATHER_MS = 100;

/** What RegisterNode takes. */
const MAX_INTERFACES_COUNT = 64;
const MAX_ADDRESSES_COUNT = 64;

const FAMILIES: readonly Family[] = [4, 6];

/**
 * Keeps this node registered in IPAM, as it is: at the start, when its addresses change, and when somebody deleted it although it
 * runs. Repeated until it succeeds. A node without any address is left as it was registered last. Neighbours are told of an address
 * that is at another MAC address than before.
 */
export class Registration implements KnownFollower {
  readonly #options: Required<RegistrationOptions>;
  readonly #stop = new AbortController();
  readonly #work: Repeated;
  readonly #announcer: Announcer;
  #polling: Promise<unknown> | undefined;
  /** Ends the pause before the addresses are next looked at. */
  #changed = new AbortController();
  /** What IPAM was told last; undefined: nothing, or it has forgotten. */
  #registered: RegisterNodeRequest | undefined;
  #isAddressMissing = false;
  #known: ClusterNode | undefined;

  constructor(options: RegistrationOptions) {
    this.#options = { pollMs: 30_000, ...options };
    const { network, clock, random, events } = this.#options;
    this.#announcer = new Announcer({ network, clock, events });
    this.#work = new Repeated({
      task: (signal) => this.#register(signal),
      failed: (error, retryInMs) => events.retried('register this node', error, retryInMs),
      backoff: BACKOFF,
      clock,
      random,
    });
  }

  /** Begins; once. */
  start(): void {
    this.#polling ??= Promise.all([this.#listen(), this.#poll()]);
  }

  follow({ cluster, self }: KnownView): void {
    this.#known = cluster.nodes.get(self);
    if (this.#known || !this.#registered) return;
    this.#registered = undefined;
    this.#work.ask();
  }

  /** What IPAM was told last; undefined: nothing yet, or it has forgotten. */
  get registered(): RegisteredAddresses | undefined {
    return this.#registered;
  }

  /** What an operator should know of it. */
  conditions(): readonly Condition[] {
    const { self, methods } = this.#options;
    if (this.#isAddressMissing) {
      const ways = FAMILIES.map((family) => `IPv${family}: ${describeMethod(methods[family])}`).join(', ');
      const message = `no interface of node ${self} has an address that others can reach (${ways}): give it one, or set PODWIRE_DATAPLANE_NODE_IPV4 or _IPV6`;
      return [{ reason: 'NodeAddressMissing', message }];
    }
    const other = this.#otherOfThisName();
    if (other === undefined) return [];
    const message = `IPAM knows node ${self} with the address ${other}, which is not this one's: give each node a name of its own (PODWIRE_DATAPLANE_NODE_NAME)`;
    return [{ reason: 'NodeNameTaken', message }];
  }

  async stop(): Promise<void> {
    this.#stop.abort();
    await Promise.all([this.#work.stop(), this.#polling]);
    await this.#announcer.stop();
  }

  /** The address that another process registered under this node's name. */
  #otherOfThisName(): string | undefined {
    if (!this.#known || !this.#registered) return undefined;
    const { ipv4, ipv6 } = this.#known;
    const known = [ipv4, ipv6].map((one) => (one ? formatAddress(one.address) : ''));
    const own = [this.#registered.ipv4Address, this.#registered.ipv6Address].map((text) => text.split('/')[0]);
    return known.find((text, at) => text !== own[at]);
  }

  /** The first look comes once changes are told, or it is known that they are not. */
  #listen(): Promise<void> {
    const { network, methods, clock, random, events } = this.#options;
    const targets = Object.values(methods).flatMap((method) => (method.type === 'can-reach' ? method.address : []));
    const changed = (): void => this.#changed.abort();
    const opened = (): void => this.#work.ask();
    const lost = (error: unknown, retryInMs: number): void => {
      events.notTold('addresses', error, retryInMs);
      this.#work.ask();
    };
    return watchAddresses({ network, targets, clock, random, changed, opened, lost }, this.#stop.signal);
  }

  async #poll(): Promise<void> {
    const { clock, pollMs } = this.#options;
    const { signal } = this.#stop;
    while (!signal.aborted) {
      const woken = await clock.sleep(pollMs, AbortSignal.any([signal, this.#changed.signal]));
      if (woken === 'aborted') await clock.sleep(GATHER_MS, signal);
      this.#changed = new AbortController();
      // A call under way may be on its way out of an interface that is gone.
      if (woken === 'aborted') this.#work.renew();
      else this.#work.ask();
    }
  }

  async #register(signal: AbortSignal): Promise<void> {
    const { network, ipam, events, clock } = this.#options;
    const state = await network.read();
    const request = this.#requestOf(state);
    this.#announcer.look(
      state,
      FAMILIES.flatMap((family) => this.#choose(family, state)?.address ?? []),
    );
    this.#isAddressMissing = request.ipv4Address === '' && request.ipv6Address === '';
    if (this.#isAddressMissing || sameRequest(request, this.#registered)) return;
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
        addresses: FAMILIES.flatMap((family) => addressesOf(link, family, state)).map(formatOwn),
      }))
      .filter(({ addresses }) => addresses.length > 0)
      .toSorted((a, b) => (a.name < b.name ? -1 : 1));
    return {
      name: self,
      ipv4Address: ipv4 ? formatOwn(ipv4) : '',
      ipv6Address: ipv6 ? formatOwn(ipv6) : '',
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

function formatOwn({
  address,
  length,
}: ChosenAddress | { readonly address: Address; readonly length: number }): string {
  return `${formatAddress(address)}/${length}`;
}

function sameRequest(a: RegisterNodeRequest, b: RegisterNodeRequest | undefined): boolean {
  return JSON.stringify(a) === JSON.stringify(b);
}
