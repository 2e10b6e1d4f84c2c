import type { Family } from '@podwire/shared/net/address';

import { listed } from '../conditions/conditions.js';
import type { Condition, NodeSysctl } from '../routes/wanted.js';

/** What a node's settings are judged by. */
export interface SettingsUse {
  /** Families of the addresses that pods have, or may get. */
  readonly families: readonly Family[];
  /** Name of the interface that has the node's address of a family; undefined while that is not known. */
  readonly parents: Readonly<Record<Family, string | undefined>>;
  /** Podwire's tunnel devices, by the family that they carry. */
  readonly tunnels: readonly { readonly name: string; readonly family: Family }[];
  /** Host interfaces of the pods that may send from IPv4 prefixes besides their addresses. */
  readonly unfiltered: readonly string[];
}

/** The value of a setting; null when the kernel has no such key. */
export type SettingValue = (key: NodeSysctl['key']) => string | null;

export interface Judgement {
  /** What is somebody's wish, or cannot be changed, and pods suffer from. */
  readonly conditions: readonly Condition[];
  /** What is Podwire's to put right. */
  readonly repairs: readonly NodeSysctl[];
  /** Host interfaces among {@link SettingsUse.unfiltered} whose own filter is on: their keeper puts them right. */
  readonly filtered: readonly string[];
}

const RP_FILTER = ['net', 'ipv4', 'conf', 'all', 'rp_filter'];
const DISABLE_IPV6 = ['net', 'ipv6', 'conf', 'all', 'disable_ipv6'];

/** Forwarding of the whole node. IPv4's is another name of `net.ipv4.conf.all.forwarding`. */
const FORWARDING: Readonly<Record<Family, NodeSysctl['key']>> = {
  4: ['net', 'ipv4', 'ip_forward'],
  6: ['net', 'ipv6', 'conf', 'all', 'forwarding'],
};

/** More than a node has of such pods; the kernel is asked for a thousand settings at a time at most. */
const FILTERS_MAX = 500;

/** Everything that {@link judgeSettings} may ask for. */
export function settingKeys({ families, parents, tunnels, unfiltered }: SettingsUse): readonly NodeSysctl['key'][] {
  return [
    RP_FILTER,
    DISABLE_IPV6,
    ...families.map((family) => FORWARDING[family]),
    ...families.flatMap((family) => (parents[family] === undefined ? [] : [forwardingOf(family, parents[family])])),
    ...tunnels.flatMap(({ name, family }) => [forwardingOf(family, name), ...(family === 6 ? [disabledOf(name)] : [])]),
    ...unfiltered.slice(0, FILTERS_MAX).map(filterOf),
  ];
}

/**
 * Tells which settings of the node defeat pods' networks. Put right is what serves pods alone, or what Podwire has switched on
 * before: forwarding of the node, and whatever of its own tunnel devices. Interfaces of the node, and what `all` does to them, are
 * the administrator's.
 * Source: Linux, Documentation/networking/ip-sysctl.rst.
 */
export function judgeSettings(use: SettingsUse, value: SettingValue): Judgement {
  return {
    conditions: [...reversePaths(use, value), ...missingIpv6(use, value), ...deafInterfaces(use, value)],
    repairs: [...nodeForwarding(use, value), ...ownDevices(use, value)],
    // Whoever loads systemd's 50-default.conf anew (`sysctl --system`) sets it to 2 on every interface.
    filtered: use.unfiltered.slice(0, FILTERS_MAX).filter((name) => ['1', '2'].includes(value(filterOf(name)) ?? '0')),
  };
}

/**
 * The larger of `all` and the interface's own counts: 0 none, 1 strict, 2 loose. Pods' interfaces have no IPv4 address, and on such
 * ones loose is as strict as strict: it takes nothing from further prefixes, and opens nothing.
 */
function reversePaths({ unfiltered }: SettingsUse, value: SettingValue): Condition[] {
  const set = value(RP_FILTER);
  if ((set !== '1' && set !== '2') || unfiltered.length === 0) return [];
  const message = `net.ipv4.conf.all.rp_filter is ${set}, so packets that pods behind ${listed(unfiltered)} send from their allowed IPv4 prefixes are dropped: set it to 0, interfaces keep their own`;
  return [{ reason: 'StrictReversePathFilter', message }];
}

function missingIpv6({ families, parents }: SettingsUse, value: SettingValue): Condition[] {
  if (!families.includes(6)) return [];
  const set = value(DISABLE_IPV6);
  if (set === null) {
    const message =
      'the kernel has no IPv6, so no pod with an IPv6 address can be wired: boot without ipv6.disable=1, or have pools of IPv4 alone';
    return [{ reason: 'Ipv6Missing', message, defeats: [6] }];
  }
  if (set !== '1' || parents[6] !== undefined) return [];
  const message =
    'net.ipv6.conf.all.disable_ipv6 is 1 and no interface has the node’s IPv6 address, so others do not reach pods by IPv6: set it to 0, and give the interface its addresses again';
  return [{ reason: 'Ipv6Disabled', message }];
}

/** The kernel asks the interface by which a packet arrives whether to forward it. */
function deafInterfaces({ families, parents }: SettingsUse, value: SettingValue): Condition[] {
  return families.flatMap((family) => {
    const parent = parents[family];
    // Where the whole node does not forward, that is put right, and interfaces follow it.
    if (parent === undefined || value(FORWARDING[family]) !== '1') return [];
    const key = forwardingOf(family, parent);
    if (value(key) !== '0') return [];
    const message = `${textOf(key)} is 0, so IPv${family} packets that arrive by ${parent} do not reach pods: set it to 1`;
    return [{ reason: 'InterfaceNotForwarding', message }];
  });
}

function nodeForwarding({ families }: SettingsUse, value: SettingValue): NodeSysctl[] {
  return families
    .map((family) => FORWARDING[family])
    .flatMap((key) => (value(key) === '0' ? [{ key, value: '1' }] : []));
}

function ownDevices({ tunnels }: SettingsUse, value: SettingValue): NodeSysctl[] {
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

/** As `sysctl` takes it: dots within a name are slashes. */
export function textOf(key: NodeSysctl['key']): string {
  return key.map((part) => part.replaceAll('.', '/')).join('.');
}
