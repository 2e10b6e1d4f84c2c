import type { ProgramVersions } from './program-versions.js';

/** A network configuration list, as far as its versions and programs go (CNI specification 1.1.0, section 1). */
export interface Chain {
  readonly cniVersion?: string | undefined;
  readonly cniVersions?: readonly string[] | undefined;
  readonly plugins: readonly ChainPlugin[];
}

export interface ChainPlugin {
  readonly type: string;
  readonly [key: string]: unknown;
}

/** What each program of a chain says of its versions, by name. */
export type ChainVersions = ReadonlyMap<string, ProgramVersions>;

/** Program that a container runtime runs in each pod's namespace before the chain; no network configuration names it. */
export const LOOPBACK = 'loopback';

/** Names of the shim as the main plugin, and of Podwire's IPAM, which such a member asks for by gRPC and not as a program. */
const OWN_TYPES: readonly string[] = ['podwire', 'calico'];
const OWN_IPAM_TYPES: readonly string[] = ['podwire-ipam', 'calico-ipam'];

/** Names of the programs that are run for a chain, IPAM plugins included, each once. */
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

/** Versions that a chain offers and one of its programs lacks: a runtime takes the highest, and the program refuses it. */
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
 * The chain without the versions that one of its programs lacks. As it is where it offers a single version, or none that all of
 * its programs support.
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

/** For people: which versions which programs lack; empty where there is no excess. */
export function formatUnsupportedVersions(unsupported: readonly UnsupportedVersion[]): string {
  const programs = [...new Set(unsupported.map(({ program }) => program))];
  const lacks = programs.map((program) => {
    const versions = unsupported.filter((each) => each.program === program).map(({ version }) => version);
    return `${program} lacks CNI ${versions.join(', ')}`;
  });
  return lacks.join('; ');
}

/** Programs without which pods cannot be made: missing ones of the chain, and those that do not answer VERSION. */
export function programFaults(chain: Pick<Chain, 'plugins'>, versions: ChainVersions, directory: string): string[] {
  const faults = programsOf(chain).flatMap((program) => {
    const known = versions.get(program);
    if (known?.kind === 'missing')
      return `the chain has ${program}, and ${directory} has no such program: install it, or pods fail`;
    if (known?.kind === 'failed')
      return `${directory}/${program} does not answer VERSION as a CNI program does (${known.reason}): replace it, or pods fail`;
    return [];
  });
  if (versions.get(LOOPBACK)?.kind !== 'missing') return faults;
  const loopback = `${directory} has no program ${LOOPBACK}, which container runtimes run for each pod (containerd unless use_internal_loopback is true): install it, or pods fail`;
  return [...faults, loopback];
}
