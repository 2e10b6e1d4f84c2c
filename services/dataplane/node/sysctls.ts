import { Failure } from '@podwire/shared/failure/failure';
import type { Family } from '@podwire/shared/net/address';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { ClusterChange, ClusterView, Follower } from '../cluster/cluster.js';
import { ConditionTeller } from '../conditions/reporter.js';
import type { ReconcileEvents } from '../routes/events.js';
import type { Condition, NodeSysctl } from '../routes/wanted.js';
import { judgeSettings, settingKeys, textOf, type SettingsUse } from '../sysctls/judge.js';
import type { LinkSource } from './links.js';

interface NodeSysctlsOptions {
  /** The caller closes it. */
  readonly links: Pick<LinkSource, 'readSysctls' | 'writeSysctls'>;
  /** What pods need at the moment; the families of pools are added to its own. */
  readonly use: () => SettingsUse;
  /** Makes sure that the kernel can wire pods. @throws Failure that says why it cannot */
  readonly probe: () => Promise<void>;
  readonly clock: Clock;
  readonly events: Pick<ReconcileEvents, 'conditionsChanged' | 'settingsMade' | 'settingsRepaired'>;
  /** Told after each look what is known then. Must not throw. */
  readonly onLook: (look: NodeLook) => void;
}

/** What a look at the node's settings has brought. */
export interface NodeLook {
  /** Families of the pools; undefined while they are not known. */
  readonly poolFamilies: readonly Family[] | undefined;
  /** Whether settings were made or put right, so that what depends on them may be tried again. */
  readonly hasRepaired: boolean;
  /** Host interfaces of pods whose settings were changed by others, which their keeper puts right. */
  readonly changedPods: readonly string[];
}

interface Settled extends Pick<NodeLook, 'changedPods'> {
  readonly conditions: readonly Condition[];
  /** Settings that pods need for the first time. */
  readonly made: readonly NodeSysctl[];
  /** Settings that others have changed since. */
  readonly repaired: readonly NodeSysctl[];
}

/** The kernel announces no change of a setting. Milliseconds. */
export const LOOK_INTERVAL_MS = 10_000;

const FAMILIES: readonly Family[] = [4, 6];

/** Keeps an eye on those settings of the node that pods' networks depend on: puts right what is Podwire's, and tells the rest. */
export class NodeSysctls implements Follower {
  readonly #options: NodeSysctlsOptions;
  readonly #teller: ConditionTeller;
  readonly #stopping = new AbortController();
  #wake = new AbortController();
  #poolFamilies: readonly Family[] | undefined;
  /** Settings that were as pods need them at an earlier look. */
  #settled: ReadonlySet<string> = new Set();
  #running: Promise<void> | undefined;

  constructor(options: NodeSysctlsOptions) {
    this.#options = options;
    this.#teller = new ConditionTeller(options);
  }

  /** Begins; once. */
  start(): void {
    this.#running ??= this.#run();
  }

  follow({ cluster }: ClusterView, { others }: ClusterChange): void {
    if (this.#poolFamilies && !others) return;
    const pools = [...cluster.pools.values()];
    this.#poolFamilies = FAMILIES.filter((family) => pools.some(({ cidr }) => cidr.family === family));
    this.#wake.abort();
  }

  /** What an operator should know of the settings. */
  conditions(): readonly Condition[] {
    return this.#teller.conditions;
  }

  /** Leaves the settings as they are. Idempotent. */
  async stop(): Promise<void> {
    this.#stopping.abort();
    await this.#running;
  }

  async #run(): Promise<void> {
    const { signal } = this.#stopping;
    const { clock } = this.#options;
    while (!signal.aborted) {
      this.#wake = new AbortController();
      await this.#look();
      await clock.sleep(LOOK_INTERVAL_MS, AbortSignal.any([signal, this.#wake.signal]));
    }
  }

  async #look(): Promise<void> {
    const unusable = await this.#probed();
    const { conditions, made, repaired, changedPods } = await this.#settle();
    if (this.#stopping.signal.aborted) return;
    this.#teller.tell([...unusable, ...conditions]);
    if (made.length > 0) this.#options.events.settingsMade(made);
    if (repaired.length > 0) this.#options.events.settingsRepaired(repaired);
    const hasRepaired = made.length + repaired.length > 0;
    this.#options.onLook({ poolFamilies: this.#poolFamilies, hasRepaired, changedPods });
  }

  async #probed(): Promise<readonly Condition[]> {
    try {
      await this.#options.probe();
      return [];
    } catch (error) {
      const message = `no pod can be wired: ${reasonOf(error)}`;
      return [{ reason: 'KernelUnusable', message, defeats: FAMILIES }];
    }
  }

  async #settle(): Promise<Settled> {
    const { links } = this.#options;
    const use = this.#use();
    try {
      const keys = settingKeys(use);
      const values = await links.readSysctls(keys);
      const found = new Map(keys.map((key, place) => [textOf(key), values[place] ?? null]));
      const {
        conditions,
        repairs,
        filtered: changedPods,
      } = judgeSettings(use, (key) => found.get(textOf(key)) ?? null);
      const refused = await this.#repair(repairs);
      if (refused.length > 0) return { conditions: [...conditions, ...refused], made: [], repaired: [], changedPods };
      const repaired = repairs.filter(({ key }) => this.#settled.has(textOf(key)));
      const made = repairs.filter((repair) => !repaired.includes(repair));
      this.#settled = new Set(keys.map(textOf));
      return { conditions, made, repaired, changedPods };
    } catch (error) {
      const message = `the node’s settings cannot be read: ${reasonOf(error)}`;
      return { conditions: [{ reason: 'SettingsUnknown', message }], made: [], repaired: [], changedPods: [] };
    }
  }

  async #repair(repairs: readonly NodeSysctl[]): Promise<readonly Condition[]> {
    if (repairs.length === 0) return [];
    try {
      await this.#options.links.writeSysctls(repairs);
      return [];
    } catch (error) {
      const wanted = repairs.map(({ key, value }) => `sysctl -w ${textOf(key)}=${value}`).join(', ');
      const message = `pods’ packets are not forwarded, as settings cannot be put right (${reasonOf(error)}): ${wanted}`;
      return [{ reason: 'SettingRefused', message }];
    }
  }

  #use(): SettingsUse {
    const use = this.#options.use();
    const families = FAMILIES.filter((family) => use.families.includes(family) || this.#poolFamilies?.includes(family));
    return { ...use, families };
  }
}

/** @throws what is no failure */
function reasonOf(error: unknown): string {
  if (error instanceof Failure) return error.message;
  throw error;
}
