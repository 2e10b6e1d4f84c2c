/** Directories that a container runtime reads, by its configuration. */
export interface RuntimeDirectories {
  /** The file that names them. */
  readonly file: string;
  readonly binDirectories: readonly string[];
  readonly configDirectory: string;
  /** Whether it sets up the loopback of pods without the program. */
  readonly usesInternalLoopback: boolean;
}

/** Sections with these directories: of containerd 1 and 2, and of CRI-O. */
const SECTION = /^(plugins\..*\.cni|crio\.network)$/;

const KEYS = ['bin_dir', 'bin_dirs', 'plugin_dirs', 'conf_dir', 'network_dir', 'use_internal_loopback'] as const;

/**
 * Reads the directories from files in TOML; later files go before earlier ones. Missing keys have the defaults of both runtimes.
 * @returns undefined without a file
 */
export function readRuntimeConfig(
  files: readonly { readonly path: string; readonly text: string }[],
): RuntimeDirectories | undefined {
  const [first] = files;
  if (!first) return undefined;
  const values = new Map(
    files.flatMap(({ path, text }) => entriesOf(text).map(([key, value]) => [key, { path, value }])),
  );
  const find = (...keys: string[]) => keys.map((key) => values.get(key)).find((found) => found?.value.includes('/'));
  const bin = find('bin_dirs', 'bin_dir', 'plugin_dirs');
  const conf = find('conf_dir', 'network_dir');
  return {
    file: bin?.path ?? conf?.path ?? first.path,
    binDirectories: bin ? stringsOf(bin.value) : ['/opt/cni/bin'],
    configDirectory: conf ? (stringsOf(conf.value)[0] ?? '') : '/etc/cni/net.d',
    usesInternalLoopback: values.get('use_internal_loopback')?.value === 'true',
  };
}

/** Keys of the sections with their raw values; an array may have several lines. */
function entriesOf(text: string): (readonly [key: string, value: string])[] {
  const entries: (readonly [string, string])[] = [];
  let section = '';
  const lines = text.replace(/^\s*#.*$/gm, '').replace(/\[[^[\]]*\]/g, (array) => array.replace(/\n/g, ' '));
  for (const line of lines.split('\n')) {
    section = /^\s*\[([^[\]]+)\]\s*(?:#.*)?$/.exec(line)?.[1]?.trim() ?? section;
    const [, name, value = ''] = /^\s*(\w+)\s*=\s*(.*?)\s*$/.exec(line) ?? [];
    const key = KEYS.find((each) => each === name);
    if (key && SECTION.test(section)) entries.push([key, value]);
  }
  return entries;
}

/** The strings of a value, without the slash at the end of a directory. */
function stringsOf(value: string): string[] {
  return [...value.matchAll(/"([^"]*)"|'([^']*)'/g)]
    .map(([, double = '', single = '']) => double + single)
    .filter((path) => path !== '')
    .map((path) => (path.length > 1 ? path.replace(/\/+$/, '') : path));
}
