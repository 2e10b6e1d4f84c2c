import { readSettings, type SettingValues } from '@podwire/shared/runtime/config-reader';
import { LOG_LEVELS } from '@podwire/shared/runtime/log';
import { absolutePath, flag, oneOf, rpcAddress, text, wholeNumber } from '@podwire/shared/runtime/setting';
import { serverUsage } from '@podwire/shared/runtime/usage';

import { isSubdomain } from './cni/environment.js';

/** Prefix of the environment variables that are settings of the plugin. */
const PREFIX = 'PODWIRE_PLUGIN_';

/**
 * Longest time for a command, and for undoing it: together as long as the shim waits at most, less what it may have waited for the socket
 * and some time for the hand-over (kOverallDeadlineMs, kConnectWindowMs, shim/src/protocol.h).
 */
const MAX_TIMEOUT_MS = 90_000;
const MAX_CLEAN_UP_TIMEOUT_MS = 20_000;

const timeout = wholeNumber(1, MAX_TIMEOUT_MS);

export type PluginSettings = SettingValues<ReturnType<typeof pluginSettings>>;

/**
 * Reads the settings.
 * @param hostName - what the node calls itself, for the default of its name
 * @throws Failure INVALID_SETTINGS that lists every unknown variable and every nonsense value
 */
export function readPluginSettings(
  env: Readonly<Record<string, string | undefined>>,
  hostName: string,
): PluginSettings {
  return readSettings({ settings: pluginSettings(hostName), prefix: PREFIX, env });
}

/** When a DEL leaves the rest to the journal, and where that is. */
const JOURNAL_SETTINGS = {
  delServiceTimeoutMs: {
    variable: 'PODWIRE_PLUGIN_DEL_SERVICE_TIMEOUT_MS',
    schema: timeout,
    default: '2000',
    about: `Time that a DEL gives each service before it leaves the rest to the journal, in milliseconds, 1 to ${MAX_TIMEOUT_MS}.`,
  },
  stateDirectory: {
    variable: 'PODWIRE_PLUGIN_STATE_DIRECTORY',
    schema: absolutePath,
    default: '/var/lib/podwire/plugin',
    about: 'Absolute path of the directory of the journal, one file for each entry, on a disk that outlives a reboot.',
  },
  journalMaxEntriesCount: {
    variable: 'PODWIRE_PLUGIN_JOURNAL_MAX_ENTRIES_COUNT',
    schema: wholeNumber(1, 1_000_000),
    default: '10000',
    about: 'Most entries of the journal that are stored, 1 to 1000000; those beyond are in memory alone.',
  },
} as const;

/** When STATUS fails. */
const STATUS_SETTINGS = {
  strictStatus: {
    variable: 'PODWIRE_PLUGIN_STRICT_STATUS',
    schema: flag,
    default: 'false',
    about:
      'Whether STATUS fails whenever an ADD would, as the CNI specification reads: a full pool or a podwire-ipam that is down then makes the node not ready, and Kubernetes evicts its pods. Otherwise STATUS of a node that was ready once since its boot fails only while the node itself cannot wire pods for longer than 30 s.',
  },
} as const;

/**
 * Every setting of the plugin.
 * @param hostName - what the node calls itself, for the default of its name
 */
export function pluginSettings(hostName: string) {
  return {
    socket: {
      variable: 'PODWIRE_PLUGIN_SOCKET',
      schema: absolutePath,
      default: '/run/podwire/cni.sock',
      about: 'Absolute path of the unix socket where the shim finds the plugin.',
    },
    ipamAddress: {
      variable: 'PODWIRE_PLUGIN_IPAM_ADDRESS',
      schema: rpcAddress,
      default: 'unix:/run/podwire/ipam.sock',
      about: 'Where podwire-ipam is found: unix:/absolute/path or host:port.',
    },
    dataplaneAddress: {
      variable: 'PODWIRE_PLUGIN_DATAPLANE_ADDRESS',
      schema: rpcAddress,
      default: 'unix:/run/podwire/dataplane.sock',
      about: "Where this node's podwire-dataplane is found: unix:/absolute/path or host:port.",
    },
    nodeName: {
      variable: 'PODWIRE_PLUGIN_NODE_NAME',
      schema: text.refine(isSubdomain, 'is no name of a Kubernetes node (RFC 1123 subdomain)'),
      default: hostName.toLowerCase(),
      about: 'Name of this node, as Kubernetes knows it. No effect where the network configuration has a nodename.',
    },
    addTimeoutMs: {
      variable: 'PODWIRE_PLUGIN_ADD_TIMEOUT_MS',
      schema: timeout,
      default: '15000',
      about: `Time for an ADD, a CHECK or a GC, in milliseconds, 1 to ${MAX_TIMEOUT_MS}.`,
    },
    delTimeoutMs: {
      variable: 'PODWIRE_PLUGIN_DEL_TIMEOUT_MS',
      schema: timeout,
      default: '15000',
      about: `Time for a DEL, in milliseconds, 1 to ${MAX_TIMEOUT_MS}, waiting for other commands of the attachment included.`,
    },
    ...JOURNAL_SETTINGS,
    cleanUpTimeoutMs: {
      variable: 'PODWIRE_PLUGIN_CLEAN_UP_TIMEOUT_MS',
      schema: wholeNumber(1, MAX_CLEAN_UP_TIMEOUT_MS),
      default: '5000',
      about: `Time for undoing a failed ADD, in milliseconds, 1 to ${MAX_CLEAN_UP_TIMEOUT_MS}, beside the time of the ADD itself. A service that the ADD waited for in vain has 500 ms of it.`,
    },
    drainTimeoutMs: {
      variable: 'PODWIRE_PLUGIN_DRAIN_TIMEOUT_MS',
      schema: wholeNumber(0, MAX_TIMEOUT_MS),
      default: '2000',
      about: `How long commands under way may go on after SIGTERM before they are cut off, in milliseconds, 0 to ${MAX_TIMEOUT_MS}. Those that come meanwhile wait 5 s for the next podwire-plugin, which begins after it.`,
    },
    ...STATUS_SETTINGS,
    logLevel: {
      variable: 'PODWIRE_PLUGIN_LOG_LEVEL',
      schema: oneOf(LOG_LEVELS),
      default: 'info',
      about: 'The least important lines that are logged to standard error.',
    },
  } as const;
}

/** What `podwire-plugin --help` says. */
export function pluginUsage(hostName: string): string {
  const about =
    'Serves the CNI calls of this node, which the program "podwire" hands on over a unix socket. As root, beside podwire-ipam and podwire-dataplane.';
  return serverUsage('podwire-plugin', about, pluginSettings(hostName));
}
