import { familyOf } from '@podwire/shared/net/address';
import { parsePrefix } from '@podwire/shared/net/prefix';
import type { SettingValues } from '@podwire/shared/settings/config-reader';
import { absolutePath, flag, wholeNumber } from '@podwire/shared/settings/setting';
import { z } from 'zod';

/**
 * Longest timeout of a command and of its rollback. Together they fit the time that the shim waits for an answer, less its wait
 * for the socket and some time for the hand-over (kOverallDeadlineMs, kConnectWindowMs, shim/src/protocol.h).
 */
const MAX_TIMEOUT_MS = 90_000;
const MAX_CLEAN_UP_TIMEOUT_MS = 20_000;

const timeout = wholeNumber(1, MAX_TIMEOUT_MS);

const JOURNAL_SETTINGS = {
  delServiceTimeoutMs: {
    variable: 'PODWIRE_NODE_DEL_SERVICE_TIMEOUT_MS',
    schema: timeout,
    default: '2000',
    about: `Timeout of each service call of a DEL, in milliseconds, 1 to ${MAX_TIMEOUT_MS}; then the journal retries the release.`,
  },
  stateDirectory: {
    variable: 'PODWIRE_NODE_STATE_DIRECTORY',
    schema: absolutePath,
    default: '/var/lib/podwire/plugin',
    about: 'Absolute path of the directory of the journal, one file for each entry, on a persistent disk.',
  },
  journalMaxEntriesCount: {
    variable: 'PODWIRE_NODE_JOURNAL_MAX_ENTRIES_COUNT',
    schema: wholeNumber(1, 1_000_000),
    default: '10000',
    about: 'Most stored entries of the journal, 1 to 1000000; further ones are only in memory.',
  },
} as const;

const STATUS_SETTINGS = {
  strictStatus: {
    variable: 'PODWIRE_NODE_STRICT_STATUS',
    schema: flag,
    default: 'false',
    about:
      'Whether STATUS fails whenever an ADD would, as the CNI specification requires: an exhausted pool or a podwire-ipam that is down then makes the node not ready, and Kubernetes evicts its pods. Otherwise, once the node was ready since its boot, STATUS fails only if the node cannot wire pods for more than 30 s.',
  },
} as const;

const podCidrs = z
  .string()
  .transform((list) => list.split(',').flatMap((item) => item.trim() || []))
  .pipe(z.array(z.string().refine((cidr) => parsePrefix(cidr).ok, 'is not a CIDR')))
  .refine((cidrs) => new Set(cidrs.map(familyOf)).size === cidrs.length, 'has two CIDRs of one family');

/** The settings of the CNI commands. */
export const PLUGIN_SETTINGS = {
  cniSocket: {
    variable: 'PODWIRE_NODE_CNI_SOCKET',
    schema: absolutePath,
    default: '/run/podwire/cni.sock',
    about: 'Absolute path of the unix socket for the shim.',
  },
  addTimeoutMs: {
    variable: 'PODWIRE_NODE_ADD_TIMEOUT_MS',
    schema: timeout,
    default: '15000',
    about: `Timeout of an ADD, a CHECK or a GC, in milliseconds, 1 to ${MAX_TIMEOUT_MS}.`,
  },
  delTimeoutMs: {
    variable: 'PODWIRE_NODE_DEL_TIMEOUT_MS',
    schema: timeout,
    default: '15000',
    about: `Timeout of a DEL, in milliseconds, 1 to ${MAX_TIMEOUT_MS}, including the wait for other commands of the attachment.`,
  },
  ...JOURNAL_SETTINGS,
  cleanUpTimeoutMs: {
    variable: 'PODWIRE_NODE_CLEAN_UP_TIMEOUT_MS',
    schema: wholeNumber(1, MAX_CLEAN_UP_TIMEOUT_MS),
    default: '5000',
    about: `Timeout of the rollback of a failed ADD, in milliseconds, 1 to ${MAX_CLEAN_UP_TIMEOUT_MS}, in addition to the timeout of the ADD. A service that the ADD timed out on has 500 ms of it.`,
  },
  ...STATUS_SETTINGS,
  podCidrs: {
    variable: 'PODWIRE_NODE_POD_CIDR',
    schema: podCidrs,
    default: '',
    about:
      'Replaces the podCIDR of the node’s Kubernetes Node, for usePodCidr of host-local: a CIDR, or one of each family separated by a comma. No effect on addresses of podwire-ipam.',
  },
} as const;

export interface PluginSettings extends SettingValues<typeof PLUGIN_SETTINGS> {
  /** Default for network configurations without a node name. */
  readonly nodeName: string;
  /** Grace period for commands in flight after SIGTERM, in milliseconds. */
  readonly drainTimeoutMs: number;
}
