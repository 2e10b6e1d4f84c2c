import { setMaxListeners } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { Block, BlockServiceService, type ListBlocksRequest } from '@podwire/proto/podwire/ipam/v1/block';
import {
  Node,
  NodeServiceService,
  type AllocateTunnelAddressRequest,
  type RegisterNodeRequest,
  type ReleaseTunnelAddressRequest,
  type TunnelKind,
} from '@podwire/proto/podwire/ipam/v1/node';
import { EncapsulationMode, Pool, PoolState } from '@podwire/proto/podwire/ipam/v1/pool';
import {
  BlockRoute,
  WatchKind,
  WatchPhase,
  WatchServiceService,
  type WatchedChange,
  type WatchRequest,
  type WatchResponse,
} from '@podwire/proto/podwire/ipam/v1/watch';
import { Failure } from '@podwire/shared/failure/failure';
import { formatAddress, type Address } from '@podwire/shared/net/address';
import { addressAt, parsePrefix, splitCidr } from '@podwire/shared/net/prefix';
import { RpcServer } from '@podwire/shared/rpc/server';
import { systemClock } from '@podwire/shared/runtime/clock';
import { createLogger } from '@podwire/shared/runtime/log';

import type { NetworkLink, NodeNetwork, NodeNetworkListener, NodeNetworkState } from '../node/links.js';
import type { NodeNameClaim } from '../node/registration.js';

/** No other machine has the node's name. */
export const FREE_NAME: NodeNameClaim = { refusal: undefined, claim: () => Promise.resolve(true) };

export const poolMessage = (name: string, cidr: string, rest: Partial<Pool> = {}): Pool =>
  Pool.fromPartial({ name, cidr, state: PoolState.POOL_STATE_ACTIVE, ...rest });

export const vxlanPool = (name: string, cidr: string, rest: Partial<Pool> = {}): Pool =>
  poolMessage(name, cidr, { vxlanMode: EncapsulationMode.ENCAPSULATION_MODE_ALWAYS, ...rest });

export const nodeMessage = (name: string, ipv4Address: string, rest: Partial<Node> = {}): Node =>
  Node.fromPartial({ name, ipv4Address, ...rest });

export const routeMessage = (cidr: string, nodeName: string, rest: Partial<BlockRoute> = {}): BlockRoute =>
  BlockRoute.fromPartial({ cidr, nodeName, poolName: 'p', ...rest });

type Object = NonNullable<WatchedChange['object']>;

const KINDS: Partial<Record<Object['$case'], WatchKind>> = {
  node: WatchKind.WATCH_KIND_NODES,
  pool: WatchKind.WATCH_KIND_POOLS,
  route: WatchKind.WATCH_KIND_ROUTES,
};

interface Change {
  readonly revision: number;
  readonly change: WatchedChange;
}

/**
 * A fake podwire-ipam on a real socket: nodes, tunnel addresses, and a watch by the rules of the contract (snapshots in parts,
 * changes, tokens that expire with the log of changes). Tests can refuse calls, cut streams and remove objects.
 */
export class FakeIpam {
  readonly folder = mkdtempSync(join(tmpdir(), 'podwire-fake-ipam-'));
  readonly address = `unix:${join(this.folder, 'ipam.sock')}`;
  /** Calls, oldest first. */
  readonly calls: string[] = [];
  readonly registrations: RegisterNodeRequest[] = [];
  readonly watchRequests: WatchRequest[] = [];
  /** Failures of the next calls, one for each call. */
  readonly refusals: { readonly method: string; readonly failure: Failure }[] = [];
  /** Greatest number of objects in a part of a snapshot. */
  snapshotPartCount = 2;
  /** Number of messages after which a stream ends. */
  cutAfterCount = Infinity;
  /** Sent in place of the next message, once. */
  nonsense: WatchResponse | undefined;
  /** Addresses that the node holds, by pool, including tunnel addresses. */
  readonly held = new Map<string, readonly string[]>();
  #objects = new Map<string, WatchedChange>();
  #isLocked = false;
  #log: Change[] = [];
  #keptAfter = 0;
  #revision = 1;
  #server: RpcServer | undefined;
  #changed = new AbortController();
  #cut = new AbortController();

  async start(): Promise<void> {
    this.#cut = new AbortController();
    const server = new RpcServer({
      addresses: [this.address],
      log: createLogger({ service: 'test', level: 'fatal' }),
      clock: systemClock,
      defaultCallTimeoutMs: 10_000,
      drainTimeoutMs: 1_000,
      services: (unary, streaming) => [
        {
          name: 'podwire.ipam.v1.WatchService',
          definition: WatchServiceService,
          implementation: {
            watch: streaming(WatchServiceService.watch, (request, { signal }) => this.#watch(request, signal)),
          },
        },
        {
          name: 'podwire.ipam.v1.BlockService',
          definition: BlockServiceService,
          implementation: { listBlocks: unary(BlockServiceService.listBlocks, (request) => this.#listBlocks(request)) },
        },
        {
          name: 'podwire.ipam.v1.NodeService',
          definition: NodeServiceService,
          implementation: {
            registerNode: unary(NodeServiceService.registerNode, (request) => this.#register(request)),
            allocateTunnelAddress: unary(NodeServiceService.allocateTunnelAddress, (request) =>
              this.#allocate(request),
            ),
            releaseTunnelAddress: unary(NodeServiceService.releaseTunnelAddress, (request) => this.#release(request)),
          },
        },
      ],
    });
    await server.listen();
    this.#server = server;
  }

  async stop(): Promise<void> {
    const server = this.#server;
    this.#server = undefined;
    await server?.stop();
  }

  async dispose(): Promise<void> {
    await this.stop();
    rmSync(this.folder, { recursive: true, force: true });
  }

  get streamsCount(): number {
    return this.#server?.streamsCount ?? 0;
  }

  put(...objects: readonly Object[]): void {
    this.#revision++;
    for (const object of objects) this.#change({ kind: KINDS[object.$case]!, name: nameOf(object), object });
    this.#wake();
  }

  putPool(pool: Pool): void {
    this.put({ $case: 'pool', value: pool });
  }

  putNode(node: Node): void {
    this.put({ $case: 'node', value: node });
  }

  putRoute(route: BlockRoute): void {
    this.put({ $case: 'route', value: route });
  }

  remove($case: 'node' | 'pool' | 'route', name: string): void {
    this.#revision++;
    this.#change({ kind: KINDS[$case]!, name, object: undefined });
    this.#wake();
  }

  /** Locks or unlocks the datastore, as Calico's tools do. */
  setLock(isLocked: boolean): void {
    this.#revision++;
    this.#isLocked = isLocked;
    this.#wake();
  }

  node(name: string): Node | undefined {
    const object = this.#objects.get(`${WatchKind.WATCH_KIND_NODES} ${name}`)?.object;
    return object?.$case === 'node' ? object.value : undefined;
  }

  /** Ends all streams. */
  cut(): void {
    this.#cut.abort();
    this.#cut = new AbortController();
  }

  /** Discards the log of changes, as a restart does: earlier tokens lead to snapshots. */
  forgetChanges(): void {
    this.#log = [];
    this.#keptAfter = this.#revision;
  }

  #change(change: WatchedChange): void {
    const key = `${change.kind} ${change.name}`;
    if (change.object) this.#objects.set(key, change);
    else this.#objects.delete(key);
    this.#log.push({ revision: this.#revision, change });
  }

  #wake(): void {
    this.#changed.abort();
    this.#changed = new AbortController();
  }

  async *#watch(request: WatchRequest, signal: AbortSignal): AsyncGenerator<WatchResponse, void, void> {
    this.calls.push('Watch');
    this.watchRequests.push(request);
    this.#refuse('Watch');
    const cut = this.#cut.signal;
    let sent = 0;
    for await (const message of this.#messages(request, AbortSignal.any([signal, cut]))) {
      const { nonsense } = this;
      this.nonsense = undefined;
      yield nonsense ?? { ...message, datastoreLocked: this.#isLocked };
      if (++sent >= this.cutAfterCount) break;
    }
    if (cut.aborted || sent >= this.cutAfterCount) throw new Failure('UNREACHABLE', 'cut off');
  }

  async *#messages(
    { kinds, resumeToken }: WatchRequest,
    signal: AbortSignal,
  ): AsyncGenerator<WatchResponse, void, void> {
    setMaxListeners(0, signal);
    let from = Number(resumeToken === '' ? NaN : resumeToken);
    if (!(from >= this.#keptAfter && from <= this.#revision)) {
      const revision = this.#revision;
      const all = [...this.#objects.values()].filter(({ kind }) => kinds.includes(kind));
      for (let at = 0; at < all.length; at += this.snapshotPartCount) {
        const changes = all.slice(at, at + this.snapshotPartCount);
        yield message(WatchPhase.WATCH_PHASE_SNAPSHOT, { reset: at === 0, changes });
        if (signal.aborted) return;
      }
      const changes = this.#since(revision, kinds);
      from = this.#revision;
      const rest = { reset: all.length === 0, changes, resumeToken: String(from) };
      yield message(WatchPhase.WATCH_PHASE_SNAPSHOT_COMPLETE, rest);
    }
    let isNews = resumeToken !== '' && from === Number(resumeToken);
    while (!signal.aborted) {
      const changed = this.#changed.signal;
      const changes = this.#since(from, kinds);
      isNews ||= from < this.#revision;
      from = this.#revision;
      if (changes.length > 0) yield message(WatchPhase.WATCH_PHASE_CHANGES, { changes, resumeToken: String(from) });
      else if (isNews) yield message(WatchPhase.WATCH_PHASE_BOOKMARK, { resumeToken: String(from) });
      isNews = false;
      if (from === this.#revision) await systemClock.sleep(600_000, AbortSignal.any([signal, changed]));
    }
  }

  #since(from: number, kinds: readonly WatchKind[]): WatchedChange[] {
    return this.#log
      .filter(({ revision, change }) => revision > from && kinds.includes(change.kind))
      .map(({ change }) => change);
  }

  #refuse(method: string): void {
    const at = this.refusals.findIndex((refusal) => refusal.method === method);
    const [refusal] = at < 0 ? [] : this.refusals.splice(at, 1);
    if (refusal) throw refusal.failure;
  }

  /** One block of each pool, with the held addresses; in pages of one. */
  async #listBlocks({ poolName, nodeName, pageToken }: ListBlocksRequest) {
    await Promise.resolve();
    this.calls.push(`ListBlocks ${poolName} ${nodeName}`);
    this.#refuse('ListBlocks');
    const allocations = (this.held.get(poolName) ?? []).map((address) => ({ address }));
    const blocks = [Block.fromPartial({ poolName, nodeName, allocations: pageToken === '' ? [] : allocations })];
    return { blocks, nextPageToken: pageToken === '' ? 'second' : '' };
  }

  async #register(request: RegisterNodeRequest) {
    await Promise.resolve();
    this.calls.push('RegisterNode');
    this.#refuse('RegisterNode');
    this.registrations.push(request);
    const before = this.node(request.name);
    const { name, ipv4Address, ipv6Address, interfaces } = request;
    const node = Node.fromPartial({
      ...before,
      name,
      ipv4Address,
      ipv6Address,
      interfaces,
      tunnels: before?.tunnels ?? [],
    });
    this.putNode(node);
    return { node, created: !before };
  }

  async #allocate({ nodeName, kind }: AllocateTunnelAddressRequest) {
    await Promise.resolve();
    this.calls.push(`AllocateTunnelAddress ${kind}`);
    this.#refuse('AllocateTunnelAddress');
    const node = this.node(nodeName);
    if (!node) throw new Failure('NODE_NOT_FOUND', `node "${nodeName}" is not registered`);
    const address = this.#tunnelAddress(kind);
    const otherTunnels = node.tunnels.filter((tunnel) => tunnel.kind !== kind);
    this.putNode({ ...node, tunnels: [...otherTunnels, { kind, address, macAddress: '' }] });
    return { address: `${address}/32`, alreadyAllocated: false, releasedAddresses: [] };
  }

  /** An address of the first active VXLAN pool, for every kind of tunnel. */
  #tunnelAddress(kind: TunnelKind): string {
    for (const { object } of this.#objects.values()) {
      if (object?.$case !== 'pool' || object.value.state !== PoolState.POOL_STATE_ACTIVE) continue;
      const parsed = parsePrefix(object.value.cidr);
      const isTunnelled = object.value.vxlanMode === EncapsulationMode.ENCAPSULATION_MODE_ALWAYS;
      if (parsed.ok && isTunnelled) return formatAddress(addressAt(parsed.prefix, 90 + kind));
    }
    throw new Failure('NO_POOL', 'no pool is for such tunnels');
  }

  async #release({ nodeName, kind }: ReleaseTunnelAddressRequest) {
    await Promise.resolve();
    this.calls.push(`ReleaseTunnelAddress ${kind}`);
    this.#refuse('ReleaseTunnelAddress');
    const node = this.node(nodeName);
    const tunnel = node?.tunnels.find((one) => one.kind === kind);
    if (node) this.putNode({ ...node, tunnels: node.tunnels.filter((one) => one !== tunnel) });
    return { addresses: tunnel ? [tunnel.address] : [] };
  }
}

function message(phase: WatchPhase, rest: Partial<WatchResponse>): WatchResponse {
  return { phase, reset: false, changes: [], resumeToken: '', datastoreLocked: false, ...rest };
}

function nameOf(object: Object): string {
  return object.$case === 'route' ? object.value.cidr : 'name' in object.value ? object.value.name : '';
}

/** A network of interfaces that a test sets: by name, their addresses with length. */
export class FakeNodeNetwork implements NodeNetwork {
  /** The next reads fail with these. */
  readonly failures: Error[] = [];
  /** The next announcements fail with these. */
  readonly refusals: Error[] = [];
  reads = 0;
  /** Announcements: `eth0 192.0.2.7 02:00:00:00:00:01`. */
  readonly announced: string[] = [];
  /** MAC addresses by interface; other interfaces have one derived from their index. */
  readonly macs = new Map<string, string>();
  /** The next watches are refused with these. */
  readonly watchRefusals: Failure[] = [];
  /** The targets of each watch. */
  readonly targets: string[] = [];
  isClosed = false;
  #interfaces: Readonly<Record<string, readonly string[]>>;
  readonly #listeners = new Set<NodeNetworkListener>();

  constructor(interfaces: Readonly<Record<string, readonly string[]>>) {
    this.#interfaces = interfaces;
  }

  get listenersCount(): number {
    return this.#listeners.size;
  }

  set(interfaces: Readonly<Record<string, readonly string[]>>): void {
    this.#interfaces = interfaces;
    for (const { changed } of this.#listeners) changed();
  }

  /** Ends all watches, as the kernel does when a socket fails. */
  endWatches(failure: Failure): void {
    const listeners = [...this.#listeners];
    this.#listeners.clear();
    for (const { ended } of listeners) ended(failure);
  }

  read(): Promise<NodeNetworkState> {
    this.reads++;
    const failure = this.failures.shift();
    if (failure) return Promise.reject(failure);
    const entries = Object.entries(this.#interfaces);
    return Promise.resolve({
      links: entries.map(([name], at) => ({
        index: at + 1,
        name,
        up: true,
        mac: this.macs.get(name) ?? `02:00:00:00:00:0${at + 1}`,
      })),
      addresses: entries.flatMap(([, addresses], at) =>
        addresses.flatMap((text) => {
          const parts = splitCidr(text);
          return parts ? [{ ...parts, linkIndex: at + 1, isUsable: true, lifetime: 'permanent' as const }] : [];
        }),
      ),
      routes: [],
    });
  }

  watch(listener: NodeNetworkListener, targets: readonly Address[] = []): Promise<() => void> {
    this.targets.push(targets.map(formatAddress).join());
    const refusal = this.watchRefusals.shift();
    if (refusal) return Promise.reject(refusal);
    this.#listeners.add(listener);
    return Promise.resolve(() => void this.#listeners.delete(listener));
  }

  announce({ name, mac }: NetworkLink, address: Address): Promise<void> {
    const refusal = this.refusals.shift();
    if (refusal) return Promise.reject(refusal);
    this.announced.push(`${name} ${formatAddress(address)} ${mac}`);
    return Promise.resolve();
  }

  close(): Promise<void> {
    this.isClosed = true;
    return Promise.resolve();
  }
}
