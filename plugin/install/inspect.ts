import { join } from 'node:path';
import { isDeepStrictEqual } from 'node:util';

import type { Disk, Standing } from './disk.js';
import type { ShimRunner } from './shim-runner.js';
import type { Scope } from './command-line.js';
import { merged, readConflist, type Conflist } from './wanted/conflist.js';
import { isLoaded, rivalWarnings } from './wanted/rivals.js';
import { BINARY_MODE, isShim } from './wanted/shim-file.js';
import type { Wanted } from './wanted/wanted.js';

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
  if (scope === 'binaries') return findings;
  const path = conflistPath(wanted);
  const found = conflistFinding(wanted, await disk.look(path));
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
    // Nothing is run that needs not be: while a program runs, others cannot write to it.
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

function conflistFinding(wanted: Wanted, standing: Standing): Found | undefined {
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
  if (!isDeepStrictEqual(plain(merged(wanted.conflist, content.conflist)), plain(content.conflist))) {
    return { difference: 'different', text: 'has other keys than this release and these settings give it' };
  }
  return standing.kind === 'file' && standing.mode === wanted.conflistMode
    ? undefined
    : { difference: 'different', text: 'has other permissions, or is a link' };
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

/** What an operator has to know of others' files beside ours, and of programs that the chain needs. */
export async function warningsOf(wanted: Wanted, disk: Disk): Promise<readonly string[]> {
  const { configDirectory, conflistName } = wanted;
  const names = (await disk.list(configDirectory)).filter(isLoaded);
  const files = await Promise.all(
    names.map(async (name) => {
      const bytes = bytesOf(await disk.look(join(configDirectory, name)));
      return { name, content: readConflist(bytes?.toString() ?? '') };
    }),
  );
  const ours = files.find(({ name }) => name === conflistName)?.content;
  const chain = ours?.kind === 'ours' ? ours.conflist : wanted.conflist;
  const programs = new Set([...(await disk.list(wanted.binaryDirectory)), ...wanted.binaries]);
  const missing = [...new Set(chain.plugins.map(({ type }) => type))].filter((type) => !programs.has(type));
  return [
    ...rivalWarnings(files, conflistName),
    ...missing.map(
      (type) => `the chain has ${type}, and ${wanted.binaryDirectory} has no such program: install it, or pods fail`,
    ),
  ];
}
