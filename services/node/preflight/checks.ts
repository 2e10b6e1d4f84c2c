import { DATAPLANE_SETTINGS } from '@podwire/dataplane/config';
import { dropCondition, isIptables, IPTABLES } from '@podwire/dataplane/filters/forward-drop';
import type { ClusterPool } from '@podwire/dataplane/cluster/cluster';
import { formatList } from '@podwire/dataplane/conditions/conditions';
import type { BaseChain } from '@podwire/dataplane/nft/nft';
import type { Ruleset } from '@podwire/dataplane/nft/ruleset';
import { detectMtu, maxOverheadBytes } from '@podwire/dataplane/node/pod-mtu';
import { evaluateSettings, textOf, type SettingsRequirements } from '@podwire/dataplane/node/sysctls';
import {
  NODE_ROUTE_PROTOCOL,
  TUNNEL_DEVICES,
  type DeviceAddress,
  type KernelRoute,
  type ObservedDevice,
} from '@podwire/dataplane/routes/observed';
import { IPIP_DEVICE, VXLAN_DEVICE } from '@podwire/dataplane/routes/wanted';
import { conflictWarnings, type ParsedConflist } from '@podwire/plugin/install/conflist';
import {
  formatUnsupportedVersions,
  LOOPBACK,
  programFaults,
  unsupportedVersions,
  type Chain,
  type ChainVersions,
} from '@podwire/shared/chain/chain';
import { FAMILIES, type Family } from '@podwire/shared/net/address';
import { formatPrefix, hostPrefix, prefixesOverlap, prefixOf, splitCidr } from '@podwire/shared/net/prefix';

import type { RuntimeDirectories } from './runtime-config.js';

/** One line of the preflight. The detail of a failure or a warning ends with its remedy. */
export interface Check {
  readonly check: string;
  readonly result: 'ok' | 'warning' | 'failed';
  readonly detail: string;
}

/** Whether the kernel has a module: in use or built in, as a file, not at all, or unknown. */
export type Support = 'works' | 'loadable' | 'missing' | 'unknown';

/** Where the installation's files are for the container runtime. */
export interface Installation {
  readonly binDirectory: string;
  readonly configDirectory: string;
  readonly configName: string;
}

/** State of a node before or after the installation. */
export interface PreflightFacts {
  /** `uname -r`. */
  readonly kernelRelease: string;
  readonly modules: ReadonlyMap<string, Support>;
  /** Why nftables cannot be used. */
  readonly nftFault: { readonly text: string; readonly isMissing: boolean } | undefined;
  /** Values by {@link textOf}; a setting that the kernel lacks is missing. */
  readonly sysctls: ReadonlyMap<string, string>;
  readonly installation: Installation;
  /** Undefined: no configuration of a runtime is readable. */
  readonly runtime: RuntimeDirectories | undefined;
  /** Target of the link /var/run; undefined: no link. */
  readonly varRunTarget: string | undefined;
  /** The installed chain; without plugins before the installation. */
  readonly chain: Chain;
  readonly chainVersions: ChainVersions;
  readonly configFiles: readonly { readonly name: string; readonly content: ParsedConflist }[];
  /** Filter chains of other programs, with their tables. */
  readonly chains: readonly { readonly chain: BaseChain; readonly ruleset: Ruleset }[];
  /** Tables of iptables-legacy, which nftables do not show. */
  readonly legacyTables: readonly string[];
  readonly devices: readonly ObservedDevice[];
  readonly addresses: readonly DeviceAddress[];
  readonly routes: readonly KernelRoute[];
  readonly pools: readonly ClusterPool[];
  /** Whether the system's clock follows another clock; undefined: unknown. */
  readonly isClockSynchronized: boolean | undefined;
}

const check =
  (result: Check['result']) =>
  (name: string, detail: string): Check => ({ check: name, result, detail });
const ok = check('ok');
const warning = check('warning');
const failed = check('failed');
const orOk = (found: readonly Check[], name: string, detail: string) =>
  found.length > 0 ? [...found] : [ok(name, detail)];

/** Compares a node with the needs of Podwire and its pools. */
export function preflightChecks(facts: PreflightFacts): readonly Check[] {
  return [
    kernelCheck(facts),
    ...moduleChecks(facts),
    ...settingChecks(facts),
    ...directoryChecks(facts),
    ...programChecks(facts),
    ...configurationChecks(facts),
    ...firewallChecks(facts),
    mtuCheck(facts),
    ...rangeChecks(facts),
    clockCheck(facts),
  ];
}

/** The least kernel for network policies, which the chart enables. */
const LEAST_KERNEL = { major: 5, minor: 13 };

function kernelCheck({ kernelRelease }: PreflightFacts): Check {
  const [major = 0, minor = 0] = kernelRelease.split('.').map(Number);
  const isEnough = major > LEAST_KERNEL.major || (major === LEAST_KERNEL.major && minor >= LEAST_KERNEL.minor);
  if (isEnough) return ok('kernel', `Linux ${kernelRelease}`);
  const needed = `network policies need ${LEAST_KERNEL.major}.${LEAST_KERNEL.minor}`;
  return failed(
    'kernel',
    `Linux ${kernelRelease}: ${needed}; upgrade it, or disable them (networkPolicies.enabled=false)`,
  );
}

function moduleChecks({ modules, nftFault, pools }: PreflightFacts): Check[] {
  const effectOf = (kind: string) =>
    pools.some(({ encapsulation }) => encapsulation.startsWith(kind)) && 'pods of two nodes do not reach each other';
  const needs = [
    { name: 'veth', effect: 'no pod can be wired', report: failed },
    { name: 'vxlan', effect: effectOf('vxlan'), report: failed },
    { name: 'ipip', effect: effectOf('ipip'), report: failed },
    { name: 'sch_tbf', effect: 'ADD of a pod with a bandwidth limit fails', report: warning },
  ];
  const checks = needs.map(({ name, effect, report }) => {
    const support = modules.get(name) ?? 'unknown';
    const title = `module ${name}`;
    if (support === 'works' || support === 'loadable') return ok(title, support);
    if (support === 'unknown')
      return warning(title, 'unknown; run as root, with /lib/modules of the node below --root');
    if (effect === false) return ok(title, 'missing, but no pool uses it');
    return report(title, `missing, so ${effect}; run "modprobe ${name}", or install the kernel's further modules`);
  });
  const report = nftFault?.isMissing ? failed : warning;
  return [...checks, nftFault ? report('nftables', nftFault.text) : ok('nftables', 'works')];
}

/** The settings that {@link settingChecks} reads depend on the pools and the interfaces. */
export function settingsRequirements({ pools, routes }: Pick<PreflightFacts, 'pools' | 'routes'>) {
  const requirements: SettingsRequirements = {
    families: FAMILIES.filter((family) => pools.some(({ cidr }) => cidr.family === family)),
    parents: { 4: uplinkOf(routes, 4), 6: uplinkOf(routes, 6) },
    tunnels: [],
    unfiltered: [],
  };
  return requirements;
}

/** Interface of the default route. */
function uplinkOf(routes: readonly KernelRoute[], family: Family): string | undefined {
  const destination = family === 4 ? '0.0.0.0/0' : '::/0';
  return routes.filter((route) => route.destination === destination).toSorted((a, b) => a.metric - b.metric)[0]?.device;
}

function settingChecks(facts: PreflightFacts): Check[] {
  const value = (key: readonly string[]) => facts.sysctls.get(textOf(key)) ?? null;
  const { conditions, repairs } = evaluateSettings(settingsRequirements(facts), value);
  const repaired = repairs.map(({ key }) => textOf(key)).join(', ');
  const faults = conditions.map(({ message }) => failed('sysctls', message));
  return orOk(faults, 'sysctls', repaired === '' ? 'as pods need them' : `podwire-node sets ${repaired}`);
}

function directoryChecks({ runtime, installation, varRunTarget }: PreflightFacts): Check[] {
  const { binDirectory, configDirectory } = installation;
  const isLink = ['/run', '../run', 'run'].includes(varRunTarget ?? '');
  const link = failed('/var/run', 'no link to /run, where runtimes mount namespaces, so ADD fails; make it a link');
  const unknown = `no readable configuration; its directories must be ${binDirectory} and ${configDirectory}`;
  return [
    ...(runtime ? runtimeChecks(runtime, installation) : [warning('runtime', unknown)]),
    ...(isLink ? [] : [link]),
  ];
}

function runtimeChecks(runtime: RuntimeDirectories, { binDirectory, configDirectory }: Installation): Check[] {
  const { file } = runtime;
  const compare = (has: readonly string[], own: string, remedy: string) =>
    has.includes(own) ? [] : [failed('runtime', `${file} names ${has.join(', ')}, not ${own}; set ${remedy}`)];
  const faults = [
    ...compare(runtime.binDirectories, binDirectory, 'cni.binDirectory (CNI_BIN_DIR)'),
    ...compare([runtime.configDirectory], configDirectory, 'cni.configDirectory (CNI_NET_DIR)'),
  ];
  return orOk(faults, 'runtime', `${file}: ${runtime.binDirectories.join(', ')} and ${runtime.configDirectory}`);
}

function programChecks({ chain, chainVersions, runtime, installation }: PreflightFacts): Check[] {
  const needed = new Map(chainVersions);
  if (runtime?.usesInternalLoopback) needed.delete(LOOPBACK);
  const faults = programFaults(chain, needed, installation.binDirectory);
  const unsupported = formatUnsupportedVersions(unsupportedVersions(chain, needed));
  if (unsupported !== '') faults.push(`the chain offers other CNI versions (${unsupported}): run "podwire install"`);
  const detail = [...needed.keys()].join(', ') || 'the runtime has its own loopback';
  return orOk(
    faults.map((fault) => failed('programs', fault)),
    'programs',
    detail,
  );
}

function configurationChecks({ configFiles, installation: { configName } }: PreflightFacts): Check[] {
  const checks = configFiles.flatMap((file) => {
    const report = file.name < configName ? failed : warning;
    return conflictWarnings([file], configName).map((text) => report('configurations', text));
  });
  return orOk(checks, 'configurations', `nothing precedes ${configName}`);
}

function firewallChecks(facts: PreflightFacts): Check[] {
  const { chains, nftFault, legacyTables, pools, routes } = facts;
  const uplink = (family: Family) => uplinkOf(routes, family);
  const peerInterface = ({ encapsulation, cidr }: ClusterPool) => {
    if (encapsulation === 'none') return uplink(cidr.family);
    return encapsulation.startsWith('vxlan') ? VXLAN_DEVICE[cidr.family] : IPIP_DEVICE;
  };
  const nodeAddress = (family: Family) => {
    const own = facts.addresses.filter(({ device }) => device === uplink(family));
    return own.map(({ address }) => splitCidr(address)?.address).find((each) => each?.family === family);
  };
  const checks = chains.flatMap(({ chain, ruleset }) => {
    const drop = dropCondition(chain, ruleset, { pools, peerInterface, uplink, nodeAddress });
    if (!drop) return [];
    const isAccepted = isIptables(chain.table) && chain.name === IPTABLES.chain;
    const note = ', as podwire-node does at its start unless PODWIRE_NODE_FIREWALL_ACCEPT=false';
    return [isAccepted ? warning('firewall', `${drop.message}${note}`) : failed('firewall', drop.message)];
  });
  const legacy = 'iptables-legacy has a filter, which Podwire cannot read; see "iptables-legacy -S FORWARD"';
  const ports = 'is active: it must accept UDP 4789 (VXLAN) or IPIP of other nodes, and TCP 9650';
  return [
    ...(nftFault ? [] : orOk(checks, 'firewall', 'no chain of nftables drops packets of pods')),
    ...(legacyTables.includes('filter') ? [warning('firewall', legacy)] : []),
    ...activeFirewalls(facts).map((name) => warning('firewall', `${name} ${ports}`)),
  ];
}

/** Firewalls that filter packets to the node itself. */
function activeFirewalls({ chains }: PreflightFacts): string[] {
  const hasUfw = chains.some(({ ruleset }) => ruleset.has('ufw-before-forward') || ruleset.has('ufw6-before-forward'));
  const hasFirewalld = chains.some(({ chain }) => chain.table.name === 'firewalld');
  return [...(hasUfw ? ['ufw'] : []), ...(hasFirewalld ? ['firewalld'] : [])];
}

/** Least MTU of a link for IPv6, in bytes (RFC 8200, section 5). */
const IPV6_MIN_MTU_BYTES = 1280;

function mtuCheck({ devices, pools }: PreflightFacts): Check {
  const { default: names, schema } = DATAPLANE_SETTINGS.mtuInterfaces;
  const patterns = schema.parse(names);
  const { mtuBytes, interfaceName, overheadBytes } = detectMtu(devices, patterns, maxOverheadBytes(pools));
  const detail = `pods get ${mtuBytes} bytes (${interfaceName}, minus ${overheadBytes})`;
  if (interfaceName === undefined)
    return warning('mtu', `no interface is named ${names}; set PODWIRE_NODE_MTU_INTERFACES`);
  const isTooSmall = mtuBytes < IPV6_MIN_MTU_BYTES && pools.some(({ cidr }) => cidr.family === 6);
  return isTooSmall
    ? failed('mtu', `${detail}, but IPv6 needs ${IPV6_MIN_MTU_BYTES}; raise the MTU of ${interfaceName}`)
    : ok('mtu', detail);
}

/** Interfaces of Calico, which may use the same pools. */
const CALICO_DEVICES = /^(cali|tunl0$|vxlan(-v6)?\.calico$|wireguard\.cali)/;

function rangeChecks({ pools, routes, addresses }: PreflightFacts): Check[] {
  const isOther = ({ device = '' }: Pick<KernelRoute, 'device'>) =>
    !TUNNEL_DEVICES.includes(device) && !CALICO_DEVICES.test(device);
  const foreignRoutes = routes.filter((route) => route.protocol !== NODE_ROUTE_PROTOCOL && isOther(route));
  const ranges = [
    ...foreignRoutes.map(({ destination, device }) => ({ cidr: destination, kind: 'route to', device })),
    ...addresses.filter(isOther).map(({ address, device }) => ({ cidr: address, kind: 'address', device })),
  ].flatMap(({ cidr, kind, device }) => {
    const parts = splitCidr(cidr);
    if (!parts || parts.length === 0) return [];
    const prefix = kind === 'address' ? hostPrefix(parts.address) : prefixOf(parts.address, parts.length);
    return [{ prefix, text: `${kind} ${cidr}${device === undefined ? '' : ` by ${device}`}` }];
  });
  return pools.map(({ name, cidr }) => {
    const overlaps = ranges.filter(({ prefix }) => prefixesOverlap(prefix, cidr)).map(({ text }) => text);
    const pool = name === formatPrefix(cidr) ? name : `${name} (${formatPrefix(cidr)})`;
    if (overlaps.length === 0) return ok('ranges', `pool ${pool} is free on this node`);
    return failed('ranges', `pool ${pool} overlaps with the ${formatList(overlaps)}; choose another range`);
  });
}

function clockCheck({ isClockSynchronized }: PreflightFacts): Check {
  if (isClockSynchronized === true) return ok('clock', 'synchronized');
  const state = isClockSynchronized === false ? 'not synchronized' : 'unknown state';
  return warning('clock', `${state}, and certificates need the time; run chrony or systemd-timesyncd`);
}
