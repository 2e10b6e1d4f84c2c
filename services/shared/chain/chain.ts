import type { ProgramVersions } from './program-versions.js';

/** Versions and programs of a network configuration list (CNI specification 1.1.0, section 1). */
export interface Chain {
  readonly cniVersion?: string | undefined;
  readonly cniVersions?: readonly string[] | undefined;
  readonly plugins: readonly ChainPlugin[];
}

export interface ChainPlugin {
  readonly type: string;
  readonly [key: string]: unknown;
}

/** The versions of each program of a chain, by name. */
export type ChainVersions = ReadonlyMap<string, ProgramVersions>;

/** Container runtimes run this program in each pod's namespace before the chain. No network configuration names it. */
export const LOOPBACK = 'loopback';

/** Names of Podwire as main plugin, and of its IPAM, which Podwire calls by gRPC and not as a program. */
const OWN_TYPES: readonly string[] = ['podwire', 'calico'];
const OWN_IPAM_TYPES: readonly string[] = ['podwire-ipam', 'calico-ipam'];

/** Names of the programs that a chain runs, including IPAM plugins, without duplicates. */
export function programsOf({ plugins }: Pick<Chain, 'plugins'>): readonly string[] {
  return [...new Set(plugins.flatMap((plugin) => [plugin.type, ...ipamProgramOf(plugin)]))];
}

function ipamProgramOf({ type, ipam }: ChainPlugin): string[] {
  const isNamed = typeof ipam === 'object' && ipam !== null && 'type' in ipam;
  if (!isNamed || typeof ipam.type !== 'string' || ipam.type === '') return [];
  return OWN_TYPES.includes(type) && OWN_IPAM_TYPES.includes(ipam.type) ? [] : [ipam.type];
}

/** A version that a chain offers to runtimes, and a program of the chain that does not support it. */
export interface UnsupportedVersion {
  readonly version: string;
  readonly program: string;
}

/** Versions that a chain offers and a program lacks. The runtime uses the highest offered version, and the program would refuse it. */
export function unsupportedVersions(chain: Chain, versions: ChainVersions): readonly UnsupportedVersion[] {
  const { cniVersion, cniVersions = [] } = chain;
  const offered = new Set([...cniVersions, ...(cniVersion === undefined ? [] : [cniVersion])]);
  return programsOf(chain).flatMap((program) => {
    const known = versions.get(program);
    if (known?.kind !== 'answered') return [];
    return [...offered].filter((version) => !known.versions.includes(version)).map((version) => ({ version, program }));
  });
}

/**
 * The chain without the versions that one of its programs lacks. Unchanged if the chain offers a single version, or no version
 * that all its programs support.
 */
export function removeUnsupportedVersions<Whole extends Chain>(chain: Whole, versions: ChainVersions): Whole {
  const unsupported = new Set(unsupportedVersions(chain, versions).map(({ version }) => version));
  const cniVersions = chain.cniVersions?.filter((version) => !unsupported.has(version)) ?? [];
  const highest = cniVersions.at(-1);
  if (unsupported.size === 0 || highest === undefined) return chain;
  const { cniVersion } = chain;
  return {
    ...chain,
    cniVersions,
    cniVersion: cniVersion === undefined || unsupported.has(cniVersion) ? highest : cniVersion,
  };
}

/** Text about unsupported versions; empty where there are none. */
export function formatUnsupportedVersions(unsupported: readonly UnsupportedVersion[]): string {
  const programs = [...new Set(unsupported.map(({ program }) => program))];
  const lacks = programs.map((program) => {
    const versions = unsupported.filter((each) => each.program === program).map(({ version }) => version);
    return `${program} lacks CNI ${versions.join(', ')}`;
  });
  return lacks.join('; ');
}

/** Faults with which pods fail: missing programs, and programs that do not answer VERSION. */
export function programFaults(chain: Pick<Chain, 'plugins'>, versions: ChainVersions, directory: string): string[] {
  const faults = programsOf(chain).flatMap((program) => {
    const known = versions.get(program);
    if (known?.kind === 'missing')
      return `program ${program} of the chain is missing in ${directory}: install it, or pods fail`;
    if (known?.kind === 'failed')
      return `${directory}/${program} does not answer VERSION like a CNI program (${known.reason}): replace it, or pods fail`;
    return [];
  });
  if (versions.get(LOOPBACK)?.kind !== 'missing') return faults;
  const loopback = `program ${LOOPBACK}, which container runtimes run for each pod (containerd unless use_internal_loopback is true), is missing in ${directory}: install it, or let PODWIRE_INSTALL_PROGRAMS name a directory that has it, or pods fail`;
  return [...faults, loopback];
}
