import { DATAPLANE_SETTINGS } from '@podwire/dataplane/config';
import { isSubdomain } from '@podwire/plugin/cni/environment';
import { PLUGIN_SETTINGS } from '@podwire/plugin/settings';
import { violationsFailure, type Failure } from '@podwire/shared/failure/failure';
import { readSettings, type Setting, type SettingValues } from '@podwire/shared/settings/config-reader';
import { LOG_LEVELS } from '@podwire/shared/runtime/log';
import { metricsTokenSetting, oneOf, rpcAddress, text, wholeNumber } from '@podwire/shared/settings/setting';
import { serverUsage } from '@podwire/shared/settings/usage';
import type { TlsFiles } from '@podwire/shared/tls/tls-files';
import { ipamTlsFiles, ipamTlsSettings } from '@podwire/shared/tls/tls-settings';

/** Prefix of podwire-node's environment variables. */
export const PREFIX = 'PODWIRE_NODE_';

/** Prefixes of the routing settings. */
const ROUTING_PREFIXES = ['PODWIRE_ROUTING', 'PODWIRE_BIRD_'];

/** Twice this, and the rollback of a command in between, is less than {@link STOP_TIMEOUT_MS}. */
const MAX_DRAIN_TIMEOUT_MS = 45_000;

/** Longer than stopping takes: the CNI commands end first, then the calls of the dataplane. */
export const STOP_TIMEOUT_MS = 125_000;

/** Settings of the whole process. */
const PROCESS_SETTINGS = {
  ipamAddress: {
    variable: 'PODWIRE_NODE_IPAM_ADDRESS',
    schema: rpcAddress,
    default: 'unix:/run/podwire/ipam.sock',
    about: 'Address of podwire-ipam: unix:/absolute/path, or host:port with TLS.',
  },
  ...ipamTlsSettings(PREFIX),
  drainTimeoutMs: {
    variable: 'PODWIRE_NODE_DRAIN_TIMEOUT_MS',
    schema: wholeNumber(0, MAX_DRAIN_TIMEOUT_MS),
    default: '2000',
    about: `Grace period for CNI commands in flight after SIGTERM, and after it for gRPC calls in flight, in milliseconds, 0 to ${MAX_DRAIN_TIMEOUT_MS}; then they are cancelled. New commands wait 5 s for the next podwire-node, which starts after it; DELs wait 2 s and are then spooled.`,
  },
  metricsTokenFile: metricsTokenSetting(PREFIX),
  logLevel: {
    variable: 'PODWIRE_NODE_LOG_LEVEL',
    schema: oneOf(LOG_LEVELS),
    default: 'info',
    about: `Least severe level that is logged: ${LOG_LEVELS.join(', ')}.`,
  },
} as const;

/**
 * Every setting of podwire-node.
 * @param hostName - the host's name, the default for the node's name
 */
export function nodeSettings(hostName: string) {
  return {
    nodeName: {
      variable: 'PODWIRE_NODE_NAME',
      schema: text.refine(isSubdomain, 'is not a valid name of a Kubernetes node (RFC 1123 subdomain)'),
      default: hostName.toLowerCase(),
      about:
        'Name of this node in IPAM and in Kubernetes. The nodename of a network configuration overrides it for its pods.',
    },
    ...PROCESS_SETTINGS,
    ...PLUGIN_SETTINGS,
    ...DATAPLANE_SETTINGS,
  } as const;
}

export interface NodeSettings extends SettingValues<ReturnType<typeof nodeSettings>> {
  /** TLS files for the connection to podwire-ipam; undefined for plain text. */
  readonly ipamTls: TlsFiles | undefined;
}

/**
 * Reads podwire-node's settings from its environment.
 * @param hostName - the host's name, the default for the node's name
 * @throws Failure INVALID_SETTINGS that lists every unknown variable and every invalid value
 */
export function readNodeSettings(env: Readonly<Record<string, string | undefined>>, hostName: string): NodeSettings {
  const settings = nodeSettings(hostName);
  const values = readSettings({ settings, prefix: PREFIX, furtherPrefixes: ROUTING_PREFIXES, env });
  const { leasesLow, leasesHigh } = values;
  if (leasesHigh > 0 && leasesLow >= leasesHigh) throw marksFailure(settings.leasesLow, { leasesLow, leasesHigh });
  return { ...values, ipamTls: ipamTlsFiles(PREFIX, values) };
}

/** A node that refills its leases at the high mark would ask podwire-ipam with every ADD. */
function marksFailure(
  { variable, about }: Pick<Setting<number>, 'variable' | 'about'>,
  { leasesLow, leasesHigh }: Pick<NodeSettings, 'leasesLow' | 'leasesHigh'>,
): Failure {
  const reason = `is ${leasesLow}, and PODWIRE_NODE_LEASES_HIGH is ${leasesHigh}: must be less. ${about}`;
  return violationsFailure('INVALID_SETTINGS', 'Settings refused', [{ field: variable, reason }]);
}

/** The output of `podwire-node --help`. */
export function nodeUsage(hostName: string): string {
  const about =
    'Serves the CNI calls of this node, which the program "podwire" passes on over a unix socket; programs the node’s interfaces, routes, tunnels and NAT; and registers the node with podwire-ipam. As root, in the node’s own network namespace.';
  const commands =
    'usage: podwire-node remove [--yes]\n\n' +
    'Lists every object of Podwire on this node: interfaces of pods, routes, tunnels, nftables tables, records.\n' +
    '--yes removes them. Refused while podwire-node runs. Exit codes: 0 nothing is left,\n1 failed, 2 objects are left.\n\n';
  return commands + serverUsage('podwire-node', about, nodeSettings(hostName));
}
