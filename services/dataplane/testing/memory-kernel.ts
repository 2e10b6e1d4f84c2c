import type { PortProtocol } from '@podwire/shared/attachment/host-port';
import type { Failure } from '@podwire/shared/failure/failure';

import {
  POD_LIST_BOUNDS,
  tooManyReason,
  podUnreadableFailure,
  type PodListBounds,
  type PodListKind,
} from '../kernel/pod-lists.js';
import { kernelFailure, openFailure, ownNamespaceFailure } from '../pods/errno.js';
import type { AttachedLink, BatchOutcome, Kernel, Links, PodSession, StepFailure } from '../pods/kernel.js';
import type { NamespaceIdentity } from '../records/record.js';
import type { Flow } from './kernels.js';
import {
  attachmentOfAlias,
  isSourceRule,
  ROUTE_PROTOCOL,
  tableOf,
  type Wanted,
  type WantedEnd,
} from '../wiring/network.js';
import {
  isAddressOf,
  isNeighbourOf,
  isRouteOf,
  isRuleOf,
  keyText,
  type Observed,
  type ObservedEnd,
  type ObservedLink,
  type ObservedRoute,
} from '../wiring/observed.js';
import { isSecondaryInterface } from '../wiring/source-routing.js';
import {
  formatStep,
  withPreviousValue,
  type Route,
  type Rule,
  type Side,
  type Step,
  type SysctlKey,
} from '../wiring/step.js';
import { checkMtu, Errno, MemoryNamespace, show } from './memory-namespace.js';

/** Operations that a test can make fail: the steps, and the other requests to the kernel. */
export type Operation =
  | Step['type']
  | 'open'
  | 'identify'
  | 'observe'
  | 'link-get'
  | 'link-list'
  | 'link-rename'
  | 'rule-list'
  | 'orphan-list'
  | 'conntrack-delete'
  | 'probe';

interface Fault {
  readonly operation: Operation | 'any step';
  readonly errno: string;
  /** How many times the operation still succeeds before it fails. */
  after: number;
}

interface MemoryKernelOptions {
  readonly hasIpv6?: boolean;
  readonly podLists?: Pick<PodListBounds, 'maxCount'>;
}

/**
 * The fake kernel: namespaces in memory that follow the real kernel's rules, print themselves as `ip` does, and can be made to
 * fail anywhere.
 */
export class MemoryKernel implements Kernel {
  readonly host: MemoryNamespace;
  /** Flows in the node's connection tracking. */
  readonly flows: Flow[] = [];
  /** Every applied or refused step, as its `ip` command. */
  readonly commands: string[] = [];
  /** Paths that exist, and their objects. */
  readonly #paths: Map<string, MemoryNamespace | 'a file'>;
  readonly #hasIpv6: boolean;
  readonly #podLists: Pick<PodListBounds, 'maxCount'>;
  readonly #faults: Fault[] = [];
  #closed = false;
  readonly #pauses: { readonly operation: Operation; readonly reached: () => void; readonly go: Promise<void> }[] = [];
  readonly #identities = new Identities();
  /** Sessions that were opened and not closed. */
  openSessions = 0;
  /** Some kernels ignore the MAC address given at creation. */
  ignoresMacAtCreation = false;
  /** Kernels before 5.14 report no cookies of namespaces. */
  reportsCookies = true;

  /** @param options - `hasIpv6`: false for a kernel that was started without IPv6 */
  constructor({ hasIpv6 = true, podLists = POD_LIST_BOUNDS }: MemoryKernelOptions = {}) {
    this.#hasIpv6 = hasIpv6;
    this.#podLists = podLists;
    this.host = new MemoryNamespace({ hasIpv6 });
    this.#paths = new Map([['/run/netns/node', this.host]]);
  }

  addNamespace(path: string): MemoryNamespace {
    const namespace = new MemoryNamespace({ hasIpv6: this.#hasIpv6 });
    this.#paths.set(path, namespace);
    return namespace;
  }

  /** Removes the path; the namespace stays, as if a process were in it. */
  unmount(path: string): void {
    this.#paths.delete(path);
  }

  /** Mounts a live namespace at the path. */
  mount(path: string, namespace: MemoryNamespace): void {
    this.#paths.set(path, namespace);
  }

  /** The namespace that {@link addNamespace} made. */
  namespace(path: string): MemoryNamespace {
    const namespace = this.#paths.get(path);
    if (!(namespace instanceof MemoryNamespace)) throw new Error(`there is no namespace at ${path}`);
    return namespace;
  }

  addFile(path: string): void {
    this.#paths.set(path, 'a file');
  }

  /** Destroys the namespace with everything in it. */
  removeNamespace(path: string): void {
    const namespace = this.#paths.get(path);
    this.#paths.delete(path);
    if (!(namespace instanceof MemoryNamespace)) return;
    this.#identities.remove(namespace);
    for (const link of [...namespace.links]) namespace.removeLink(link);
  }

  /** Lets an operation fail, once, after it has succeeded `after` times. */
  failNext(operation: Operation | 'any step', { errno = 'EIO', after = 0 } = {}): void {
    this.#faults.push({ operation, errno, after });
  }

  /** Faults that no operation has met: a test that leaves one here has tested nothing. */
  get unusedFaults(): number {
    return this.#faults.length;
  }

  /** Holds the next such operation until `release` is called. */
  pauseBefore(operation: Operation): { readonly reached: Promise<void>; readonly release: () => void } {
    const [reached, go] = [new AbortController(), new AbortController()];
    this.#pauses.push({ operation, reached: () => reached.abort(), go: untilAborted(go.signal) });
    return { reached: untilAborted(reached.signal), release: () => go.abort() };
  }

  async probe(): Promise<void> {
    await this.#request('probe', 'link.add', () => undefined);
  }

  async open(netns: string): Promise<PodSession> {
    await this.#yield('open');
    const found = this.#paths.get(netns);
    const errno =
      this.#takeFault('open') ?? (found === undefined ? 'ENOENT' : found === 'a file' ? 'EINVAL' : undefined);
    if (errno !== undefined || !(found instanceof MemoryNamespace)) {
      throw openFailure(netns, refusal({ operation: 'namespace.open', object: netns, errno: errno ?? 'EINVAL' }));
    }
    if (found === this.host) throw ownNamespaceFailure(netns);
    return this.#session(found, netns);
  }

  identify(netns: string): Promise<NamespaceIdentity | undefined> {
    return this.#request('identify', 'namespace.open', () => {
      const found = this.#paths.get(netns);
      return found instanceof MemoryNamespace ? this.#identityOf(found) : undefined;
    });
  }

  hostLink(name: string): Promise<ObservedLink | undefined> {
    return this.#request('link-get', 'link.get', () => (this.host.has(name) ? show(this.host.find(name)) : undefined));
  }

  deleteHostLink({ name, index }: Pick<ObservedLink, 'name' | 'index'>): Promise<boolean> {
    return this.#request('link-delete', 'link.delete', () => {
      const link = this.host.links.find((candidate) => candidate.name === name && candidate.index === index);
      if (link) this.host.removeLink(link);
      return link !== undefined;
    });
  }

  renameHostLink({ name, index }: Pick<ObservedLink, 'name' | 'index'>, to: string): Promise<void> {
    return this.#request('link-rename', 'link.set', () => {
      const link = this.host.links.find((candidate) => candidate.name === name && candidate.index === index);
      if (!link) throw kernelFailure(refusal({ operation: 'link.set', object: name, errno: 'ENODEV' }));
      if (to === name) return;
      if (this.host.has(to)) throw kernelFailure(refusal({ operation: 'link.set', object: name, errno: 'EEXIST' }));
      this.host.renameLink(link, to);
    });
  }

  veths(): Promise<readonly ObservedLink[]> {
    return this.#request('link-list', 'link.list', () =>
      this.host.links.filter(({ kind }) => kind === 'veth').map((link) => show(link)),
    );
  }

  attachedLinks(): Promise<readonly AttachedLink[]> {
    return this.#request('link-list', 'link.list', () =>
      this.host.links
        .toSorted((a, b) => (a.name < b.name ? -1 : 1))
        .flatMap((link): AttachedLink[] => {
          const attachment = attachmentOfAlias(link.alias);
          const routes = this.host.routes.filter(
            (route) => route.device === link.name && route.protocol === ROUTE_PROTOCOL,
          );
          return attachment
            ? [{ attachment, link: show(link), addresses: routes.map((route) => route.destination) }]
            : [];
        }),
    );
  }

  deleteFlows(address: string): Promise<number> {
    return this.#request('conntrack-delete', 'conntrack.delete', () => {
      const kept = this.flows.filter(({ source, destination }) => source !== address && destination !== address);
      return this.flows.splice(0, this.flows.length, ...kept).length - kept.length;
    });
  }

  deletePortFlows(protocol: PortProtocol, ports: readonly number[]): Promise<number> {
    return this.#request('conntrack-delete', 'conntrack.delete', () => {
      const kept = this.flows.filter((flow) => flow.protocol !== protocol || !ports.some((port) => port === flow.port));
      return this.flows.splice(0, this.flows.length, ...kept).length - kept.length;
    });
  }

  close(): Promise<void> {
    this.#closed = true;
    return Promise.resolve();
  }

  /** Every namespace in `ip` notation, with the path before each line. */
  print(): string {
    const namespaces = [...this.#paths].flatMap(([path, namespace]) =>
      namespace instanceof MemoryNamespace ? namespace.print().map((line) => `${path}: ${line}`) : [],
    );
    return namespaces.join('\n');
  }

  #identityOf(namespace: MemoryNamespace): NamespaceIdentity {
    const identity = this.#identities.of(namespace);
    return this.reportsCookies ? identity : { ...identity, cookie: null };
  }

  #session(pod: MemoryNamespace, netns: string): PodSession {
    this.openSessions++;
    const read = (...kinds: PodListKind[]) => requireReadable(pod, { netns, kinds, ...this.#podLists });
    let open = true;
    return {
      identity: this.#identityOf(pod),
      observe: (wanted) =>
        this.#request('observe', 'link.get', () =>
          observe(wanted, { host: this.host, pod: read('routes', 'addresses', 'neighbours') }),
        ),
      rules: (table) => this.#request('rule-list', 'rule.list', () => rulesOf(table, read('rules'))),
      orphanRules: () => this.#request('orphan-list', 'rule.list', () => orphanRulesOf(read('rules'))),
      podLink: (name) =>
        this.#request('link-get', 'link.get', () => (pod.has(name) ? show(pod.find(name)) : undefined)),
      apply: (steps) => this.#apply(steps, pod),
      close: () => {
        if (open) this.openSessions--;
        open = false;
        return Promise.resolve();
      },
    };
  }

  async #apply(steps: readonly Step[], pod: MemoryNamespace): Promise<BatchOutcome> {
    const namespaces = { host: this.host, pod };
    const finished: Step[] = [];
    const warnings: StepFailure[] = [];
    let failed: StepFailure | undefined;
    for (const step of steps) {
      await this.#yield(step.type);
      const namespace = namespaces[step.side];
      const done = withPrevious(step, namespace);
      const failure = this.#refusalOf(step, () =>
        applyStep(step, { namespace, pod, ignoresMac: this.ignoresMacAtCreation }),
      );
      if (!failure) finished.push(done);
      else if (step.type === 'sysctl-write' && step.optional) warnings.push(failure);
      else {
        failed = failure;
        break;
      }
    }
    return { finished, warnings, failed, links: failed ? {} : readBack(finished, namespaces) };
  }

  #refusalOf(step: Step, work: () => void): StepFailure | undefined {
    const command = formatStep(step);
    try {
      const fault = this.#takeFault(step.type) ?? this.#takeFault('any step');
      if (fault !== undefined) throw new Errno(fault, 'injected');
      work();
      this.commands.push(command);
      return undefined;
    } catch (error) {
      if (!(error instanceof Errno)) throw error;
      this.commands.push(`${command} -> ${error.errno}`);
      const operation = OPERATION_NAMES[step.type];
      return { step, errno: error.errno, failure: toFailure({ operation, object: command, error }) };
    }
  }

  async #request<Answer>(operation: Operation, name: string, answer: () => Answer): Promise<Answer> {
    await this.#yield(operation);
    if (this.#closed) throw new Error('the kernel is closed');
    const errno = this.#takeFault(operation);
    if (errno !== undefined) throw kernelFailure(refusal({ operation: name, object: 'injected', errno }));
    return answer();
  }

  /** Yields first, as a call of the real kernel does, and waits while a test pauses the operation. */
  async #yield(operation: Operation): Promise<void> {
    const at = this.#pauses.findIndex((pause) => pause.operation === operation);
    const [pause] = at < 0 ? [] : this.#pauses.splice(at, 1);
    pause?.reached();
    await (pause?.go ?? Promise.resolve());
  }

  #takeFault(operation: Operation | 'any step'): string | undefined {
    const at = this.#faults.findIndex((fault) => fault.operation === operation);
    const fault = this.#faults[at];
    if (!fault) return undefined;
    if (fault.after > 0) {
      fault.after--;
      return undefined;
    }
    this.#faults.splice(at, 1);
    return fault.errno;
  }
}

function untilAborted(signal: AbortSignal): Promise<void> {
  return new Promise((resolve) => signal.addEventListener('abort', () => resolve(), { once: true }));
}

function observe(wanted: Wanted, namespaces: Readonly<Record<Side, MemoryNamespace>>): Observed {
  return { host: observeEnd(wanted.host, namespaces.host), pod: observePod(wanted.pod, namespaces.pod) };
}

function observePod(wanted: WantedEnd, namespace: MemoryNamespace): ObservedEnd {
  const end = observeEnd(wanted, namespace);
  const { name } = wanted.link;
  const ownIndex = end.link?.index ?? Number.POSITIVE_INFINITY;
  const hasEarlierLink = namespace.routes.some(
    ({ device, protocol, table }) =>
      table === undefined && protocol === ROUTE_PROTOCOL && namespace.find(device).index < ownIndex,
  );
  const around = { ...end, hasEarlierLink };
  return { ...around, rules: isSecondaryInterface(wanted, around) ? rulesOf(tableOf(name), namespace) : [] };
}

function rulesOf(table: number, namespace: MemoryNamespace): readonly Rule[] {
  return namespace.rules.filter((rule) => isRuleOf(table, rule));
}

function orphanRulesOf({ rules, links, routes }: MemoryNamespace): readonly Rule[] {
  const used = new Set([...routes.map(({ table }) => table), ...links.map(({ name }) => tableOf(name))]);
  return rules.filter((rule) => isSourceRule(rule) && !used.has(rule.table));
}

function observeEnd(wanted: WantedEnd, namespace: MemoryNamespace): ObservedEnd {
  const { name } = wanted.link;
  const onLink = ({ device }: { readonly device: string }) => device === name;
  const addresses = namespace.addresses.filter(onLink).map(({ address }) => address);
  const neighbours = namespace.neighbours.filter(onLink).map(({ address, mac }) => ({ address, mac, permanent: true }));
  return {
    link: namespace.has(name) ? show(namespace.find(name)) : undefined,
    qdisc: namespace.qdiscs.get(name),
    addresses: addresses.filter((address) => isAddressOf(wanted, address)),
    routes: namespace.routes.filter((route) => isRouteOf(wanted, route)).map((route) => showRoute(route, namespace)),
    rules: [],
    hasEarlierLink: false,
    neighbours: neighbours.filter((neighbour) => isNeighbourOf(wanted, neighbour)),
    sysctls: readSysctls(
      namespace,
      wanted.sysctls.map((sysctl) => sysctl.key),
    ),
  };
}

function showRoute(route: Route, namespace: MemoryNamespace): ObservedRoute {
  return { ...route, deviceAlias: namespace.find(route.device).alias || null, unicast: true };
}

function readSysctls(namespace: MemoryNamespace, keys: readonly SysctlKey[]): Map<string, string | null> {
  return new Map(keys.map((key) => [keyText(key), namespace.sysctls.get(keyText(key)) ?? null]));
}

interface RefusalInput {
  readonly operation: string;
  readonly object: string;
  readonly errno: string;
  readonly text?: string;
}

function refusal({ operation, object, errno, text = '' }: RefusalInput) {
  return { operation, object, errno, message: `${operation} ${object}: ${errno} ${text}`.trim() };
}

function toFailure({ operation, object, error }: Omit<RefusalInput, 'errno'> & { readonly error: Errno }): Failure {
  return kernelFailure(refusal({ operation, object, errno: error.errno, text: error.message }));
}

/** The context of a step. */
interface StepContext {
  readonly namespace: MemoryNamespace;
  readonly pod: MemoryNamespace;
  /** Ignores the MAC address given at creation, as some kernels do. */
  readonly ignoresMac: boolean;
}

/** Applies a step as the kernel does. @throws Errno when the kernel would refuse it */
function applyStep(step: Step, where: StepContext): void {
  const { namespace } = where;
  switch (step.type) {
    case 'link-add':
      addVeth(step, where);
      break;
    case 'link-delete':
      namespace.removeLink(namespace.find(step.name));
      break;
    case 'link-set':
      namespace.setLink(namespace.find(step.name), step.change);
      break;
    case 'address-add':
      namespace.addAddress(step.device, step.address);
      break;
    case 'address-set':
      namespace.setAddress(step.device, step.address);
      break;
    case 'address-delete':
      namespace.deleteAddress(step.device, step.address);
      break;
    case 'route-add':
      namespace.addRoute(step.route);
      break;
    case 'route-replace':
      namespace.replaceRoute(step.route);
      break;
    case 'route-delete':
      namespace.deleteRoute(step.route);
      break;
    case 'rule-add':
      namespace.addRule(step.rule);
      break;
    case 'rule-delete':
      namespace.deleteRule(step.rule);
      break;
    case 'neighbour-set':
      namespace.setNeighbour(step.neighbour);
      break;
    case 'neighbour-delete':
      namespace.deleteNeighbour(step.neighbour);
      break;
    case 'limit-set':
      namespace.setBucket(step.device, step.bucket);
      break;
    case 'limit-delete':
      namespace.deleteQdisc(step.device);
      break;
    case 'sysctl-write':
      namespace.writeSysctl(keyText(step.key), step.value);
      break;
  }
}

function addVeth(
  { link, peer }: Extract<Step, { type: 'link-add' }>,
  { namespace, pod, ignoresMac }: StepContext,
): void {
  if (namespace.has(link.name) || pod.has(peer.name)) throw new Errno('EEXIST');
  checkMtu(peer.mtuBytes);
  const mac = ignoresMac ? '02:00:00:00:00:01' : link.mac;
  const host = namespace.addLink({ ...link, mac }, 'veth');
  const end = pod.addLink(peer, 'veth');
  host.peer = { link: end, namespace: pod };
  end.peer = { link: host, namespace };
}

/** The step as applied: with the previous value, if the step reads it. */
function withPrevious(step: Step, namespace: MemoryNamespace): Step {
  if (step.type !== 'sysctl-write' || !step.readPrevious) return step;
  return withPreviousValue(step, namespace.sysctls.get(keyText(step.key)));
}

/** The last link that was created or set in each namespace. */
function readBack(finished: readonly Step[], namespaces: Readonly<Record<Side, MemoryNamespace>>): Links {
  const links: Partial<Record<Side, ObservedLink>> = {};
  for (const step of finished) {
    if (step.type === 'link-set') links[step.side] = show(namespaces[step.side].find(step.name));
    if (step.type === 'link-add') links[step.side] = show(namespaces[step.side].find(step.link.name));
  }
  return links;
}

/** The addon's names of the operations. */
const OPERATION_NAMES: Readonly<Record<Step['type'], string>> = {
  'link-add': 'link.add',
  'link-delete': 'link.delete',
  'link-set': 'link.set',
  'address-add': 'address.add',
  'address-set': 'address.replace',
  'address-delete': 'address.delete',
  'route-add': 'route.add',
  'route-replace': 'route.replace',
  'route-delete': 'route.delete',
  'rule-add': 'rule.add',
  'rule-delete': 'rule.delete',
  'neighbour-set': 'neighbour.replace',
  'neighbour-delete': 'neighbour.delete',
  'limit-set': 'qdisc.replace',
  'limit-delete': 'qdisc.delete',
  'sysctl-write': 'sysctl.write',
};

/** Where namespaces' files are, and the first inode number there (PROC_DYNAMIC_FIRST and on, fs/proc/generic.c). */
const NSFS_DEVICE = 4n;
const FIRST_INODE = 4_026_531_840n;

/** Identities of the fake's namespaces. As in the kernel, the inode of a deleted one is soon reused. */
class Identities {
  readonly #identities = new Map<MemoryNamespace, NamespaceIdentity>();
  #nextCookie = 1n;

  remove(namespace: MemoryNamespace): void {
    this.#identities.delete(namespace);
  }

  /** A namespace gets its identity at the first request. */
  of(namespace: MemoryNamespace): NamespaceIdentity {
    const known = this.#identities.get(namespace);
    if (known) return known;
    const identity = { device: NSFS_DEVICE, inode: this.#freeInode(), cookie: this.#nextCookie++ };
    this.#identities.set(namespace, identity);
    return identity;
  }

  #freeInode(): bigint {
    const taken = new Set([...this.#identities.values()].map(({ inode }) => inode));
    let inode = FIRST_INODE;
    while (taken.has(inode)) inode++;
    return inode;
  }
}

interface ReadOptions extends Pick<PodListBounds, 'maxCount'> {
  readonly netns: string;
  /** The kinds of objects to list. */
  readonly kinds: readonly PodListKind[];
}

/** Returns the namespace for reading. @throws Failure POD_UNREADABLE when it holds more than `maxCount` objects of a kind */
function requireReadable(pod: MemoryNamespace, { netns, kinds, maxCount }: ReadOptions): MemoryNamespace {
  const kind = kinds.find((each) => pod[each].length > maxCount);
  if (kind !== undefined) throw podUnreadableFailure(netns, tooManyReason(kind, { maxCount }));
  return pod;
}
