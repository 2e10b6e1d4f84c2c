import { Failure } from '@podwire/shared/failure/failure';
import { FAMILIES, type Family } from '@podwire/shared/net/address';
import { WorkQueue } from '@podwire/shared/reconcile/work-queue';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { ClusterChange, ClusterView, Follower } from '../cluster/cluster.js';
import { formatList, type Condition } from '../conditions/conditions.js';
import { ConditionReporter } from '../conditions/reporter.js';
import type { ReconcileEvents } from '../routes/events.js';
import type { NodeSysctl } from '../routes/wanted.js';
import type { LinkSource } from './links.js';

interface NodeSysctlsOptions {
  /** The caller closes it. */
  readonly links: Pick<LinkSource, 'readSysctls' | 'writeSysctls'>;
  /** The current requirements of pods; the families of pools are added. */
  readonly requirements: () => SettingsRequirements;
  /** Checks that the kernel can wire pods. @throws Failure with the reason when it cannot */
  readonly probe: () => Promise<void>;
  readonly clock: Clock;
  readonly events: Pick<ReconcileEvents, 'conditionsChanged' | 'settingsApplied' | 'settingsRepaired'>;
  /** Called after each check. Must not throw. */
  readonly onCheck: (look: SettingsCheck) => void;
}

/** Result of a check of the node's settings. */
export interface SettingsCheck {
  /** Families of the pools; undefined while unknown. */
  readonly poolFamilies: readonly Family[] | undefined;
  /** Whether settings were set or repaired, so that dependent work may be retried. */
  readonly hasRepaired: boolean;
  /** Host interfaces of pods whose settings other programs changed; the reconciler repairs them. */
  readonly changedPods: readonly string[];
}

interface SettingsOutcome extends Pick<SettingsCheck, 'changedPods'> {
  readonly conditions: readonly Condition[];
  /** Settings that pods require for the first time. */
  readonly applied: readonly NodeSysctl[];
  /** Settings that other programs have changed since. */
  readonly repaired: readonly NodeSysctl[];
}

/** Polling interval in milliseconds, as the kernel does not notify of changed settings. */
export const SYSCTL_CHECK_INTERVAL_MS = 10_000;

/** Checks the node's settings that pods' networks depend on: repairs Podwire's own, and reports the rest. */
export class NodeSysctls implements Follower {
  readonly #options: NodeSysctlsOptions;
  readonly #reporter: ConditionReporter;
  readonly #queue: WorkQueue<'settings'>;
  #poolFamilies: readonly Family[] | undefined;
  /** Keys of the settings that an earlier check found correct, or repaired. */
  #verifiedKeys: ReadonlySet<string> = new Set();

  constructor(options: NodeSysctlsOptions) {
    this.#options = options;
    this.#reporter = new ConditionReporter(options);
    this.#queue = new WorkQueue({
      reconcile: async (_, signal) => {
        await this.#check(signal);
        return { inMs: SYSCTL_CHECK_INTERVAL_MS };
      },
      retryInMs: () => SYSCTL_CHECK_INTERVAL_MS,
      onFailure: (defect) => {
        throw defect;
      },
      clock: options.clock,
    });
  }

  /** Starts; call once. */
  start(): void {
    this.#queue.request('settings');
  }

  follow({ cluster }: ClusterView, { hasOtherChanges }: ClusterChange): void {
    if (this.#poolFamilies && !hasOtherChanges) return;
    const pools = [...cluster.pools.values()];
    this.#poolFamilies = FAMILIES.filter((family) => pools.some(({ cidr }) => cidr.family === family));
    this.#queue.request('settings');
  }

  /** Conditions of the settings. */
  conditions(): readonly Condition[] {
    return this.#reporter.conditions;
  }

  /** Leaves the settings unchanged. Idempotent. */
  stop(): Promise<void> {
    return this.#queue.stop();
  }

  async #check(signal: AbortSignal): Promise<void> {
    const unusable = await this.#probe();
    const { conditions, applied, repaired, changedPods } = await this.#evaluate();
    if (signal.aborted) return;
    this.#reporter.report([...unusable, ...conditions]);
    if (applied.length > 0) this.#options.events.settingsApplied(applied);
    if (repaired.length > 0) this.#options.events.settingsRepaired(repaired);
    const hasRepaired = applied.length + repaired.length > 0;
    this.#options.onCheck({ poolFamilies: this.#poolFamilies, hasRepaired, changedPods });
  }

  async #probe(): Promise<readonly Condition[]> {
    try {
      await this.#options.probe();
      return [];
    } catch (error) {
      const message = `no pod can be wired: ${reasonOf(error)}`;
      return [{ reason: 'KernelUnusable', message, blockedFamilies: FAMILIES }];
    }
  }

  async #evaluate(): Promise<SettingsOutcome> {
    const { links } = this.#options;
    const requirements = this.#requirements();
    try {
      const keys = settingKeys(requirements);
      const values = await links.readSysctls(keys);
      const found = new Map(keys.map((key, place) => [textOf(key), values[place] ?? null]));
      const {
        conditions,
        repairs,
        filtered: changedPods,
      } = evaluateSettings(requirements, (key) => found.get(textOf(key)) ?? null);
      const refused = await this.#repair(repairs);
      if (refused.length > 0)
        return { conditions: [...conditions, ...refused], applied: [], repaired: [], changedPods };
      const repaired = repairs.filter(({ key }) => this.#verifiedKeys.has(textOf(key)));
      const applied = repairs.filter((repair) => !repaired.includes(repair));
      this.#verifiedKeys = new Set(keys.map(textOf));
      return { conditions, applied, repaired, changedPods };
    } catch (error) {
      const message = `the node’s settings cannot be read: ${reasonOf(error)}`;
      return { conditions: [{ reason: 'SettingsUnknown', message }], applied: [], repaired: [], changedPods: [] };
    }
  }

  async #repair(repairs: readonly NodeSysctl[]): Promise<readonly Condition[]> {
    if (repairs.length === 0) return [];
    try {
      await this.#options.links.writeSysctls(repairs);
      return [];
    } catch (error) {
      const wanted = repairs.map(({ key, value }) => `sysctl -w ${textOf(key)}=${value}`).join(', ');
      const message = `packets of pods are not forwarded, as settings cannot be repaired (${reasonOf(error)}); run: ${wanted}`;
      return [{ reason: 'SettingRefused', message }];
    }
  }

  #requirements(): SettingsRequirements {
    const requirements = this.#options.requirements();
    const families = FAMILIES.filter(
      (family) => requirements.families.includes(family) || this.#poolFamilies?.includes(family),
    );
    return { ...requirements, families };
  }
}

/** @throws errors other than failures */
function reasonOf(error: unknown): string {
  if (error instanceof Failure) return error.message;
  throw error;
}

/** Input for evaluating a node's settings. */
export interface SettingsRequirements {
  /** Families of the addresses that pods have, or may get. */
  readonly families: readonly Family[];
  /** Name of the interface with the node's address of a family; undefined while unknown. */
  readonly parents: Readonly<Record<Family, string | undefined>>;
  /** Podwire's tunnel devices, by the family that they carry. */
  readonly tunnels: readonly { readonly name: string; readonly family: Family }[];
  /** Host interfaces of the pods with IPv4 source prefixes besides their addresses. */
  readonly unfiltered: readonly string[];
}

/** The value of a setting; null when the kernel has no such key. */
type SettingValue = (key: NodeSysctl['key']) => string | null;

interface SettingsEvaluation {
  /** Harmful settings that are the administrator's, or cannot be changed. */
  readonly conditions: readonly Condition[];
  /** Settings for Podwire to repair. */
  readonly repairs: readonly NodeSysctl[];
  /** Host interfaces among {@link SettingsRequirements.unfiltered} whose own filter is on: the reconciler repairs them. */
  readonly filtered: readonly string[];
}

const RP_FILTER = ['net', 'ipv4', 'conf', 'all', 'rp_filter'];
const DISABLE_IPV6 = ['net', 'ipv6', 'conf', 'all', 'disable_ipv6'];

/** Forwarding of the whole node. The IPv4 key is an alias of `net.ipv4.conf.all.forwarding`. */
const FORWARDING: Readonly<Record<Family, NodeSysctl['key']>> = {
  4: ['net', 'ipv4', 'ip_forward'],
  6: ['net', 'ipv6', 'conf', 'all', 'forwarding'],
};

/** More than the number of such pods on a node. One kernel request reads at most a thousand settings. */
const MAX_FILTERS_COUNT = 500;

/** Every setting that {@link evaluateSettings} may read. */
export function settingKeys({
  families,
  parents,
  tunnels,
  unfiltered,
}: SettingsRequirements): readonly NodeSysctl['key'][] {
  return [
    RP_FILTER,
    DISABLE_IPV6,
    ...families.map((family) => FORWARDING[family]),
    ...families.flatMap((family) => (parents[family] === undefined ? [] : [forwardingOf(family, parents[family])])),
    ...tunnels.flatMap(({ name, family }) => [forwardingOf(family, name), ...(family === 6 ? [disabledOf(name)] : [])]),
    ...unfiltered.slice(0, MAX_FILTERS_COUNT).map(filterOf),
  ];
}

/**
 * Finds settings of the node that break pods' networks. Repairs settings that serve pods alone, or that Podwire enabled
 * before: forwarding of the node, and settings of its own tunnel devices. Interfaces of the node, and the effect of `all` on them,
 * belong to the administrator.
 * Source: Linux, Documentation/networking/ip-sysctl.rst.
 */
export function evaluateSettings(requirements: SettingsRequirements, value: SettingValue): SettingsEvaluation {
  return {
    conditions: [
      ...reversePathConditions(requirements, value),
      ...ipv6Conditions(requirements, value),
      ...nonForwardingConditions(requirements, value),
    ],
    repairs: [...forwardingRepairs(requirements, value), ...tunnelDeviceRepairs(requirements, value)],
    // Reloading systemd's 50-default.conf (`sysctl --system`) sets it to 2 on every interface.
    filtered: requirements.unfiltered
      .slice(0, MAX_FILTERS_COUNT)
      .filter((name) => ['1', '2'].includes(value(filterOf(name)) ?? '0')),
  };
}

/**
 * The kernel uses the larger of `all` and the interface's own value: 0 none, 1 strict, 2 loose. Pods' interfaces have no IPv4
 * address, so there loose drops packets from source prefixes as strict does.
 */
function reversePathConditions({ unfiltered }: SettingsRequirements, value: SettingValue): Condition[] {
  const current = value(RP_FILTER);
  if ((current !== '1' && current !== '2') || unfiltered.length === 0) return [];
  const message = `net.ipv4.conf.all.rp_filter is ${current}, so packets of pods behind ${formatList(unfiltered)} from their allowed IPv4 prefixes are dropped; set it to 0, interfaces keep their own value`;
  return [{ reason: 'StrictReversePathFilter', message }];
}

function ipv6Conditions({ families, parents }: SettingsRequirements, value: SettingValue): Condition[] {
  if (!families.includes(6)) return [];
  const current = value(DISABLE_IPV6);
  if (current === null) {
    const message =
      'the kernel has no IPv6, so no pod with an IPv6 address can be wired; boot without ipv6.disable=1, or use only IPv4 pools';
    return [{ reason: 'Ipv6Missing', message, blockedFamilies: [6] }];
  }
  if (current !== '1' || parents[6] !== undefined) return [];
  const message =
    'net.ipv6.conf.all.disable_ipv6 is 1 and no interface has the node’s IPv6 address, so other nodes do not reach pods by IPv6; set it to 0, and assign the interface its addresses again';
  return [{ reason: 'Ipv6Disabled', message }];
}

/** The kernel decides on forwarding by the interface on which a packet arrives. */
function nonForwardingConditions({ families, parents }: SettingsRequirements, value: SettingValue): Condition[] {
  return families.flatMap((family) => {
    const parent = parents[family];
    // When the whole node does not forward, Podwire repairs that, and the kernel then sets the interfaces too.
    if (parent === undefined || value(FORWARDING[family]) !== '1') return [];
    const key = forwardingOf(family, parent);
    if (value(key) !== '0') return [];
    const message = `${textOf(key)} is 0, so IPv${family} packets that arrive by ${parent} do not reach pods; set it to 1`;
    return [{ reason: 'InterfaceNotForwarding', message }];
  });
}

function forwardingRepairs({ families }: SettingsRequirements, value: SettingValue): NodeSysctl[] {
  return families
    .map((family) => FORWARDING[family])
    .flatMap((key) => (value(key) === '0' ? [{ key, value: '1' }] : []));
}

function tunnelDeviceRepairs({ tunnels }: SettingsRequirements, value: SettingValue): NodeSysctl[] {
  return tunnels.flatMap(({ name, family }) => {
    const [disabled, forwarding] = [disabledOf(name), forwardingOf(family, name)];
    return [
      ...(family === 6 && value(disabled) === '1' ? [{ key: disabled, value: '0' }] : []),
      ...(value(forwarding) === '0' ? [{ key: forwarding, value: '1' }] : []),
    ];
  });
}

function forwardingOf(family: Family, device: string): NodeSysctl['key'] {
  return ['net', family === 4 ? 'ipv4' : 'ipv6', 'conf', device, 'forwarding'];
}

function filterOf(device: string): NodeSysctl['key'] {
  return ['net', 'ipv4', 'conf', device, 'rp_filter'];
}

function disabledOf(device: string): NodeSysctl['key'] {
  return ['net', 'ipv6', 'conf', device, 'disable_ipv6'];
}

/** The key for `sysctl`: dots within a segment become slashes. */
export function textOf(key: NodeSysctl['key']): string {
  return key.map((part) => part.replaceAll('.', '/')).join('.');
}
