import { readSettings, type SettingValues } from '@podwire/shared/runtime/config-reader';
import { LOG_LEVELS } from '@podwire/shared/runtime/log';
import { listOf, oneOf, rpcAddress, wholeNumber } from '@podwire/shared/runtime/setting';

/** Prefix of the environment variables that are settings of podwire-dataplane. */
const PREFIX = 'PODWIRE_DATAPLANE_';

/** Every setting of podwire-dataplane. */
export const SETTINGS = {
  listen: {
    variable: 'PODWIRE_DATAPLANE_LISTEN',
    schema: listOf(rpcAddress),
    default: 'unix:/run/podwire/dataplane.sock',
    about:
      'Where to serve gRPC: unix:/absolute/path (its owner’s alone) or host:port, several with commas between them. ' +
      'Whoever reaches it can rewire the node’s pods.',
  },
  callTimeoutMs: {
    variable: 'PODWIRE_DATAPLANE_CALL_TIMEOUT_MS',
    schema: wholeNumber(1, 600_000),
    default: '10000',
    about: 'Time for a call whose caller set no deadline, in milliseconds, 1 to 600000.',
  },
  drainTimeoutMs: {
    variable: 'PODWIRE_DATAPLANE_DRAIN_TIMEOUT_MS',
    schema: wholeNumber(0, 60_000),
    default: '5000',
    about: 'How long calls under way may go on after SIGTERM before they are cut off, in milliseconds, 0 to 60000.',
  },
  logLevel: {
    variable: 'PODWIRE_DATAPLANE_LOG_LEVEL',
    schema: oneOf(LOG_LEVELS),
    default: 'info',
    about: `Least severe lines that are logged: ${LOG_LEVELS.join(', ')}.`,
  },
} as const;

export type Config = SettingValues<typeof SETTINGS>;

/**
 * Reads podwire-dataplane's settings from its environment.
 * @throws Failure INVALID_SETTINGS that lists every unknown variable and every nonsense value
 */
export function readConfig(env: Readonly<Record<string, string | undefined>>): Config {
  return readSettings({ settings: SETTINGS, prefix: PREFIX, env });
}
