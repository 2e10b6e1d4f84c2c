import { Failure } from '@podwire/shared/failure/failure';
import type { Address } from '@podwire/shared/net/address';
import { DIRECTIONS, type Direction, type Profile } from '@podwire/shared/network-policy/policy';
import { backoffMs } from '@podwire/shared/reconcile/schedule';
import { WorkQueue } from '@podwire/shared/reconcile/work-queue';

import { NO_VERDICT_DETAIL, type TableWatch } from '../nft/nft.js';
import { hasElements } from '../nft/table-form.js';
import type { TableReconcilerOptions } from '../nft/table-reconciler.js';
import {
  formatTableName,
  objectsOf,
  removal,
  type ElementsChange,
  type JsonObject,
  type NftCommand,
  type NftSet,
} from '../nft/table.js';
import { TransactionReports } from '../nft/transaction-reports.js';
import { LOG_PROBE, withoutLogs } from './drop-log.js';
import { hasRules, openPods } from './listed-table.js';
import { difference } from './members.js';
import { PendingElements, podChanges, podSets, PROBE, transactions, wholeSets, type Targets } from './elements.js';
import type { Filtering, PolicyView, ViewChange } from './policy-view.js';
import { addProfile, addSets, BASE_TABLE, chainName, ISOLATED, POLICY_TABLE, remove, setsOf } from './rules.js';

export type PodFiltering = Readonly<Record<Direction, Filtering>>;

/** A pod as the table should have it. */
export interface TablePod {
  readonly addresses: readonly Address[];
  readonly filtering: PodFiltering;
}

export interface PolicyTableOptions extends Omit<TableReconcilerOptions, 'table'> {
  /** Called when the table was written as a whole: connections may have passed that it forbids. Must not throw. */
  readonly onReplaced: () => void;
}

/** The table as this process has written it. */
interface Written {
  readonly profiles: Map<string, Profile>;
  /** IDs of the sets. */
  readonly sets: Set<string>;
  readonly pods: Map<string, Targets>;
  /** Chains and sets without users, to delete with the next rules. */
  garbage: { readonly profiles: readonly Profile[]; readonly sets: readonly string[] };
}

type Task = 'check' | 'compare' | 'clean' | 'refused' | 'write';

const RETRY = { baseMs: 500, maxMs: 30_000 };

/** Unused chains are deleted with the next rules, or after this time. */
const CLEAN_AFTER_MS = 1000;

/** Refused rules are tried again, as a part of nftables may have been loaded. */
const REFUSED_AFTER_MS = 60_000;

/** Hash sets grow after a transaction, and a listing meanwhile repeats some elements and leaves some out. */
const QUIET_MS = 3000;

/** Commands of one transaction that adds rules: the kernel takes up to 1 ms for one, among thousands of sets. */
const PART_COUNT = 1000;

const NAME = formatTableName(POLICY_TABLE);

/**
 * Keeps the table `inet podwire_policy` as the view of the policies and the pods of this node require.
 *
 * Difficulties:
 * - The table may have 100,000 elements. Elements change by netlink, a few at a time; the program nft runs only for new rules; and
 *   nothing is listed at rest. This process knows its own writes, and the kernel reports the writes of other programs.
 * - After a restart the kernel's table may be newer than the stored view. It stays in force until podwire-ipam has sent a
 *   snapshot; then the table is replaced in one transaction.
 * - A pod must not wait for rules of other pods: its elements are written while nft runs, but not while the table is replaced.
 * - Rules that nft refuses must not stop the rest: their pods are isolated.
 * - Any program may delete the table, and connections pass until it is back: a table that isolates all pods with policies comes
 *   first, as it takes nft a few milliseconds.
 */
export class PolicyTable {
  readonly #options: PolicyTableOptions;
  readonly #view: PolicyView;
  readonly #queue: WorkQueue<Task>;
  readonly #wanted = new Map<string, TablePod>();
  readonly #dirty = new Set<string>();
  readonly #pending = new PendingElements();
  /** The changes since the last write concern no rules. */
  #hasOnlyElements = false;
  readonly #refused = new Map<string, Failure>();
  readonly #reports = new TransactionReports();
  #watch: TableWatch | undefined;
  #written: Written | undefined;
  /** The table is of an earlier process: its content is not known. */
  #isInherited = false;
  #last: Promise<void> = Promise.resolve();
  #next: Promise<void> | undefined;
  /** Writes of pods, and replacements of the table. */
  #lastPods: Promise<unknown> = Promise.resolve();
  #nextPods: Promise<void> | undefined;
  #failed: { readonly failure: Failure; readonly count: number } | undefined;
  #hasLogs: boolean | undefined;

  constructor(view: PolicyView, options: PolicyTableOptions) {
    this.#view = view;
    this.#options = options;
    this.#queue = new WorkQueue({
      reconcile: async (task) => {
        // A failure has requested the next write.
        await this.#run(task).catch(() => undefined);
        return undefined;
      },
      retryInMs: () => RETRY.baseMs,
      onFailure: () => undefined,
      clock: options.clock,
    });
  }

  /** The failure of the last write; undefined after a success. */
  get failure(): Failure | undefined {
    return this.#failed?.failure;
  }

  /** Whether rules log the packets that they drop; undefined: not known yet. */
  get hasLogs(): boolean | undefined {
    return this.#hasLogs;
  }

  /** Profiles whose rules nft refuses, with its errors. */
  get refused(): ReadonlyMap<string, Failure> {
    return this.#refused;
  }

  /**
   * Takes over the table of an earlier process, or writes it. Call once, before any other method.
   * @throws Failure KERNEL_UNSUPPORTED or KERNEL_REFUSED; it is retried automatically
   */
  start(pods: ReadonlyMap<string, TablePod>): Promise<void> {
    for (const [device, pod] of pods) this.#wanted.set(device, pod);
    return this.#attempt(async () => {
      await this.#follow();
      // Changes while no process ran were not reported.
      const listed = await this.#options.nft.read(POLICY_TABLE);
      this.#isInherited = listed !== undefined && hasRules(listed, [...this.#view.profiles.values()]);
      if (!listed || !this.#isInherited) return this.#rebuild();
      for (const device of openPods(listed, this.#targets(this.#view.profiles))) this.#dirty.add(device);
      await this.#flushPods();
    });
  }

  /** Resolves when the changes of the view are in force. @throws Failure as {@link start} */
  update({ sets, hasPods }: ViewChange): Promise<void> {
    for (const [id, delta] of sets) {
      this.#pending.add(id, delta);
      this.#hasOnlyElements &&= this.#written?.sets.has(id) === true;
    }
    if (hasPods) this.#hasOnlyElements = false;
    return this.#flush();
  }

  /**
   * Filters a pod at its interface, or no longer; without waiting for other pods, unless the table is being replaced.
   * @throws Failure as {@link start}; the pod is then filtered with the next success
   */
  async setPod(device: string, pod: TablePod | undefined): Promise<void> {
    this.notePod(device, pod);
    // A table that is lost is replaced first.
    await this.#flushPods().catch(() => this.#flush());
  }

  /** The same with the next write. */
  notePod(device: string, pod: TablePod | undefined): void {
    if (pod) this.#wanted.set(device, pod);
    else this.#wanted.delete(device);
    this.#dirty.add(device);
  }

  /** Leaves the table in force. Resolves when no write is in flight. */
  async stop(): Promise<void> {
    await this.#queue.stop();
    await Promise.all([this.#last, this.#lastPods].map((each) => each.catch(() => undefined)));
    this.#watch?.close();
  }

  async #run(task: Task): Promise<void> {
    if (task === 'check') return this.#check();
    if (task === 'clean') return this.#attempt(() => this.#deleteGarbage());
    if (task === 'compare') return this.#attempt(() => this.#compare());
    if (task === 'refused') {
      this.#refused.clear();
      this.#hasOnlyElements = false;
    }
    await this.#flush();
  }

  /** One at a time; a failure is reported, and the table is replaced later. */
  #attempt(work: () => Promise<void>): Promise<void> {
    const turn = this.#last.catch(() => undefined).then(() => this.#reported(work));
    this.#last = turn;
    turn.catch(() => undefined);
    return turn;
  }

  async #reported(work: () => Promise<void>): Promise<void> {
    const { events, random } = this.#options;
    try {
      await work();
      if (this.#failed) events.tableRecovered(NAME);
      this.#failed = undefined;
    } catch (error) {
      const failure = error instanceof Failure ? error : new Failure('INTERNAL', 'internal error', { cause: error });
      const { failure: before, count = 0 } = this.#failed ?? {};
      if (before?.message !== failure.message) events.tableFailed(NAME, failure);
      this.#failed = { failure, count: count + 1 };
      this.#written = undefined;
      this.#hasOnlyElements = false;
      this.#queue.request('write', backoffMs(count, RETRY, random()));
      throw failure;
    }
  }

  /** Combines all requests that arrive before the run begins. */
  #flush(): Promise<void> {
    this.#next ??= this.#attempt(async () => {
      this.#next = undefined;
      await this.#follow();
      // A stored view may be older than the table.
      if (this.#isInherited && !this.#view.isCurrent) return;
      if (!this.#isInherited && this.#written) await this.#changeOrRestore(this.#written);
      else await this.#restore();
    });
    return this.#next;
  }

  async #changeOrRestore(written: Written): Promise<void> {
    try {
      await this.#change(written);
    } catch (error) {
      this.#hasOnlyElements = false;
      if (!(error instanceof Failure) || error.code === 'KERNEL_UNSUPPORTED') throw error;
      // The table differs from what this process has written.
      await this.#restore();
    }
  }

  /** Writes what the table lacks: elements by netlink, rules with nft. */
  async #change(written: Written): Promise<void> {
    const hasOnlyElements = this.#hasOnlyElements;
    this.#hasOnlyElements = true;
    if (!hasOnlyElements) await this.#addRules(written);
    // A removed set keeps its members while pods are in chains that name it.
    const changed = this.#pending.take((id) => written.sets.has(id) && this.#view.sets.has(id));
    for (const each of transactions(changed)) await this.#changeElements(each);
    if (hasOnlyElements) return;
    for (const device of this.#wanted.keys()) this.#dirty.add(device);
    await this.#flushPods();
    this.#collectGarbage(written);
  }

  async #restore(): Promise<void> {
    if (await this.#exists()) await this.#exclusive(() => this.#replaceNow());
    else await this.#rebuild();
  }

  /** Writes a lost table: first one that isolates all pods with policies, then the rest. */
  async #rebuild(changedAtMs?: number): Promise<void> {
    const written = await this.#exclusive(() => this.#isolate());
    const { events, clock } = this.#options;
    if (changedAtMs === undefined) events.tableWritten(NAME, 'found');
    else events.tableWritten(NAME, 'drift', clock.monotonicMs() - changedAtMs);
    await this.#change(written);
    this.#options.onReplaced();
  }

  /** Adds sets and chains that the table lacks. */
  async #addRules(written: Written): Promise<void> {
    const { profiles, sets } = this.#view;
    const added = [...profiles.values()].filter(({ id }) => !written.profiles.has(id) && !this.#refused.has(id));
    const missing = [...usedSets(sets, profiles)].filter((id) => !written.sets.has(id));
    if (added.length + missing.length === 0) return;
    const { garbage } = written;
    const base = [...remove(garbage.profiles, garbage.sets), ...addSets(missing)];
    const commands = [...base, ...added.flatMap(addProfile)];
    try {
      await this.#applyInParts(commands);
      for (const profile of added) written.profiles.set(profile.id, profile);
    } catch (error) {
      // Some of several parts are in force: then the table is replaced.
      if (!isRefusal(error) || added.length === 0 || commands.length > PART_COUNT) throw error;
      await this.#apply(base);
      await this.#addEach(written, added);
    }
    written.garbage = { profiles: [], sets: [] };
    for (const id of missing) written.sets.add(id);
  }

  /** Finds the profiles that nft refuses, and adds the rest. */
  async #addEach(written: Written, added: readonly Profile[]): Promise<void> {
    try {
      await this.#apply(added.flatMap(addProfile));
      for (const profile of added) written.profiles.set(profile.id, profile);
    } catch (error) {
      if (!isRefusal(error)) throw error;
      const [profile] = added;
      if (profile && added.length === 1) {
        // Without the table nft refuses everything.
        if (!(await this.#exists())) throw error;
        this.#refuse(profile, error);
        return;
      }
      const half = Math.ceil(added.length / 2);
      await this.#addEach(written, added.slice(0, half));
      await this.#addEach(written, added.slice(half));
    }
  }

  #refuse({ id }: Profile, failure: Failure): void {
    this.#refused.set(id, failure);
    this.#options.events.tableFailed(`${NAME}, profile ${id}`, failure);
    this.#queue.request('refused', REFUSED_AFTER_MS);
  }

  #collectGarbage(written: Written): void {
    const { profiles, sets } = this.#view;
    const targets = new Set([...written.pods.values()].flatMap(({ ingress, egress }) => [ingress, egress]));
    const isUsed = ({ id, direction }: Profile) => profiles.has(id) || targets.has(chainName(direction, id));
    const unused = [...written.profiles.values()].filter((profile) => !isUsed(profile));
    for (const { id } of unused) written.profiles.delete(id);
    const used = usedSets(sets, written.profiles);
    const unusedSets = [...written.sets].filter((id) => !used.has(id));
    for (const id of unusedSets) written.sets.delete(id);
    // Changes of sets that do not exist: if podwire-ipam sends such a set later, it is a new one.
    this.#pending.take((id) => !written.sets.has(id) && !sets.has(id));
    const { garbage } = written;
    written.garbage = { profiles: [...garbage.profiles, ...unused], sets: [...garbage.sets, ...unusedSets] };
    for (const id of this.#refused.keys()) if (!profiles.has(id)) this.#refused.delete(id);
    if (unused.length + unusedSets.length > 0) this.#queue.request('clean', CLEAN_AFTER_MS);
  }

  async #deleteGarbage(): Promise<void> {
    const written = this.#written;
    const { garbage } = written ?? {};
    if (!written || !garbage || garbage.profiles.length + garbage.sets.length === 0) return;
    await this.#apply(remove(garbage.profiles, garbage.sets));
    written.garbage = { profiles: [], sets: [] };
  }

  /** Writes the elements of pods that have changed; not while the table is replaced. */
  #flushPods(): Promise<void> {
    if (this.#nextPods) return this.#nextPods;
    const turn = this.#lastPods.then(async () => {
      this.#nextPods = undefined;
      if (this.#isInherited) await this.#writeInherited();
      else if (this.#written) await this.#writePods(this.#written);
      else throw this.#failed?.failure ?? new Failure('KERNEL_REFUSED', `table ${NAME} is not in force yet; try again`);
    });
    this.#nextPods = turn;
    this.#lastPods = turn.catch(() => undefined);
    return turn;
  }

  async #writePods(written: Written): Promise<void> {
    const devices = [...this.#dirty].filter((device) => !this.#awaitsRules(device, written));
    for (const device of devices) this.#dirty.delete(device);
    const pods = devices.map((device) => {
      const pod = this.#wanted.get(device);
      const to = pod && targetsOf(pod, written.profiles);
      return { device, from: written.pods.get(device), to };
    });
    try {
      await this.#changeElements(podChanges(pods));
    } catch (error) {
      for (const device of devices) this.#dirty.add(device);
      this.#hasOnlyElements = false;
      this.#queue.request('write');
      throw error;
    }
    for (const { device, to } of pods) {
      if (to) written.pods.set(device, to);
      else written.pods.delete(device);
    }
  }

  /** Whether nft has yet to add the rules of a pod, which stays in its chains until then. */
  #awaitsRules(device: string, { profiles, pods }: Written): boolean {
    const wanted = Object.values(this.#wanted.get(device)?.filtering ?? {});
    const isMissing = (id: string) => this.#view.profiles.has(id) && !profiles.has(id) && !this.#refused.has(id);
    return pods.has(device) && wanted.some((each) => typeof each === 'object' && isMissing(each.profile));
  }

  /** In a table of an earlier process: any element may exist, and any chain may be missing. */
  async #writeInherited(): Promise<void> {
    const devices = [...this.#dirty];
    this.#dirty.clear();
    for (const device of devices) {
      const pod = this.#wanted.get(device);
      const to = pod && targetsOf(pod, this.#view.profiles);
      const isolated = { addresses: pod?.addresses ?? [], egress: ISOLATED, ingress: ISOLATED };
      for (const { set, deleted } of podChanges([{ device, from: isolated, to: undefined }])) {
        const replace = (by: Targets | undefined) => {
          const wanted = podChanges([{ device, from: undefined, to: by }]).find((change) => change.set === set);
          return this.#replaceElements({ set, deleted, added: wanted?.added ?? [] });
        };
        await replace(to).catch(() => to && replace(isolated));
      }
    }
  }

  /** Replaces elements that may exist, in one transaction: no packet meets a pod without its chains. */
  async #replaceElements(change: ElementsChange): Promise<void> {
    await this.#changeElements([change]).catch(() => this.#changeElements([{ ...change, deleted: [] }]));
  }

  /** Runs while no pod is written. */
  #exclusive<Result>(work: () => Promise<Result>): Promise<Result> {
    const turn = this.#lastPods.then(work);
    this.#lastPods = turn.catch(() => undefined);
    return turn;
  }

  /** Replaces the table in one transaction, so that no packet meets a part of it. */
  async #replaceNow(changedAtMs?: number): Promise<void> {
    const { events, clock } = this.#options;
    const { profiles, sets } = this.#view;
    const accepted = new Map([...profiles].filter(([id]) => !this.#refused.has(id)));
    const whole = [...usedSets(sets, profiles)].flatMap((id) => wholeSets(id, sets.get(id)));
    // Later changes follow this write.
    this.#pending.clear();
    this.#dirty.clear();
    const write = async (some: ReadonlyMap<string, Profile>): Promise<Written> => {
      const pods = this.#targets(some);
      await this.#apply(replacementOf(whole, some, pods));
      const garbage = { profiles: [], sets: [] };
      return { profiles: new Map(some), sets: new Set(usedSets(sets, profiles)), pods, garbage };
    };
    try {
      this.#written = await write(accepted);
    } catch (error) {
      if (!isRefusal(error) || accepted.size === 0) throw error;
      const written = await write(new Map());
      await this.#addEach(written, [...accepted.values()]);
      this.#written = written;
      for (const device of this.#wanted.keys()) this.#dirty.add(device);
      await this.#writePods(written);
    }
    this.#isInherited = false;
    const gapMs = changedAtMs === undefined ? undefined : clock.monotonicMs() - changedAtMs;
    events.tableWritten(NAME, changedAtMs === undefined ? 'found' : 'drift', gapMs);
    this.#options.onReplaced();
  }

  /** Writes a table in which every pod with policies is isolated. @returns it; all elements are pending */
  async #isolate(): Promise<Written> {
    this.#pending.clear();
    this.#dirty.clear();
    this.#hasOnlyElements = false;
    for (const [id, set] of this.#view.sets) this.#pending.add(id, difference(undefined, set));
    const pods = this.#targets(new Map());
    await this.#apply(replacementOf([], new Map(), pods));
    this.#isInherited = false;
    return (this.#written = { profiles: new Map(), sets: new Set(), pods, garbage: { profiles: [], sets: [] } });
  }

  #targets(profiles: ReadonlyMap<string, Profile>): Map<string, Targets> {
    return new Map([...this.#wanted].map(([device, pod]) => [device, targetsOf(pod, profiles)]));
  }

  /** Whether the table exists, of this process or of an earlier one. */
  async #exists(): Promise<boolean> {
    try {
      await this.#changeElements(podChanges([PROBE]));
      await this.#changeElements(podChanges([{ ...PROBE, from: PROBE.to, to: undefined }]));
      return true;
    } catch (error) {
      if (error instanceof Failure && error.code === 'KERNEL_REFUSED') return false;
      throw error;
    }
  }

  /** Subscribes to reports, unless it is done. */
  async #follow(): Promise<void> {
    if (this.#watch) return;
    const { nft, clock } = this.#options;
    const onChange = (transaction: number | undefined, isDeleted: boolean) => {
      this.#reports.add(transaction, { atMs: clock.monotonicMs(), isDeleted });
      if (this.#reports.hasForeign) this.#queue.hurry('check');
    };
    const onEnd = () => {
      this.#watch = undefined;
      // Changes until the next subscription are not reported.
      this.#written = undefined;
      this.#queue.request('write');
    };
    this.#watch = await nft.watch(POLICY_TABLE, { onChange, onEnd });
  }

  /** Restores the table after a change by another program. */
  #check(): Promise<void> {
    return this.#attempt(async () => {
      // The report of a pod's write may come before its result.
      await this.#lastPods;
      if (!this.#reports.hasForeign) return;
      const { changedAtMs, isDeleted, isLost } = this.#reports.take();
      // A flush of a large ruleset has more reports than the kernel keeps.
      if (isDeleted || (isLost && !(await this.#exists()))) await this.#rebuild(changedAtMs);
      else if (isLost) this.#queue.request('compare', QUIET_MS);
      else await this.#exclusive(() => this.#replaceNow(changedAtMs));
    });
  }

  /** After lost reports: compares the elements, and the number of rules. */
  async #compare(): Promise<void> {
    const written = this.#written;
    if (!written) return;
    const objects = await this.#options.nft.read(POLICY_TABLE);
    if (!objects || !this.#isAsWritten(objects, written)) await this.#restore();
  }

  #isAsWritten(objects: readonly JsonObject[], { profiles, sets, pods, garbage }: Written): boolean {
    const whole = [...[...sets].flatMap((id) => wholeSets(id, this.#view.sets.get(id))), ...podSets(pods)];
    const written = [...profiles.values(), ...garbage.profiles];
    return hasRules(objects, written) && whole.every((set) => hasElements(objects, set));
  }

  /** Adds rules of chains that no pod has. Elements of pods are written in between: the kernel makes one transaction at a time. */
  async #applyInParts(commands: readonly NftCommand[]): Promise<void> {
    for (let first = 0; first < commands.length; first += PART_COUNT)
      await this.#apply(commands.slice(first, first + PART_COUNT));
  }

  async #apply(commands: readonly NftCommand[]): Promise<void> {
    const { nft } = this.#options;
    if (commands.length === 0) return;
    this.#hasLogs ??= await this.#canLog();
    const written = this.#hasLogs ? commands : withoutLogs(commands);
    const before = await nft.latestTransaction();
    await nft.apply(written);
    this.#reports.addOwn(await nft.latestTransaction(), before + 1);
  }

  /** Without nfnetlink_log in the kernel, packets are dropped without a report. */
  async #canLog(): Promise<boolean> {
    try {
      await this.#options.nft.apply(LOG_PROBE);
      return true;
    } catch (error) {
      if (!isRefusal(error)) throw error;
      return false;
    }
  }

  async #changeElements(changes: readonly ElementsChange[]): Promise<void> {
    if (changes.length === 0) return;
    const transaction = await this.#options.nft.changeElements(POLICY_TABLE, changes);
    if (transaction !== undefined) this.#reports.addOwn(transaction);
  }
}

const WITHIN = { family: POLICY_TABLE.family, table: POLICY_TABLE.name };

/** The chains for a pod. Without its profile's chain every connection ends. */
function targetsOf({ addresses, filtering }: TablePod, profiles: ReadonlyMap<string, Profile>): Targets {
  const [ingress, egress] = DIRECTIONS.map((direction) => {
    const wanted = filtering[direction];
    if (wanted === undefined || wanted === 'isolated') return wanted && ISOLATED;
    return profiles.get(wanted.profile)?.direction === direction ? chainName(direction, wanted.profile) : ISOLATED;
  });
  return { addresses, ingress, egress };
}

/** The commands that replace the table. Elements that lead to chains come after these. */
function replacementOf(
  sets: readonly NftSet[],
  profiles: ReadonlyMap<string, Profile>,
  pods: ReadonlyMap<string, Targets>,
): readonly NftCommand[] {
  const table = { ...BASE_TABLE, sets: [...BASE_TABLE.sets, ...sets] };
  const elements = podSets(pods).filter(({ elements: { length } }) => length > 0);
  return [
    ...removal(POLICY_TABLE),
    ...objectsOf(table).map((object): NftCommand => ({ add: object })),
    ...[...profiles.values()].flatMap(addProfile),
    ...elements.map(({ name, elements: elem }): NftCommand => ({ add: { element: { ...WITHIN, name, elem } } })),
  ];
}

/** The sets that exist, and the sets without members that rules name. */
function usedSets(sets: ReadonlyMap<string, unknown>, profiles: ReadonlyMap<string, Profile>): ReadonlySet<string> {
  return new Set([...sets.keys(), ...[...profiles.values()].flatMap((profile) => [...setsOf(profile)])]);
}

function isRefusal(error: unknown): error is Failure {
  return error instanceof Failure && error.code === 'KERNEL_REFUSED' && !(NO_VERDICT_DETAIL in error.details);
}
