import { INVALID_USAGE, type Report } from '../output/report.js';
import { text } from './forms.js';
import { flag, option } from './verb.js';

/** Selects another node than the one that podwirectl runs on. */
export const ON_NODE = option(
  '--node',
  text('NAME'),
  'call this node through podwire-ipam, which permits it to operators (the node that podwirectl runs on)',
);

export const YES = flag('--yes', 'execute without a question; without it, a preview is shown, and a terminal is asked');

export const FORCE = flag(
  '--force',
  'ask the nodes that run instead of refusing: addresses of their pods are kept, the rest is released',
);

/** Default timeout of a command with {@link FORCE}: podwire-ipam waits for the nodes for 15 s. */
export const FORCED_TIMEOUT_MS = 30_000;

/**
 * The report of a change without `--yes`. On a terminal the change is executed once the operator confirms it.
 * @param command - executes exactly the preview, once `--yes` is added
 */
export function previewReport(
  preview: Omit<Report, 'exitCode' | 'confirmation'>,
  command: string,
  execute: () => Promise<Report>,
): Report {
  const confirmation = { command: `${command} ${YES.name}`, execute };
  return { ...preview, confirmation, exitCode: INVALID_USAGE };
}

/** Rejects a change of an object that was modified since it was read. */
export const RESOURCE_VERSION = option(
  '--resource-version',
  text('VERSION'),
  'only if the object still has this version, as "get -o yaml" prints it',
);
