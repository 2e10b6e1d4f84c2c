/** What podwire-ipam was told to do. */
export type Command =
  | { readonly name: 'serve' }
  | { readonly name: 'help' }
  | { readonly name: 'version' }
  | { readonly name: 'wrong'; readonly reason: string }
  | ExportCommand
  | ImportCommand;

export interface ExportCommand {
  readonly name: 'export';
  /** Undefined for the standard output. */
  readonly file: string | undefined;
}

export interface ImportCommand {
  readonly name: 'import';
  readonly file: string;
  readonly dryRun: boolean;
  readonly merge: boolean;
  readonly rewritePrefix: boolean;
}

export const USAGE = `usage: podwire-ipam [COMMAND]

  (none)                serve gRPC
  export [FILE]         write every record of the datastore to FILE, or to the standard output
  import FILE           bring the records of an export into an empty datastore
      --dry-run         check everything, and write nothing
      --merge           into a datastore that has records; refused when one of the file's differs from one of its
      --rewrite-prefix  also when the file's keys begin with another prefix than the datastore's
  --help, --version

The datastore is the one that the PODWIRE_IPAM_STORE… and PODWIRE_IPAM_ETCD_… variables name. The embedded one can be exported and imported while no
podwire-ipam serves it; etcd can be exported at any time, and imported while no replica serves it.

exit codes: 0 done, 1 failed (the reason is on the standard error), 2 not understood
`;

/** @param args - what stands behind the program's name */
export function parseCommandLine(args: readonly string[]): Command {
  const [name, ...rest] = args;
  if (args.some((arg) => arg === '--help' || arg === '-h')) return { name: 'help' };
  if (name === undefined || (name === 'serve' && rest.length === 0)) return { name: 'serve' };
  if (name === '--version' && rest.length === 0) return { name: 'version' };
  if (name !== 'export' && name !== 'import') return { name: 'wrong', reason: `there is no command "${name}"` };
  const options = new Set(rest.filter((arg) => arg.startsWith('-')));
  const files = rest.filter((arg) => !arg.startsWith('-'));
  const known = name === 'import' ? ['--dry-run', '--merge', '--rewrite-prefix'] : [];
  const unknown = [...options].find((option) => !known.includes(option));
  if (unknown !== undefined) return { name: 'wrong', reason: `"${name}" has no option "${unknown}"` };
  const [file, ...more] = files;
  if (more.length > 0) return { name: 'wrong', reason: `"${name}" takes one file, and there are ${files.length}` };
  if (name === 'export') return { name, file };
  if (file === undefined) return { name: 'wrong', reason: '"import" needs the file to import' };
  const has = (option: string): boolean => options.has(option);
  return {
    name,
    file,
    dryRun: has('--dry-run'),
    merge: has('--merge'),
    rewritePrefix: has('--rewrite-prefix'),
  };
}
