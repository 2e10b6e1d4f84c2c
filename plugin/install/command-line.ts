/** The parsed command of `podwire`. */
export type Command =
  | { readonly name: 'help' }
  | { readonly name: 'version' }
  | { readonly name: 'invalid'; readonly reason: string }
  | { readonly name: 'install'; readonly scope: Scope; readonly replaces: boolean; readonly waits: boolean }
  | { readonly name: 'uninstall'; readonly scope: Scope }
  | { readonly name: 'check-install'; readonly scope: Scope };

/** Whether a command covers the programs only, or also the network configuration. */
export type Scope = 'all' | 'binaries';

export const USAGE = `usage: podwire COMMAND [OPTIONS]

  install            install the CNI programs, then the network configuration
      --binaries-only  install only the programs, as an init container does before the plugin runs
      --no-wait        write the configuration without waiting until the plugin answers STATUS
      --replace        replace files that are not Podwire's, and existing programs by programs of
                       PODWIRE_INSTALL_PROGRAMS
  check-install      compare the installed files with this release and its settings; read-only
      --binaries-only
  uninstall          remove the network configuration, then the programs; keep files that are not Podwire's
      --binaries-only
  --help, --version

exit codes: 0 success, 1 failure or difference (the reason is on the standard error), 2 invalid arguments
`;

const OPTIONS: Readonly<Record<string, readonly string[]>> = {
  install: ['--binaries-only', '--no-wait', '--replace'],
  uninstall: ['--binaries-only'],
  'check-install': ['--binaries-only'],
};

/** @param args - arguments without the program's name */
export function parseCommandLine(args: readonly string[]): Command {
  const [name, ...options] = args;
  if (args.some((arg) => arg === '--help' || arg === '-h')) return { name: 'help' };
  if (name === '--version' && options.length === 0) return { name: 'version' };
  if (name === undefined) return { name: 'invalid', reason: 'the command is missing' };
  const known = Object.hasOwn(OPTIONS, name) ? OPTIONS[name] : undefined;
  if (known === undefined) return { name: 'invalid', reason: `unknown command "${name}"` };
  const unknown = options.find((option) => !known.includes(option));
  if (unknown !== undefined) return { name: 'invalid', reason: `unknown option "${unknown}" of "${name}"` };
  const has = (option: string): boolean => options.includes(option);
  const scope = has('--binaries-only') ? 'binaries' : 'all';
  if (name === 'install') return { name, scope, replaces: has('--replace'), waits: !has('--no-wait') };
  return name === 'uninstall' ? { name, scope } : { name: 'check-install', scope };
}
