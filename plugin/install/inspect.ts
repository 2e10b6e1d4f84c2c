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
import { BINARY_MODE, isLoaded, isShim, merged, readConflist, rivalWarnings, type Conflist } from './conflist.js';
import type { Disk, Standing } from './disk.js';
import type { ShimRunner } from './shim-runner.js';
import type { Wanted } from './wanted.js';

/**
 * How a path differs from what is wanted there:
 * - absent: nothing is there;
 * - broken: what is there cannot be used by anybody: a damaged program, a configuration that is not one;
 * - foreign: something that is not Podwire's;
 * - different: Podwire's, of another release, with other settings, or edited.
 */
export type Difference = 'absent' | 'broken' | 'foreign' | 'different';

export interface Finding {
  readonly path: string;
  readonly difference: Difference;
  /** For people: what is there. */
  readonly text: string;
}

export interface InspectOptions {
  readonly disk: Disk;
  readonly runner: ShimRunner;
  readonly scope: Scope;
}

/** Compares what is there with what is wanted. Nothing is changed. */
export async function inspect(wanted: Wanted, { disk, runner, scope }: InspectOptions): Promise<readonly Finding[]> {
  const findings: Finding[] = [];
  for (const name of wanted.binaries) {
    const path = join(wanted.binaryDirectory, name);
    const found = await binaryFinding(wanted, { path, standing: await disk.look(path), runner });
    if (found !== undefined) findings.push({ path, ...found });
  }
  for (const { name } of wanted.programs) {
    const path = join(wanted.binaryDirectory, name);
    if ((await disk.look(path)).kind === 'absent') findings.push({ path, difference: 'absent', text: 'is missing' });
  }
  if (scope === 'binaries') return findings;
  const path = conflistPath(wanted);
  const found = await conflistFinding(wanted, await disk.look(path), runner);
  return found === undefined ? findings : [...findings, { path, ...found }];
}

type Found = Omit<Finding, 'path'>;

interface Binary {
  readonly path: string;
  readonly standing: Standing;
  readonly runner: ShimRunner;
}

async function binaryFinding(wanted: Wanted, { path, standing, runner }: Binary): Promise<Found | undefined> {
  if (standing.kind === 'absent') return { difference: 'absent', text: 'is missing' };
  const bytes = bytesOf(standing);
  if (bytes === undefined) return { difference: 'foreign', text: 'is no file' };
  if (!bytes.equals(wanted.shim)) {
    // Run only what is necessary: a running program cannot be overwritten (ETXTBSY).
    const isRunnable = await runner.version(path).then(
      () => true,
      () => false,
    );
    if (!isShim(bytes)) return { difference: isRunnable ? 'foreign' : 'broken', text: 'is not Podwire’s' };
    // A part of a shim may have its mark too.
    if (!isRunnable) return { difference: 'broken', text: 'is damaged, or may not be run' };
    return wanted.updatesBinaries ? { difference: 'different', text: 'is of another release' } : undefined;
  }
  return standing.kind === 'file' && standing.mode === BINARY_MODE
    ? undefined
    : { difference: 'different', text: 'has other permissions, or is a link' };
}

async function conflistFinding(wanted: Wanted, standing: Standing, runner: ShimRunner): Promise<Found | undefined> {
  if (standing.kind === 'absent') return { difference: 'absent', text: 'is missing' };
  const bytes = bytesOf(standing);
  if (bytes === undefined) return { difference: 'foreign', text: 'is no file' };
  const content = readConflist(bytes.toString());
  switch (content.kind) {
    case 'unreadable':
      return { difference: 'broken', text: 'is no network configuration' };
    case 'foreign':
      return { difference: 'foreign', text: `is not Podwire’s: it has plugins of type ${content.types.join(', ')}` };
    case 'ours':
      break;
  }
  const whole = merged(wanted.conflist, content.conflist);
  const versions = await versionsOf(whole, wanted, runner);
  const unsupported = unsupportedVersions(content.conflist, versions);
  const right = removeUnsupportedVersions(whole, versions);
  if (unsupported.length > 0 && unsupportedVersions(right, versions).length === 0) {
    const text = `offers versions of CNI that its chain does not support: ${formatUnsupportedVersions(unsupported)}`;
    return { difference: 'different', text };
  }
  if (!isDeepStrictEqual(plain(right), plain(content.conflist))) {
    return { difference: 'different', text: 'has other keys than this release and these settings give it' };
  }
  return standing.kind === 'file' && standing.mode === wanted.conflistMode
    ? undefined
    : { difference: 'different', text: 'has other permissions, or is a link' };
}

/** What the programs of a chain, as the runtime finds them, say of their versions. */
export function versionsOf(
  conflist: Conflist,
  { binaryDirectory }: Pick<Wanted, 'binaryDirectory'>,
  runner: Pick<ShimRunner, 'versions'>,
): Promise<ChainVersions> {
  return readChainVersions(conflist, binaryDirectory, (path) => runner.versions(path));
}

/** Without keys that are undefined: they are not written. */
function plain(conflist: Conflist): unknown {
  return JSON.parse(JSON.stringify(conflist));
}

/** What a file, or a link to one, holds. */
export function bytesOf(standing: Standing): Buffer | undefined {
  return standing.kind === 'file' || standing.kind === 'link' ? standing.bytes : undefined;
}

export function conflistPath({ configDirectory, conflistName }: Wanted): string {
  return join(configDirectory, conflistName);
}

export interface LookAround {
  readonly disk: Disk;
  readonly runner: Pick<ShimRunner, 'versions'>;
}

/** Findings about foreign files beside ours and about the programs of the chain. */
export interface Surroundings {
  /** What may be meant so. */
  readonly warnings: readonly string[];
  /** Reasons why every pod fails that Podwire cannot repair. */
  readonly faults: readonly string[];
}

/** Looks at what is not Podwire's: other network configurations, and the programs that the chain needs. */
export async function surroundingsOf(wanted: Wanted, { disk, runner }: LookAround): Promise<Surroundings> {
  const { configDirectory, conflistName, binaryDirectory } = wanted;
  const names = (await disk.list(configDirectory)).filter(isLoaded);
  const files = await Promise.all(
    names.map(async (name) => {
      const bytes = bytesOf(await disk.look(join(configDirectory, name)));
      return { name, content: readConflist(bytes?.toString() ?? '') };
    }),
  );
  const ours = files.find(({ name }) => name === conflistName)?.content;
  const chain = ours?.kind === 'ours' ? merged(wanted.conflist, ours.conflist) : wanted.conflist;
  const versions = await versionsOf(chain, wanted, runner);
  const unsupported = unsupportedVersions(chain, versions);
  const lacks = unsupported.length === 0 ? [] : [excessWarning(chain, versions, wanted)];
  return {
    warnings: [...rivalWarnings(files, conflistName), ...lacks],
    faults: programFaults(chain, versions, binaryDirectory),
  };
}

/** All that {@link surroundingsOf} finds, for the log. */
export async function warningsOf(wanted: Wanted, look: LookAround): Promise<readonly string[]> {
  const { warnings, faults } = await surroundingsOf(wanted, look);
  return [...warnings, ...faults];
}

function excessWarning(chain: Conflist, versions: ChainVersions, { conflistName, binaryDirectory }: Wanted): string {
  const lacks = formatUnsupportedVersions(unsupportedVersions(chain, versions));
  const isLeftOut = unsupportedVersions(removeUnsupportedVersions(chain, versions), versions).length === 0;
  if (isLeftOut)
    return `${conflistName} does not offer all versions of CNI: ${lacks}; put a newer one into ${binaryDirectory} and install again`;
  return `no version of CNI that ${conflistName} offers is supported by its whole chain: ${lacks}; put newer programs into ${binaryDirectory}, or pods fail`;
}
