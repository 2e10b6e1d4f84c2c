/** The parsed command of `podwire`. */
export type Command =
  | { readonly name: 'help' }
  | { readonly name: 'version' }
  | { readonly name: 'wrong'; readonly reason: string }
  | { readonly name: 'install'; readonly scope: Scope; readonly replaces: boolean; readonly waits: boolean }
  | { readonly name: 'uninstall'; readonly scope: Scope }
  | { readonly name: 'check-install'; readonly scope: Scope };

/** What a command is about: the programs alone, or the network configuration with them. */
export type Scope = 'all' | 'binaries';

export const USAGE = `usage: podwire COMMAND [OPTIONS]

  install            put the CNI programs and the network configuration in place, the configuration last
      --binaries-only  the programs alone, as an init container does before the plugin runs
      --no-wait        do not wait until the plugin answers STATUS before the configuration is written
      --replace        also put them in the place of files that are not Podwire's, and the programs of
                       PODWIRE_INSTALL_PROGRAMS in the place of those that are there
  check-install      compare what is there with what install would leave; changes nothing
      --binaries-only
  uninstall          remove the network configuration, then the programs; what is not Podwire's stays
      --binaries-only
  --help, --version

exit codes: 0 done, 1 failed or different (the reason is on the standard error), 2 not understood
`;

const OPTIONS: Readonly<Record<string, readonly string[]>> = {
  install: ['--binaries-only', '--no-wait', '--replace'],
  uninstall: ['--binaries-only'],
  'check-install': ['--binaries-only'],
};

/** @param args - what stands behind the program's name */
export function parseCommandLine(args: readonly string[]): Command {
  const [name, ...options] = args;
  if (args.some((arg) => arg === '--help' || arg === '-h')) return { name: 'help' };
  if (name === '--version' && options.length === 0) return { name: 'version' };
  if (name === undefined) return { name: 'wrong', reason: 'there is no command' };
  const known = Object.hasOwn(OPTIONS, name) ? OPTIONS[name] : undefined;
  if (known === undefined) return { name: 'wrong', reason: `there is no command "${name}"` };
  const unknown = options.find((option) => !known.includes(option));
  if (unknown !== undefined) return { name: 'wrong', reason: `"${name}" has no option "${unknown}"` };
  const has = (option: string): boolean => options.includes(option);
  const scope = has('--binaries-only') ? 'binaries' : 'all';
  if (name === 'install') return { name, scope, replaces: has('--replace'), waits: !has('--no-wait') };
  return name === 'uninstall' ? { name, scope } : { name: 'check-install', scope };
}
