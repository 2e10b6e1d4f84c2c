import {
  checkBatch,
  checkDumpFilter,
  checkMonitorOptions,
  checkNamespacePath,
  checkProcDirectory,
  checkSequence,
  checkSysctlKeys,
  checkSysctlSettings,
  checkTimeout,
} from './check.js';
import {
  checkConntrackFilter,
  checkEnds,
  describeConntrack,
  readConnections,
  TrackedConnection,
  type ConntrackFilter,
} from './conntrack.js';
import { describe, describeSelector, describeSysctl, type Described } from './describe.js';
import { NamespaceClosedError, NetlinkError, NotANetworkNamespaceError } from './errors.js';
import { loadBinding } from './load.js';
import { EventQueue, type Monitor, type MonitorOptions } from './monitor.js';
import type {
  NativeBinding,
  NativeError,
  NativeNamespace,
  NativeOutcome,
  NativeRunOptions,
  NativeStep,
} from './native.js';
import {
  toArgumentError,
  toChangeResult,
  toNativeChanges,
  type NftChangeResult,
  type NftElementChange,
} from './nft-elements.js';
import { checkTableMonitor, toTransactions, type NftTransaction, type TableMonitorOptions } from './nft-monitor.js';
import { checkPacketLog, toPackets, type LoggedPacket, type PacketLogOptions } from './packet-log.js';
import { checkProbes, toProbeAnswer, type Probe, type ProbeAnswer } from './probe.js';
import type { Address, Family, FdbEntry, Link, Neighbour, Route, Rule } from './objects.js';
import type {
  LinkSelector,
  NamespaceIdentity,
  OpenNamespace,
  Outcome,
  Request,
  Step,
  SysctlKey,
  SysctlReading,
  SysctlSetting,
} from './requests.js';
import { checkAddress, checkFlag, checkInteger, checkRecord, checkSelector, INDEX, PORT } from './scalars.js';
import type { NativeOf } from './link-steps.js';

export interface RunOptions {
  /** Timeout of each of the kernel's answers in milliseconds. Default 5000; 1 to 600000. */
  readonly timeoutMs?: number;
}

/** Limits for lists of namespaces that untrusted programs can fill. A list beyond a limit is an error, never truncated. */
export interface ListBounds {
  /** Most objects in the kernel's answer, including those filtered out here: E2BIG. Default: unlimited. */
  readonly maxCount?: number;
  /** Timeout of the whole list in milliseconds, retries included, 1 to 600000: ETIMEDOUT. Default: 5000 for each answer. */
  readonly timeoutMs?: number;
}

export interface AddressFilter extends ListBounds {
  readonly family?: Family;
  /** Restricts the list to the addresses of this link. */
  readonly index?: number;
}

export interface RouteFilter extends ListBounds {
  readonly family?: Family;
  /** Only this routing table; default: all. A table that does not exist has no routes. */
  readonly table?: number;
  /** Only routes that leave by this link. */
  readonly index?: number;
  /** Only routes of this protocol, 1 to 255. */
  readonly protocol?: number;
  /**
   * Only routes to exactly this CIDR. The kernel has no such filter: a worker thread, not the event loop, filters what the other
   * options leave.
   */
  readonly destination?: string;
}

export interface RuleFilter extends ListBounds {
  readonly family?: Family;
}

export interface FdbFilter extends ListBounds {
  /** Restricts the list to the entries of this link. */
  readonly index?: number;
}

export interface NeighbourFilter extends ListBounds {
  readonly family?: Family;
  readonly index?: number;
  /** Proxy entries instead of neighbours: the kernel keeps separate tables. */
  readonly proxy?: boolean;
}

export interface Announcement {
  /** The link with the address. */
  readonly index: number;
  /** IPv4 or IPv6, without prefix length. */
  readonly address: string;
  /** IPv6: the node forwards by this link. Default: false. */
  readonly router?: boolean;
}

/** Requests of a batch per chunk: this many occupy the event loop for some milliseconds. */
const BATCH_PART = 1000;

/** Set by the class below: the compiled addon's object behind a namespace, for requests that name one. */
let nativeOf: NativeOf;

/**
 * A network namespace and netlink sockets in it. Made by {@link openNamespace}.
 *
 * Every method rejects with {@link NamespaceClosedError} after `close()`, with `ArgumentError` for invalid arguments, and with
 * {@link NetlinkError} when the kernel could not be queried. Batches, sequences and lists of one namespace run in call order.
 */
export class Namespace implements OpenNamespace {
  static {
    nativeOf = (value) => (value instanceof Namespace && !value.#closed ? value.#native : undefined);
  }

  readonly identity: NamespaceIdentity;
  /** The path given to open it; null for the calling process's own namespace. */
  readonly path: string | null;
  readonly #native: NativeNamespace;
  /** Calls with several asynchronous parts, which need the namespace open throughout. */
  readonly #inFlight = new Set<Promise<unknown>>();
  #closed = false;

  /** Internal; use {@link openNamespace}. */
  constructor(path: string | null, native: NativeNamespace) {
    this.path = path;
    this.identity = { device: native.device, inode: native.inode, cookie: native.cookie };
    this.#native = native;
  }

  /**
   * Sends all requests together (`ip -batch`), at most 100,000, and resolves with one outcome per request, in their order. **The
   * kernel continues after a failed request**; use {@link sequence} when one depends on another. Links that address, route and
   * neighbour requests select by name are looked up before anything is sent, so they must exist already.
   *
   * All are validated before the first is sent. More than 1000 are sent in chunks of 1000, between which the event loop and other
   * calls proceed; names are looked up for each chunk.
   */
  async batch(requests: readonly Request[], options: RunOptions = {}): Promise<Outcome[]> {
    const native = this.#open();
    const steps = checkBatch(requests, nativeOf);
    const run = { sequential: false, timeoutMs: checkTimeout(options) };
    const answers = this.#ask('batch', this.#untilDone(runInParts(native, steps, run)));
    return (await answers).map((answer, position) => toOutcome(answer, requests[position]));
  }

  /**
   * Applies the steps one after the other, in one call to a worker thread, and stops at the first failure of a step that is not
   * `optional`; the outcomes of later steps have the code ECANCELED, and nothing was sent for them. Names are looked up at each
   * step's turn, so a step may use a link that an earlier one created. Steps may be `within` other namespaces; group the steps
   * of each namespace. At most 1000 steps.
   */
  async sequence(steps: readonly Step[], options: RunOptions = {}): Promise<Outcome[]> {
    const native = this.#open();
    const nativeSteps = checkSequence(steps, nativeOf);
    const timeoutMs = checkTimeout(options);
    const outcomes = await this.#ask('sequence', native.run(nativeSteps, { sequential: true, timeoutMs }));
    return outcomes.map((outcome, position) => toOutcome(outcome, steps[position]));
  }

  /** All links: `ip -details link show`. Complete, like the other lists, or a NetlinkError with the code EINTR. */
  async links(bounds: ListBounds = {}): Promise<Link[]> {
    return this.#ask('link.list', this.#open().dumpLinks(checkDumpFilter(bounds)));
  }

  /** Addresses: `ip address show [dev …]`. The kernel filters, here and in the other lists. */
  async addresses(filter: AddressFilter = {}): Promise<Address[]> {
    return this.#ask('address.list', this.#open().dumpAddresses(checkDumpFilter(filter)));
  }

  /** Routes: `ip route show table TABLE|all [dev …] [protocol …] [exact CIDR]`. */
  async routes(filter: RouteFilter = {}): Promise<Route[]> {
    return this.#ask('route.list', this.#open().dumpRoutes(checkDumpFilter(filter)));
  }

  /** Rules that choose a table, in the order of their priorities within a family: `ip rule show`. */
  async rules(filter: RuleFilter = {}): Promise<Rule[]> {
    return this.#ask('rule.list', this.#open().dumpRules(checkDumpFilter(filter)));
  }

  /** Neighbours, or proxy entries: `ip neighbour show [proxy] [dev …]`. */
  async neighbours(filter: NeighbourFilter = {}): Promise<Neighbour[]> {
    return this.#ask('neighbour.list', this.#open().dumpNeighbours(checkDumpFilter(filter)));
  }

  /** Forwarding entries: `bridge fdb show [dev …]`. */
  async fdbEntries(filter: FdbFilter = {}): Promise<FdbEntry[]> {
    return this.#ask('fdb.list', this.#open().dumpFdb(checkDumpFilter(filter)));
  }

  /** Reads sysctls, one outcome per key: `sysctl KEY…`. Continues after a failure. At most 1000 keys. */
  async readSysctls(keys: readonly SysctlKey[]): Promise<SysctlReading[]> {
    const native = this.#open();
    const readings = await this.#ask('sysctl.read', native.readSysctls(checkSysctlKeys(keys)));
    return readings.map(({ error, value }, position) => {
      if (!error) return { ok: true, value: value ?? '' };
      return {
        ok: false,
        error: toError(error, { operation: 'sysctl.read', object: describeSysctl(keys[position] ?? []) }),
      };
    });
  }

  /** Sets sysctls in order, one outcome per setting: `sysctl -w KEY=VALUE…`. Continues after a failure. */
  async writeSysctls(settings: readonly SysctlSetting[]): Promise<Outcome[]> {
    const native = this.#open();
    const steps = checkSysctlSettings(settings);
    const outcomes = await this.#ask(
      'sysctl.write',
      native.run(steps, { sequential: true, timeoutMs: checkTimeout({}) }),
    );
    return outcomes.map((outcome, position) => {
      const setting = settings[position];
      return toOutcome(outcome, setting && { type: 'sysctl.write', ...setting });
    });
  }

  /**
   * Deletes a link (`ip link delete NAME`), for a veth both ends, and resolves when the kernel announces the removal, after about
   * 0.5 ms; the acknowledgement, after 13 to 40 ms, is collected in the background. Concurrent deletions are combined. Rejects
   * with the code ENODEV when there is no such link. Independent of the namespace's batches.
   */
  async deleteLink(link: LinkSelector): Promise<void> {
    const native = this.#open();
    const selector = checkSelector('link', link);
    const described = { operation: 'link.delete', object: describeSelector(link) };
    await translated(described, native.deleteLink(selector));
  }

  /**
   * Deletes connection tracking entries (`conntrack -D`), and resolves with their number. Idempotent. The kernel filters by IPv4
   * address, protocol and port since 5.8; otherwise a worker thread reads all entries of the family. Rejects with a code such as
   * EPROTONOSUPPORT, EINVAL or EOPNOTSUPP where connection tracking cannot be queried (`nf_conntrack_netlink`).
   */
  async deleteConntrack(filter: ConntrackFilter): Promise<number> {
    const native = this.#open();
    const filters = checkConntrackFilter(filter);
    const described = { operation: 'conntrack.delete', object: describeConntrack(filter) };
    const deletions = Promise.all(filters.map((each) => native.deleteConntrack(each)));
    const counts = await translated(described, this.#untilDone(deletions));
    return counts.reduce((sum, count) => sum + count, 0);
  }

  /**
   * Lists connection tracking entries with an end among some addresses: their source, or their destination after translation.
   * Entries that another connection has announced (RELATED) are left out. The kernel filters as in {@link deleteConntrack} for up
   * to two IPv4 addresses; it is asked in a worker thread. Rejects as that method.
   */
  async connections(addresses: readonly string[]): Promise<Iterable<TrackedConnection>> {
    const checked = checkEnds(addresses);
    return readConnections(await this.#ask('conntrack.list', this.#untilDone(this.#open().listConnections(checked))));
  }

  /**
   * Deletes listed entries, and resolves with the number of entries that still existed. An entry that was replaced meanwhile by a new
   * connection of the same ends stays. Idempotent. Rejects as {@link deleteConntrack}.
   */
  async deleteConnections(connections: readonly TrackedConnection[]): Promise<number> {
    const packed = TrackedConnection.join(connections);
    return this.#ask('conntrack.delete', this.#untilDone(this.#open().deleteConnections(packed)));
  }

  /**
   * Announces to all neighbours of an Ethernet link the MAC address for one of its addresses, so that they update an outdated
   * entry at once: `arping -U -c 1 -I LINK ADDRESS`, and for IPv6 an unsolicited neighbour advertisement. Resolves when it is
   * sent; there is no answer. Rejects with ENODEV, with ENETDOWN for a link that is down, EOPNOTSUPP for a link that is not
   * Ethernet, and for IPv6 with EADDRNOTAVAIL while the link has no such address, or the address is still tentative.
   */
  async announceAddress({ index, address, router }: Announcement): Promise<void> {
    const native = this.#open();
    const announcement = {
      index: checkInteger('announcement.index', index, INDEX),
      address: checkAddress('announcement.address', address),
      router: checkFlag('announcement.router', router),
    };
    const described = {
      operation: 'address.announce',
      object: `${announcement.address} dev ${describeSelector({ index })}`,
    };
    await translated(described, native.announceAddress(announcement));
  }

  /**
   * Sends up to 512 probes at once, and resolves with their answers in the same order. Sockets are closed then. Needs CAP_NET_RAW for
   * echo requests. Does not wait for other calls, except for other probes.
   */
  async probe(probes: readonly Probe[], options: RunOptions = {}): Promise<ProbeAnswer[]> {
    const native = this.#open();
    const checked = checkProbes(probes);
    const answers = this.#ask('probe', this.#untilDone(native.probe(checked, { timeoutMs: checkTimeout(options) })));
    return (await answers).map(toProbeAnswer);
  }

  /**
   * Listens for TCP on every address of the namespace, IPv4 and IPv6. The kernel accepts up to 4096 connections.
   * @returns a descriptor, for `fs.close`
   */
  async listenTcp(port: number): Promise<number> {
    const native = this.#open();
    const checked = { port: checkInteger('port', port, PORT) };
    return this.#ask('tcp.listen', this.#untilDone(native.listenTcp(checked)));
  }

  /**
   * Adds and deletes elements of nf_tables sets and maps in one transaction (`nft -f -`): the kernel makes all changes or none, and
   * packets see the old state or the new one. At most 1000 changes of 100,000 elements. A failure of the kernel is an outcome, not a
   * rejection; it rejects when the transaction was not judged (EPERM, EMSGSIZE), or its result is unknown (ETIMEDOUT). Does not wait
   * for batches, sequences and lists, which use another socket.
   */
  async changeElements(changes: readonly NftElementChange[]): Promise<NftChangeResult> {
    const native = this.#open();
    const checked = toNativeChanges(changes);
    try {
      const result = this.#ask('elements.change', this.#untilDone(native.changeElements(checked)));
      return toChangeResult(await result, changes);
    } catch (error) {
      throw toArgumentError(error);
    }
  }

  /** The generation of nf_tables: it is equal as long as no program changes any table, also elements. */
  async generation(): Promise<number> {
    return this.#ask('generation.get', this.#untilDone(this.#open().readGeneration()));
  }

  /** Subscribes to changes: `ip monitor link address route neigh`. Once it resolves, no later change is missed. */
  async monitor(options: MonitorOptions): Promise<Monitor> {
    const native = this.#open();
    const { groups, gatherMs } = checkMonitorOptions(options);
    const events = new EventQueue(this.#describe());
    const subscription = await this.#ask(
      'monitor',
      native.monitor(groups, gatherMs, (received) => events.push(received)),
    );
    events.onClose(() => subscription.close());
    return events;
  }

  /**
   * Subscribes to transactions of nf_tables that change given tables, by any program: `nft monitor`. Once it resolves, no later one is
   * missed. `overrun`: some were lost; compare the tables themselves.
   */
  async monitorTables(options: TableMonitorOptions): Promise<Monitor<NftTransaction>> {
    const native = this.#open();
    checkRecord('options', options);
    const { tables, gatherMs } = checkTableMonitor(options);
    const names = options.tables.map(({ family, table }) => ({ family, table }));
    const events = new EventQueue<NftTransaction>(this.#describe());
    const subscription = await this.#ask(
      'monitor',
      native.monitorTables(tables, gatherMs, (received) => events.push(toTransactions(received, names))),
    );
    events.onClose(() => subscription.close());
    return events;
  }

  /**
   * Receives the packets that rules of nf_tables log to a group, at most 0.1 s later. `overrun`: some were lost. Rejects with EPERM if
   * another socket has the group.
   */
  async monitorPackets(options: PacketLogOptions): Promise<Monitor<LoggedPacket>> {
    const native = this.#open();
    checkRecord('options', options);
    const log = checkPacketLog(options);
    const events = new EventQueue<LoggedPacket>(this.#describe());
    const subscription = await this.#ask(
      'monitor',
      native.monitorPackets(log, 0, (received) => events.push(toPackets(received))),
    );
    events.onClose(() => subscription.close());
    return events;
  }

  /** Closes the namespace after calls in flight. Idempotent. Garbage collection closes it as well. */
  async close(): Promise<void> {
    this.#closed = true;
    await Promise.allSettled(this.#inFlight);
    await this.#native.close();
  }

  #open(): NativeNamespace {
    if (this.#closed) throw new NamespaceClosedError(this.#describe());
    return this.#native;
  }

  async #untilDone<Answer>(work: Promise<Answer>): Promise<Answer> {
    this.#inFlight.add(work);
    try {
      return await work;
    } finally {
      this.#inFlight.delete(work);
    }
  }

  #describe(): string {
    return this.path ?? 'of this process';
  }

  #ask<Answer>(operation: string, answer: Promise<Answer>): Promise<Answer> {
    return translated({ operation, object: `in network namespace ${this.#describe()}` }, answer);
  }
}

let binding: NativeBinding | undefined;

/**
 * Opens the network namespace at a path (`/run/netns/NAME`, `/proc/PID/ns/net`), or, without one, that of the calling process
 * (`ip -netns NAME …`). Rejects with a NetlinkError (ENOENT: no such path; EPERM: entering is not permitted) or a {@link
 * NotANetworkNamespaceError}. Entering one needs CAP_SYS_ADMIN; existing threads of the process never change their namespace.
 *
 * A path in the kernel's cache, as that of a new pod always is, costs the event loop some microseconds, and no worker thread; a
 * worker thread opens any other.
 */
export async function openNamespace(path?: string): Promise<Namespace> {
  const nativePath = checkNamespacePath(path);
  binding ??= loadBinding();
  const atOnce = nativePath === null ? null : binding.openNamespaceAtOnce(nativePath);
  if (atOnce) return new Namespace(nativePath, atOnce);
  const described = { operation: 'namespace.open', object: path ?? 'of this process' };
  return new Namespace(nativePath, await translated(described, binding.openNamespace(nativePath)));
}

/**
 * Makes a network namespace. It ends with its descriptor, whose path is `/proc/self/fd/NUMBER`; so it ends with the process too.
 * Needs CAP_SYS_ADMIN.
 * @returns a descriptor, for `fs.close`
 */
export async function makeNamespace(): Promise<number> {
  binding ??= loadBinding();
  return translated({ operation: 'namespace.make', object: '' }, binding.makeNamespace());
}

/**
 * Selects the mount of proc whose `sys` holds the sysctls, for all namespaces and threads of this process. Default: /proc. In a
 * container /proc/sys is read-only; the host's proc, mounted elsewhere, is not. Throws an `ArgumentError` for a path that is not
 * absolute; the mount itself is not checked.
 */
export function setProcDirectory(directory: string): void {
  const checked = checkProcDirectory(directory);
  binding ??= loadBinding();
  binding.setProcDirectory(checked);
}

function isNativeError(reason: unknown): reason is NativeError {
  return typeof reason === 'object' && reason !== null && 'errno' in reason && 'text' in reason;
}

function toError(error: NativeError, { operation, object }: Described): NetlinkError {
  const details = { operation, object, errno: error.errno, kernelMessage: error.text ?? undefined };
  // Opening fails with EINVAL only when the file exists and is not a network namespace.
  if (operation === 'namespace.open' && error.errno === EINVAL) return new NotANetworkNamespaceError(details);
  return new NetlinkError(details);
}

const EINVAL = 22;

async function translated<Answer>(described: Described, answer: Promise<Answer>): Promise<Answer> {
  try {
    return await answer;
  } catch (reason) {
    throw isNativeError(reason) ? toError(reason, described) : reason;
  }
}

async function runInParts(
  native: NativeNamespace,
  steps: readonly NativeStep[],
  options: NativeRunOptions,
): Promise<NativeOutcome[]> {
  const outcomes: NativeOutcome[] = [];
  do {
    const part = steps.slice(outcomes.length, outcomes.length + BATCH_PART);
    outcomes.push(...(await native.run(part, options)));
  } while (outcomes.length < steps.length);
  return outcomes;
}

/** The outcome of a step. Only failures are described: there may be thousands of successes. */
function toOutcome({ error, link, previous, qdisc }: NativeOutcome, step: Step | undefined): Outcome {
  if (error) {
    return { ok: false, error: toError(error, step ? describe(step) : { operation: 'batch', object: 'of requests' }) };
  }
  if (link) return { ok: true, link };
  if (qdisc) return { ok: true, qdisc };
  return previous === null ? { ok: true } : { ok: true, previous };
}
