import { readFile, readdir, readlink } from 'node:fs/promises';
import { release } from 'node:os';
import { join } from 'node:path';

import type { ClusterPool } from '@podwire/dataplane/cluster/cluster';
import { SKIPPED_TABLES } from '@podwire/dataplane/filters/forward-drop';
import { hostPortTable } from '@podwire/dataplane/filters/host-ports';
import { NodeNetlinkKernel } from '@podwire/dataplane/kernel/node-kernel';
import { NodeMonitor } from '@podwire/dataplane/kernel/node-monitor';
import { NetlinkKernel } from '@podwire/dataplane/kernel/pod-kernel';
import { ProgramNft } from '@podwire/dataplane/nft/nft-program';
import { Ruleset } from '@podwire/dataplane/nft/ruleset';
import { replacement } from '@podwire/dataplane/nft/table';
import { readPool } from '@podwire/dataplane/node/messages';
import { settingKeys, textOf } from '@podwire/dataplane/node/sysctls';
import { clockSynchronized } from '@podwire/netlink/clock';
import { isLoaded, readConflist } from '@podwire/plugin/install/conflist';
import type { Pool } from '@podwire/proto/podwire/ipam/v1/pool';
import { readChainVersions } from '@podwire/shared/chain/chain-versions';
import { programVersions } from '@podwire/shared/chain/program-versions';
import { Failure } from '@podwire/shared/failure/failure';
import type { Clock } from '@podwire/shared/runtime/clock';

import {
  preflightChecks,
  settingsRequirements,
  type Check,
  type Installation,
  type PreflightFacts,
  type Support,
} from './checks.js';
import { readRuntimeConfig } from './runtime-config.js';

export interface PreflightOptions {
  /** Where the node's file system is seen: `/`, or a mount of it. */
  readonly root: string;
  readonly pools: readonly Pool[];
  readonly installation: Installation;
  readonly clock: Clock;
}

/** Checks the node of this process: its network namespace, its kernel, and the files below the root. Changes nothing. */
export async function preflight(options: PreflightOptions): Promise<readonly Check[]> {
  return preflightChecks(await readFacts(options));
}

async function readFacts({ root, pools: protoPools, installation, clock }: PreflightOptions): Promise<PreflightFacts> {
  const pools = protoPools.map(readPool).filter(({ loadBalancerOnly }) => !loadBalancerOnly);
  const { configDirectory, binDirectory, configName } = installation;
  const configFiles = await readConfigFiles(join(root, configDirectory));
  const own = configFiles.find(({ name }) => name === configName)?.content;
  const chain = own?.kind === 'ours' ? own.conflist : { plugins: [] };
  const run = (path: string) => programVersions(path, clock);
  return {
    kernelRelease: release(),
    ...(await readKernel(root, pools)),
    ...(await readFirewalls()),
    installation,
    runtime: readRuntimeConfig(await readRuntimeFiles(root)),
    varRunTarget: await readlink(join(root, '/var/run')).catch(() => undefined),
    chain,
    chainVersions: await readChainVersions(chain, join(root, binDirectory), run),
    configFiles,
    pools,
    isClockSynchronized: attempt(clockSynchronized),
  };
}

async function readKernel(root: string, pools: readonly ClusterPool[]) {
  const kernel = await NodeNetlinkKernel.open(new NodeMonitor());
  const podKernel = await NetlinkKernel.open();
  try {
    const { devices, addresses, routes } = await kernel.observe({ sysctls: [], isWanted: () => true });
    const files = await readModuleFiles(root);
    const abilities = await kernel.abilities().catch(ifRefused);
    const hasVeth = await podKernel.probe().then(() => true, isUnsupported);
    const supportOf = (name: string, works: boolean | undefined): readonly [string, Support] => [
      name,
      works === undefined ? files(name) : works ? 'works' : 'missing',
    ];
    const keys = settingKeys(settingsRequirements({ pools, routes }));
    const values = await Promise.all(keys.map((key) => textIn(join('/proc/sys', ...key))));
    return {
      modules: new Map([
        supportOf('veth', hasVeth),
        supportOf('vxlan', abilities?.hasVxlan),
        supportOf('ipip', abilities?.hasIpip),
        supportOf('sch_tbf', undefined),
      ]),
      devices: [...devices.values()],
      addresses: addresses.filter(({ device }) => devices.has(device)),
      routes,
      sysctls: new Map(keys.flatMap((key, at) => (values[at] === undefined ? [] : [[textOf(key), values[at].trim()]]))),
    };
  } finally {
    await Promise.all([kernel.close(), podKernel.close()]);
  }
}

/** The kernel refused to answer, mostly for lack of a capability. */
function ifRefused(error: unknown): undefined {
  if (!(error instanceof Failure)) throw error;
}

/** @returns false for a missing feature; undefined as {@link ifRefused} */
function isUnsupported(error: unknown): false | undefined {
  ifRefused(error);
  return error instanceof Failure && error.code === 'KERNEL_UNSUPPORTED' ? false : undefined;
}

/** Support of a module by the node's files: loaded, built in, or loadable. */
async function readModuleFiles(root: string): Promise<(name: string) => Support> {
  const directory = join(root, '/lib/modules', release());
  const [loaded = '', builtIn, loadable] = await Promise.all(
    ['/proc/modules', join(directory, 'modules.builtin'), join(directory, 'modules.dep')].map(textIn),
  );
  return (name) => {
    const file = new RegExp(`/${name}\\.ko(\\.\\w+)?(:|$)`, 'm');
    if (new RegExp(`^${name} `, 'm').test(loaded) || file.test(builtIn ?? '')) return 'works';
    if (file.test(loadable ?? '')) return 'loadable';
    return builtIn === undefined || loadable === undefined ? 'unknown' : 'missing';
  };
}

/** A table with each kind of rule that pods need: translation of addresses, masquerading, lookups of routes. */
const NFT_PROBE = replacement({ ...hostPortTable(new Map()), name: 'podwire_preflight' });

async function readFirewalls() {
  const nft = new ProgramNft();
  const legacy = await Promise.all(
    ['ip_tables_names', 'ip6_tables_names'].map((name) => textIn(join('/proc/net', name))),
  );
  const legacyTables = [...new Set(legacy.flatMap((names = '') => names.split('\n').filter((name) => name !== '')))];
  try {
    await nft.check(NFT_PROBE);
    const chains = (await nft.forwardChains()).filter(({ table }) => !SKIPPED_TABLES.includes(table.name));
    const read = await Promise.all(chains.map(async (chain) => ({ chain, objects: await nft.read(chain.table) })));
    const rulesets = read.map(({ chain, objects = [] }) => ({ chain, ruleset: new Ruleset(objects) }));
    return { nftFault: undefined, chains: rulesets, legacyTables };
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    const { code, message } = error;
    const isMissing = code === 'KERNEL_UNSUPPORTED';
    const text = isMissing ? message : `${message}; run as root, with CAP_NET_ADMIN and a writable /tmp`;
    return { nftFault: { text, isMissing }, chains: [], legacyTables };
  }
}

/** Configurations of containerd and of CRI-O, and the folders of files that are merged into them. */
const RUNTIME_FILES = ['/etc/containerd/config.toml', '/etc/crio/crio.conf'];
const RUNTIME_FOLDERS = ['/etc/containerd/conf.d', '/etc/crio/crio.conf.d'];

async function readRuntimeFiles(root: string) {
  const folders = await Promise.all(
    RUNTIME_FOLDERS.map(async (folder) => (await namesIn(join(root, folder))).map((name) => join(folder, name))),
  );
  const running = await runningConfigs(root);
  const paths = running.length > 0 ? running : [...RUNTIME_FILES, ...folders.flat()];
  const texts = await Promise.all(paths.map((path) => textIn(join(root, path))));
  return paths.flatMap((path, at) => (texts[at] === undefined ? [] : [{ path, text: texts[at] }]));
}

/** Configurations that running runtimes were started with: k3s has its own. */
async function runningConfigs(root: string): Promise<readonly string[]> {
  const processes = (await namesIn(join(root, 'proc'))).filter((name) => /^\d+$/.test(name));
  const lines = await Promise.all(processes.map((id) => textIn(join(root, 'proc', id, 'cmdline'))));
  return lines.flatMap((line = '') => {
    const [, path] = /^(?:\S*\/)?(?:containerd|crio)\0(?:.*\0)?(?:-c\0|--config[=\0])([^\0]+)\0/s.exec(line) ?? [];
    return path ?? [];
  });
}

async function readConfigFiles(directory: string) {
  const names = (await namesIn(directory)).filter(isLoaded);
  return Promise.all(
    names.map(async (name) => ({ name, content: readConflist((await textIn(join(directory, name))) ?? '') })),
  );
}

async function namesIn(directory: string): Promise<readonly string[]> {
  return (await readdir(directory).catch(() => [])).sort();
}

function textIn(path: string): Promise<string | undefined> {
  return readFile(path, 'utf8').catch(() => undefined);
}

function attempt<Value>(read: () => Value): Value | undefined {
  try {
    return read();
  } catch {
    return undefined;
  }
}
