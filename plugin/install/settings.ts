import { readSettings, type SettingValues } from '@podwire/shared/settings/config-reader';
import { absolutePath, flag, oneOf, wholeNumber } from '@podwire/shared/settings/setting';
import { z } from 'zod';

/** Prefix of Podwire's own variables. Other variables have the names of Calico's installer. */
const PREFIX = 'PODWIRE_INSTALL_';

/** One day, in milliseconds. */
const MAX_WAIT_MS = 86_400_000;

/** The plugin's limits: the smallest MTU of IPv4 (RFC 791), and the largest that fits its length field. */
const MIN_MTU_BYTES = 68;
const MAX_MTU_BYTES = 65_535;

/** A plain file name: no directory, and no leading dot, as runtimes skip hidden files. */
const FILE_NAME = /^[A-Za-z0-9_][A-Za-z0-9_.-]*$/;

/** libcni reads a list only from `.conflist`, and `.conf` and `.json` as a single plugin. */
const conflistName = z
  .string()
  .regex(FILE_NAME, 'must be a plain file name')
  .regex(/\.conflist$/, 'must end in .conflist');

/** Permissions that a network configuration may have. */
const CONFLIST_MODES = { '0600': 0o600, '0644': 0o644 } as const;

const LEVELS = ['trace', 'debug', 'info', 'warn', 'warning', 'error', 'fatal', 'panic'] as const;

/** Every setting of the installer. */
export const INSTALL_SETTINGS = {
  binaryDirectory: {
    variable: 'CNI_BIN_DIR',
    schema: absolutePath,
    default: '/opt/cni/bin',
    about: 'Where the container runtime looks for CNI programs; made when it is missing.',
  },
  configDirectory: {
    variable: 'CNI_NET_DIR',
    schema: absolutePath,
    default: '/etc/cni/net.d',
    about: 'Where the container runtime looks for network configurations; made when it is missing.',
  },
  conflistName: {
    variable: 'CNI_CONF_NAME',
    schema: conflistName,
    default: '10-podwire.conflist',
    about: 'Name of the network configuration, ending in .conflist; runtimes take the first in alphabetical order.',
  },
  oldConfName: {
    variable: 'CNI_OLD_CONF_NAME',
    schema: z.string().regex(new RegExp(`^$|${FILE_NAME.source}`), 'must be a plain file name'),
    default: '',
    about:
      'Name of a network configuration that is removed once the other is in place. No effect when it is CNI_CONF_NAME.',
  },
  template: {
    variable: 'CNI_NETWORK_CONFIG',
    schema: z.string(),
    default: '',
    about: 'The network configuration, with placeholders __NAME__, instead of the shipped one.',
  },
  templateFile: {
    variable: 'CNI_NETWORK_CONFIG_FILE',
    schema: z.union([z.literal(''), absolutePath]),
    default: '',
    about: 'Path of a file with that text; goes before CNI_NETWORK_CONFIG.',
  },
  mtuBytes: {
    variable: 'CNI_MTU',
    schema: wholeNumber(0, MAX_MTU_BYTES).refine(
      (mtu) => mtu === 0 || mtu >= MIN_MTU_BYTES,
      `must be 0 or at least ${MIN_MTU_BYTES}`,
    ),
    default: '0',
    about: 'MTU of pods in bytes, for __CNI_MTU__ and the shipped configuration; 0 leaves it to the dataplane.',
  },
  nodeName: {
    variable: 'KUBERNETES_NODE_NAME',
    schema: z.string(),
    default: '',
    about:
      'Name of this node, for __KUBERNETES_NODE_NAME__ and the shipped configuration; empty leaves it to the plugin.',
  },
  skippedBinaries: {
    variable: 'SKIP_CNI_BINARIES',
    schema: z.string().transform((list) => list.split(',').map((name) => name.trim())),
    default: '',
    about:
      'Names of programs that are not put in place, with commas between them: podwire, podwire-ipam, and programs of PODWIRE_INSTALL_PROGRAMS.',
  },
  updatesBinaries: {
    variable: 'UPDATE_CNI_BINARIES',
    schema: flag,
    default: 'true',
    about: 'Whether existing programs are replaced by programs of this release.',
  },
  stays: {
    variable: 'SLEEP',
    schema: flag,
    default: 'false',
    about: 'Whether install stays, and restores files that other programs overwrite or remove.',
  },
  logLevel: {
    variable: 'LOG_LEVEL',
    schema: z
      .string()
      .toLowerCase()
      .pipe(oneOf(LEVELS))
      .transform((level) => (level === 'panic' ? 'fatal' : level === 'warning' ? 'warn' : level)),
    default: 'info',
    about: 'The least important lines that are logged to standard error; also for __LOG_LEVEL__.',
  },
  root: {
    variable: 'PODWIRE_INSTALL_ROOT',
    schema: z.union([z.literal(''), absolutePath]),
    default: '',
    about: 'Where the node’s file system is seen: /host in a container that mounts the two directories below /host.',
  },
  shimFile: {
    variable: 'PODWIRE_INSTALL_SHIM',
    schema: z.union([z.literal(''), absolutePath]),
    default: '',
    about: 'Path of the shim that is put in place; this package’s (shim/build/podwire) when empty.',
  },
  programsDirectory: {
    variable: 'PODWIRE_INSTALL_PROGRAMS',
    schema: z.union([z.literal(''), absolutePath]),
    default: '',
    about:
      'Directory with other CNI programs, such as portmap and loopback, that are put in place where they are missing; one that is there stays, unless --replace is given.',
  },
  waitMs: {
    variable: 'PODWIRE_INSTALL_WAIT_MS',
    schema: wholeNumber(0, MAX_WAIT_MS),
    default: '60000',
    about: 'How long to wait for the plugin to answer STATUS, in milliseconds; 0 asks once. No effect with --no-wait.',
  },
  checkIntervalMs: {
    variable: 'PODWIRE_INSTALL_CHECK_INTERVAL_MS',
    schema: wholeNumber(100, MAX_WAIT_MS),
    default: '10000',
    about: 'How often files are looked at, in milliseconds. No effect unless SLEEP is true.',
  },
  conflistMode: {
    variable: 'PODWIRE_INSTALL_CONFLIST_MODE',
    schema: z.enum(['0600', '0644'], 'must be 0600 or 0644').transform((mode) => CONFLIST_MODES[mode]),
    default: '0600',
    about: 'Permissions of the network configuration: 0600 (CIS benchmark), or 0644 where other users read it.',
  },
} as const;

export type InstallSettings = SettingValues<typeof INSTALL_SETTINGS>;

type Environment = Readonly<Record<string, string | undefined>>;

/**
 * Variables of Calico's installer without effect in Podwire: it keeps no credentials on the node, and its programs do
 * not log. Variables present in every container of a cluster are not listed, as they are not set for the installer.
 */
export const IGNORED_VARIABLES = [
  'CALICO_API_GROUP',
  'CNI_TOKEN_REFRESH_INTERVAL',
  'DATASTORE_TYPE',
  'ETCD_DISCOVERY_SRV',
  'ETCD_ENDPOINTS',
  'LOG_FILE_MAX_AGE',
  'LOG_FILE_MAX_COUNT',
  'LOG_FILE_MAX_SIZE',
  'LOG_FILE_PATH',
  'REQUIRE_MTU_FILE',
  'SKIP_TLS_VERIFY',
  'TEST_FILE_PERMISSION',
  'TLS_ASSETS_DIR',
] as const;

/**
 * Reads the settings.
 * @throws Failure INVALID_SETTINGS that lists every unknown variable and every invalid value
 */
export function readInstallSettings(env: Environment): InstallSettings {
  return readSettings({ settings: INSTALL_SETTINGS, prefix: PREFIX, env });
}

/** Variables that are set and ignored, for a warning. */
export function ignoredVariables(env: Environment): string[] {
  return IGNORED_VARIABLES.filter((name) => (env[name] ?? '') !== '');
}
