import { join } from 'node:path';
import { isDeepStrictEqual } from 'node:util';

import { readChainVersions } from '@podwire/shared/chain/chain-versions';
import {
  unsupportedVersions,
  formatUnsupportedVersions,
  removeUnsupportedVersions,
  programFaults,
  type ChainVersions,
} from '@podwire/shared/chain/chain';

import type { Scope } from './command-line.js';
import {
  BINARY_MODE,
  isLoaded,
  isShim,
  mergeConflists,
  readConflist,
  conflictWarnings,
  type Conflist,
} from './conflist.js';
import type { Disk, PathState } from './disk.js';
import type { ShimRunner } from './shim-runner.js';
import type { InstallSpec } from './spec.js';

/**
 * How a path differs from the installation's spec:
 * - absent: the path does not exist
 * - broken: an unusable file: a damaged program, or an invalid network configuration
 * - foreign: not Podwire's
 * - different: Podwire's, but of another release, with other settings, or edited
 */
export type Difference = 'absent' | 'broken' | 'foreign' | 'different';

export interface Finding {
  readonly path: string;
  readonly difference: Difference;
  /** Human-readable; follows the path in a sentence. */
  readonly text: string;
}

export interface InspectOptions {
  readonly disk: Disk;
  readonly runner: ShimRunner;
  readonly scope: Scope;
}

/** Compares the installed files with the spec. Read-only. */
export async function inspect(spec: InstallSpec, { disk, runner, scope }: InspectOptions): Promise<readonly Finding[]> {
  const findings: Finding[] = [];
  for (const name of spec.binaries) {
    const path = join(spec.binaryDirectory, name);
    const found = await binaryFinding(spec, { path, state: await disk.inspect(path), runner });
    if (found !== undefined) findings.push({ path, ...found });
  }
  for (const { name } of spec.programs) {
    const path = join(spec.binaryDirectory, name);
    if ((await disk.inspect(path)).kind === 'absent') findings.push({ path, difference: 'absent', text: 'is missing' });
  }
  if (scope === 'binaries') return findings;
  const path = conflistPath(spec);
  const found = await conflistFinding(spec, await disk.inspect(path), runner);
  return found === undefined ? findings : [...findings, { path, ...found }];
}

type Found = Omit<Finding, 'path'>;

interface Binary {
  readonly path: string;
  readonly state: PathState;
  readonly runner: ShimRunner;
}

async function binaryFinding(spec: InstallSpec, { path, state, runner }: Binary): Promise<Found | undefined> {
  if (state.kind === 'absent') return { difference: 'absent', text: 'is missing' };
  const bytes = bytesOf(state);
  if (bytes === undefined) return { difference: 'foreign', text: 'is not a file' };
  if (!bytes.equals(spec.shim)) {
    // Run only necessary steps: a running program cannot be overwritten (ETXTBSY).
    const isRunnable = await runner.version(path).then(
      () => true,
      () => false,
    );
    if (!isShim(bytes)) return { difference: isRunnable ? 'foreign' : 'broken', text: 'is not Podwire’s' };
    // A truncated shim may have the mark too.
    if (!isRunnable) return { difference: 'broken', text: 'is damaged or not executable' };
    return spec.updatesBinaries ? { difference: 'different', text: 'is of another release' } : undefined;
  }
  return state.kind === 'file' && state.mode === BINARY_MODE
    ? undefined
    : { difference: 'different', text: 'has other permissions or is a link' };
}

async function conflistFinding(spec: InstallSpec, state: PathState, runner: ShimRunner): Promise<Found | undefined> {
  if (state.kind === 'absent') return { difference: 'absent', text: 'is missing' };
  const bytes = bytesOf(state);
  if (bytes === undefined) return { difference: 'foreign', text: 'is not a file' };
  const content = readConflist(bytes.toString());
  switch (content.kind) {
    case 'unreadable':
      return { difference: 'broken', text: 'is not a network configuration' };
    case 'foreign':
      return { difference: 'foreign', text: `is not Podwire’s: it has plugins of type ${content.types.join(', ')}` };
    case 'ours':
      break;
  }
  const complete = mergeConflists(spec.conflist, content.conflist);
  const versions = await versionsOf(complete, spec, runner);
  const unsupported = unsupportedVersions(content.conflist, versions);
  const expected = removeUnsupportedVersions(complete, versions);
  if (unsupported.length > 0 && unsupportedVersions(expected, versions).length === 0) {
    const text = `offers versions of CNI that its chain does not support: ${formatUnsupportedVersions(unsupported)}`;
    return { difference: 'different', text };
  }
  if (!isDeepStrictEqual(withoutUndefined(expected), withoutUndefined(content.conflist))) {
    return { difference: 'different', text: 'differs from the configuration of this release and these settings' };
  }
  return state.kind === 'file' && state.mode === spec.conflistMode
    ? undefined
    : { difference: 'different', text: 'has other permissions or is a link' };
}

/** Supported CNI versions of the chain's programs in the runtime's directory. */
export function versionsOf(
  conflist: Conflist,
  { binaryDirectory }: Pick<InstallSpec, 'binaryDirectory'>,
  runner: Pick<ShimRunner, 'versions'>,
): Promise<ChainVersions> {
  return readChainVersions(conflist, binaryDirectory, (path) => runner.versions(path));
}

/** Drops undefined keys, as they are not written. */
function withoutUndefined(conflist: Conflist): unknown {
  return JSON.parse(JSON.stringify(conflist));
}

/** Content of a file or of a link's target. */
export function bytesOf(state: PathState): Buffer | undefined {
  return state.kind === 'file' || state.kind === 'link' ? state.bytes : undefined;
}

export function conflistPath({ configDirectory, conflistName }: InstallSpec): string {
  return join(configDirectory, conflistName);
}

export interface InspectDeps {
  readonly disk: Disk;
  readonly runner: Pick<ShimRunner, 'versions'>;
}

/** Problems outside Podwire's files: other network configurations and the programs of the chain. */
export interface EnvironmentFindings {
  /** May be intended. */
  readonly warnings: readonly string[];
  /** Make every pod fail; Podwire cannot repair them. */
  readonly faults: readonly string[];
}

/** Inspects other network configurations and the programs that the chain needs. */
export async function inspectEnvironment(
  spec: InstallSpec,
  { disk, runner }: InspectDeps,
): Promise<EnvironmentFindings> {
  const { configDirectory, conflistName, binaryDirectory } = spec;
  const names = (await disk.list(configDirectory)).filter(isLoaded);
  const files = await Promise.all(
    names.map(async (name) => {
      const bytes = bytesOf(await disk.inspect(join(configDirectory, name)));
      return { name, content: readConflist(bytes?.toString() ?? '') };
    }),
  );
  const ours = files.find(({ name }) => name === conflistName)?.content;
  const chain = ours?.kind === 'ours' ? mergeConflists(spec.conflist, ours.conflist) : spec.conflist;
  const versions = await versionsOf(chain, spec, runner);
  const unsupported = unsupportedVersions(chain, versions);
  const versionWarnings = unsupported.length === 0 ? [] : [versionWarning(chain, versions, spec)];
  return {
    warnings: [...conflictWarnings(files, conflistName), ...versionWarnings],
    faults: programFaults(chain, versions, binaryDirectory),
  };
}

/** All findings of {@link inspectEnvironment}, for the log. */
export async function warningsOf(spec: InstallSpec, deps: InspectDeps): Promise<readonly string[]> {
  const { warnings, faults } = await inspectEnvironment(spec, deps);
  return [...warnings, ...faults];
}

function versionWarning(
  chain: Conflist,
  versions: ChainVersions,
  { conflistName, binaryDirectory }: InstallSpec,
): string {
  const unsupported = formatUnsupportedVersions(unsupportedVersions(chain, versions));
  const isAvoidable = unsupportedVersions(removeUnsupportedVersions(chain, versions), versions).length === 0;
  if (isAvoidable)
    return `${conflistName} does not offer all versions of CNI: ${unsupported}; put a newer program into ${binaryDirectory} and install again`;
  return `no version of CNI that ${conflistName} offers is supported by its whole chain: ${unsupported}; put newer programs into ${binaryDirectory}, or pods fail`;
}
