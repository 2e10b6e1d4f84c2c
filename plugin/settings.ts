import { readSettings, type SettingValues } from '@podwire/shared/runtime/config-reader';
import { LOG_LEVELS } from '@podwire/shared/runtime/log';
import { absolutePath, flag, oneOf, rpcAddress, text, wholeNumber } from '@podwire/shared/runtime/setting';
import { serverUsage } from '@podwire/shared/runtime/usage';
import type { TlsFiles } from '@podwire/shared/tls/tls-files';
import { ipamTlsFiles, ipamTlsSettings } from '@podwire/shared/tls/tls-settings';

import { isSubdomain } from './cni/environment.js';

/** Prefix of the environment variables that are settings of the plugin. */
const PREFIX = 'PODWIRE_PLUGIN_';

/**
 * Longest timeout of a command and of its rollback. Together they fit the time that the shim waits for an answer, less its wait
 * for the socket and some time for the hand-over (kOverallDeadlineMs, kConnectWindowMs, shim/src/protocol.h).
 */
const MAX_TIMEOUT_MS = 90_000;
const MAX_CLEAN_UP_TIMEOUT_MS = 20_000;

const timeout = wholeNumber(1, MAX_TIMEOUT_MS);

export interface PluginSettings extends SettingValues<ReturnType<typeof pluginSettings>> {
  /** For the connection to podwire-ipam; undefined for plain text. */
  readonly ipamTls: TlsFiles | undefined;
}

/**
 * Reads the settings.
 * @param hostName - default of the node name
 * @throws Failure INVALID_SETTINGS that lists every unknown variable and every invalid value
 */
export function readPluginSettings(
  env: Readonly<Record<string, string | undefined>>,
  hostName: string,
): PluginSettings {
  const values = readSettings({ settings: pluginSettings(hostName), prefix: PREFIX, env });
  return { ...values, ipamTls: ipamTlsFiles(PREFIX, values) };
}

const JOURNAL_SETTINGS = {
  delServiceTimeoutMs: {
    variable: 'PODWIRE_PLUGIN_DEL_SERVICE_TIMEOUT_MS',
    schema: timeout,
    default: '2000',
    about: `Timeout of each service call of a DEL, in milliseconds, 1 to ${MAX_TIMEOUT_MS}; then the journal retries the release.`,
  },
  stateDirectory: {
    variable: 'PODWIRE_PLUGIN_STATE_DIRECTORY',
    schema: absolutePath,
    default: '/var/lib/podwire/plugin',
    about: 'Absolute path of the directory of the journal, one file for each entry, on a persistent disk.',
  },
  journalMaxEntriesCount: {
    variable: 'PODWIRE_PLUGIN_JOURNAL_MAX_ENTRIES_COUNT',
    schema: wholeNumber(1, 1_000_000),
    default: '10000',
    about: 'Most stored entries of the journal, 1 to 1000000; further ones are only in memory.',
  },
} as const;

const STATUS_SETTINGS = {
  strictStatus: {
    variable: 'PODWIRE_PLUGIN_STRICT_STATUS',
    schema: flag,
    default: 'false',
    about:
      'Whether STATUS fails whenever an ADD would, as the CNI specification requires: an exhausted pool or a podwire-ipam that is down then makes the node not ready, and Kubernetes evicts its pods. Otherwise, once the node was ready since its boot, STATUS fails only if the node cannot wire pods for more than 30 s.',
  },
} as const;

/** The connection to podwire-ipam. */
const IPAM_SETTINGS = {
  ipamAddress: {
    variable: 'PODWIRE_PLUGIN_IPAM_ADDRESS',
    schema: rpcAddress,
    default: 'unix:/run/podwire/ipam.sock',
    about: 'Address of podwire-ipam: unix:/absolute/path, or host:port with TLS.',
  },
  ...ipamTlsSettings(PREFIX),
} as const;

/**
 * Every setting of the plugin.
 * @param hostName - default of the node name
 */
export function pluginSettings(hostName: string) {
  return {
    socket: {
      variable: 'PODWIRE_PLUGIN_SOCKET',
      schema: absolutePath,
      default: '/run/podwire/cni.sock',
      about: 'Absolute path of the unix socket for the shim.',
    },
    ...IPAM_SETTINGS,
    dataplaneAddress: {
      variable: 'PODWIRE_PLUGIN_DATAPLANE_ADDRESS',
      schema: rpcAddress,
      default: 'unix:/run/podwire/dataplane.sock',
      about: "Address of this node's podwire-dataplane: unix:/absolute/path or host:port.",
    },
    nodeName: {
      variable: 'PODWIRE_PLUGIN_NODE_NAME',
      schema: text.refine(isSubdomain, 'is not a valid name of a Kubernetes node (RFC 1123 subdomain)'),
      default: hostName.toLowerCase(),
      about: 'Name of this node in Kubernetes. The nodename of a network configuration overrides it.',
    },
    addTimeoutMs: {
      variable: 'PODWIRE_PLUGIN_ADD_TIMEOUT_MS',
      schema: timeout,
      default: '15000',
      about: `Timeout of an ADD, a CHECK or a GC, in milliseconds, 1 to ${MAX_TIMEOUT_MS}.`,
    },
    delTimeoutMs: {
      variable: 'PODWIRE_PLUGIN_DEL_TIMEOUT_MS',
      schema: timeout,
      default: '15000',
      about: `Timeout of a DEL, in milliseconds, 1 to ${MAX_TIMEOUT_MS}, including the wait for other commands of the attachment.`,
    },
    ...JOURNAL_SETTINGS,
    cleanUpTimeoutMs: {
      variable: 'PODWIRE_PLUGIN_CLEAN_UP_TIMEOUT_MS',
      schema: wholeNumber(1, MAX_CLEAN_UP_TIMEOUT_MS),
      default: '5000',
      about: `Timeout of the rollback of a failed ADD, in milliseconds, 1 to ${MAX_CLEAN_UP_TIMEOUT_MS}, in addition to the timeout of the ADD. A service that the ADD timed out on has 500 ms of it.`,
    },
    drainTimeoutMs: {
      variable: 'PODWIRE_PLUGIN_DRAIN_TIMEOUT_MS',
      schema: wholeNumber(0, MAX_TIMEOUT_MS),
      default: '2000',
      about: `Grace period for commands in flight after SIGTERM, in milliseconds, 0 to ${MAX_TIMEOUT_MS}; then they are cancelled. New commands wait 5 s for the next podwire-plugin, which starts after it.`,
    },
    ...STATUS_SETTINGS,
    logLevel: {
      variable: 'PODWIRE_PLUGIN_LOG_LEVEL',
      schema: oneOf(LOG_LEVELS),
      default: 'info',
      about: 'Lowest level of the lines that are logged to standard error.',
    },
  } as const;
}

/** Output of `podwire-plugin --help`. */
export function pluginUsage(hostName: string): string {
  const about =
    'Serves the CNI calls of this node, which the program "podwire" passes on over a unix socket. Runs as root, beside podwire-ipam and podwire-dataplane.';
  return serverUsage('podwire-plugin', about, pluginSettings(hostName));
}
