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

export const DRAIN = flag(
  '--drain',
  'ippools: stop allocation, and delete the pool when its last address is released. Irreversible',
);
export const RELEASE_ADDRESSES = flag(
  '--release-addresses',
  'ippools: release all addresses of the pool; refused while pods of nodes that run have some',
);

export const IN_USE = flag('--in-use', 'affinities: also of a block with addresses in use, which then has no owner');

export const SEARCH_ALL_BLOCKS = flag(
  '--search-all-blocks',
  'handles: search every block, for addresses whose handle record was lost',
);

/** Flags of deletions. Kinds share them. */
export const DELETION_FLAGS = [DRAIN, RELEASE_ADDRESSES, FORCE, IN_USE, SEARCH_ALL_BLOCKS];
