import type { PodName } from '@podwire/shared/attachment/allocation';
import { formatAddress } from '@podwire/shared/net/address';
import { DIRECTIONS, type Direction } from '@podwire/shared/network-policy/policy';
import { exponentialBackoff, WorkQueue } from '@podwire/shared/reconcile/work-queue';
import type { Clock } from '@podwire/shared/runtime/clock';
import { counter, onFirstUse } from '@podwire/shared/telemetry/instruments';
import { messageOf } from '@podwire/shared/failure/thrown';

import type { LoggedPacket, PacketLog, TableWatch } from '../nft/nft.js';
import { DROP_LOG, readPlace, type DropPlace } from '../network-policy/drop-log.js';
import { readHeaders, type PacketHeaders } from './packet.js';
import type { PolicyFilter } from '../network-policy/policy-filter.js';
import type { PolicyView } from '../network-policy/policy-view.js';

/** A packet that the table of policies has dropped. */
export interface PolicyDrop extends PacketHeaders {
  /** Counts the drops since the start, from 1. */
  readonly number: number;
  /** Epoch milliseconds. */
  readonly atMs: number;
  /** The side whose policies dropped it. */
  readonly direction: Direction;
  /** Pods of this node at both ends; undefined: elsewhere, or not known. */
  readonly sourcePod: PodName | undefined;
  readonly destinationPod: PodName | undefined;
  readonly reason: DropReason;
  /** The policies that isolate the pod, or the one that denies. */
  readonly policies: readonly string[];
  /** Whether changes of policies and pods reached this node. */
  readonly isFollowed: boolean;
}

/** Why a packet was dropped, as the contract names it. */
type DropReason =
  | 'no-rule-allows'
  | 'denied'
  | 'policies-unknown'
  | 'rules-not-in-force'
  | 'connection-not-tracked'
  | 'interface-not-wired';

/** Receives the reader's events. */
export interface DropEvents {
  /** Called once a minute at most for the same pod, direction, peer and port. */
  packetDropped(fields: Readonly<Record<string, string | readonly string[]>>, message: string): void;
  /** The kernel reports no drops; it is tried again. */
  dropsNotFollowed(error: unknown): void;
}

interface PolicyDropsOptions {
  readonly packets: PacketLog;
  readonly filter: Pick<PolicyFilter, 'podAt' | 'logsDrops'>;
  readonly view: Pick<PolicyView, 'profiles' | 'isFollowed'>;
  readonly events: DropEvents;
  readonly clock: Clock;
  /** Uniform in [0, 1). */
  readonly random: () => number;
}

const KEPT_COUNT = 1000;

/** The same drop is written to the log again after this time; so many different ones in this time. */
const QUIET_MS = 60_000;
const LINES_MAX = 1000;

const BACKOFF = { baseMs: 1000, maxMs: 60_000 };

const drops = onFirstUse(() => counter('podwire.policy.drops'));

/** The packets that network policies drop, as rules log them: a sample of each pod's, with the policies. */
export class PolicyDrops {
  readonly #options: PolicyDropsOptions;
  readonly #queue: WorkQueue<'follow'>;
  readonly #kept: PolicyDrop[] = [];
  /** When each kind of drop was written to the log. */
  readonly #written = new Map<string, number>();
  #count = 0;
  #lostCount = 0;
  #fault: string | undefined;
  #watch: TableWatch | undefined;

  constructor(options: PolicyDropsOptions) {
    this.#options = options;
    const { clock, random } = options;
    this.#queue = new WorkQueue({
      reconcile: async () => {
        await this.#follow();
        return undefined;
      },
      retryInMs: exponentialBackoff(BACKOFF, random),
      onFailure: (error) => this.#fail(error),
      clock,
    });
  }

  /** Starts; call once. */
  start(): void {
    this.#queue.request('follow');
  }

  /** The number of the latest drop; 0: none yet. */
  get latestNumber(): number {
    return this.#count;
  }

  /** Number of times that the kernel had more packets than this process read. */
  get lostCount(): number {
    return this.#lostCount;
  }

  /** Why no drops are reported; undefined if they are. */
  get fault(): string | undefined {
    if (this.#options.filter.logsDrops === false)
      return 'the kernel has no nfnetlink_log; load the module, and restart podwire-node';
    return this.#fault;
  }

  /** The last drops after a number, oldest first; all of them if the number is of an earlier process. */
  list(afterNumber: number): readonly PolicyDrop[] {
    if (afterNumber > this.#count) return [...this.#kept];
    return this.#kept.filter(({ number }) => number > afterNumber);
  }

  async stop(): Promise<void> {
    await this.#queue.stop();
    this.#watch?.close();
  }

  async #follow(): Promise<void> {
    this.#watch = await this.#options.packets.watch(DROP_LOG, {
      onPacket: (packet) => this.#take(packet),
      onLost: () => {
        this.#lostCount++;
      },
      onEnd: (error) => {
        this.#fail(error);
        this.#queue.request('follow', BACKOFF.baseMs);
      },
    });
    this.#fault = undefined;
  }

  #fail(error: unknown): void {
    if (this.#fault === undefined) this.#options.events.dropsNotFollowed(error);
    this.#fault = messageOf(error);
  }

  #take(packet: LoggedPacket): void {
    const place = readPlace(packet.prefix);
    const headers = readHeaders(packet.bytes);
    if (!place || !headers) return;
    const { clock, filter } = this.#options;
    const podOf = (device: string | undefined) => (device === undefined ? undefined : filter.podAt(device)?.pod);
    const [sourcePod, destinationPod] = [podOf(packet.input), podOf(packet.output)];
    const drop: PolicyDrop = {
      ...headers,
      ...this.#causeOf(place, packet),
      number: ++this.#count,
      isFollowed: this.#options.view.isFollowed,
      atMs: clock.nowMs(),
      sourcePod,
      destinationPod,
    };
    this.#kept.push(drop);
    if (this.#kept.length > KEPT_COUNT) this.#kept.shift();
    const { direction } = drop;
    drops().add(1, { direction, namespace: filteredPod(drop)?.namespace ?? '' });
    this.#write(drop);
  }

  #causeOf(place: DropPlace, packet: LoggedPacket): Pick<PolicyDrop, 'direction' | 'reason' | 'policies'> {
    if (place.kind === 'isolated') return { ...this.#isolatedEnd(packet), policies: [] };
    if (place.kind !== 'profile') {
      const reason = place.kind === 'unwired' ? 'interface-not-wired' : 'connection-not-tracked';
      return { direction: place.direction, reason, policies: [] };
    }
    const { direction, profile: id, rule } = place;
    const profile = this.#options.view.profiles.get(id);
    if (!rule) return { direction, reason: 'no-rule-allows', policies: profile?.isolatedBy ?? [] };
    const policy = profile?.[rule.tier][rule.position]?.policy;
    return { direction, reason: 'denied', policies: policy === undefined ? [] : [policy] };
  }

  /** Both directions share the chain. Egress is judged first. */
  #isolatedEnd({ input, output }: LoggedPacket): Pick<PolicyDrop, 'direction' | 'reason'> {
    const { filter } = this.#options;
    const devices = { egress: input, ingress: output };
    const filterOf = (direction: Direction) => {
      const device = devices[direction];
      return device === undefined ? undefined : filter.podAt(device)?.filtering[direction];
    };
    const order = DIRECTIONS.toReversed();
    const isUnknown = (direction: Direction) => filterOf(direction) === 'isolated';
    const direction = order.find(isUnknown) ?? order.find((each) => filterOf(each) !== undefined) ?? 'ingress';
    return { direction, reason: isUnknown(direction) ? 'policies-unknown' : 'rules-not-in-force' };
  }

  #write(drop: PolicyDrop): void {
    const { clock, events } = this.#options;
    const { direction, source, destination, protocol, ports } = drop;
    const pod = filteredPod(drop);
    const peer = formatAddress(direction === 'egress' ? destination : source);
    const key = [pod?.namespace, pod?.name, direction, peer, protocol, ports?.destination].join(' ');
    const nowMs = clock.monotonicMs();
    const writtenAtMs = this.#written.get(key);
    if (writtenAtMs !== undefined && nowMs - writtenAtMs < QUIET_MS) return;
    this.#written.delete(key);
    // Oldest first.
    for (const [old, atMs] of this.#written) {
      if (nowMs - atMs < QUIET_MS) break;
      this.#written.delete(old);
    }
    if (this.#written.size >= LINES_MAX) return;
    this.#written.set(key, nowMs);
    const message = messageOfDrop(drop);
    const port = ports ? ` port ${ports.destination}` : '';
    const ends = `from ${formatAddress(source)} to ${formatAddress(destination)}, protocol ${protocol}${port}`;
    const name = pod ? `${pod.namespace}/${pod.name}` : 'unknown pod';
    const { reason, policies } = drop;
    events.packetDropped(
      { pod: name, direction, peer, reason, policies },
      `${name}: ${direction} ${ends} dropped: ${message}`,
    );
  }
}

/** The pod whose policies dropped the packet. */
export function filteredPod({ direction, sourcePod, destinationPod }: PolicyDrop): PodName | undefined {
  return direction === 'egress' ? sourcePod : destinationPod;
}

/** The reason for operators. */
export function messageOfDrop({
  reason,
  policies,
  isFollowed,
}: Pick<PolicyDrop, 'reason' | 'policies' | 'isFollowed'>): string {
  // The table may be a moment ahead of the policies that this process knows.
  const names = policies.length > 0 ? policies.join(', ') : 'policies that have changed since';
  if (reason === 'no-rule-allows') {
    const unknown = isFollowed ? '' : '; the other end may be a new pod, as this node does not reach podwire-ipam';
    return `no rule allows it; isolated by ${names}${unknown}`;
  }
  if (reason === 'denied') return `denied by ${names}`;
  if (reason === 'policies-unknown') return 'its policies are not known yet';
  if (reason === 'rules-not-in-force') return 'its policies are not in force; see podwirectl node status';
  if (reason === 'connection-not-tracked')
    return 'its connection is not tracked: a change of policies ended it, or this node knows only one direction of it';
  return 'its interface is not wired';
}
