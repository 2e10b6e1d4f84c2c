import { Failure, violationsFailure, type Violation } from '@podwire/shared/failure/failure';
import { isLocalAddress } from '@podwire/shared/settings/service-address';
import type { NamedFile } from '@podwire/shared/tls/tls-files';

import type { Proofs } from '../clients/services.js';
import {
  DATAPLANE,
  IPAM,
  IPAM_TLS,
  IPAM_TOKEN_VARIABLE,
  PLUGIN,
  SERVICE_OPTIONS,
  type ServiceAddress,
  type TlsFileOption,
} from './global-options.js';
import { quoteForShell, type Input } from './verb.js';

type Environment = Readonly<Record<string, string | undefined>>;

/** How a command reaches the services. */
export interface ServiceSettings {
  readonly ipam: string;
  readonly dataplane: string;
  readonly plugin: string;
  /**
   * How podwire-ipam and this side prove themselves; undefined for plain text.
   * @throws Failure INVALID_REQUEST when files are missing that the address needs
   */
  readonly ipamProofs: () => Proofs | undefined;
}

/**
 * The settings of each service: from their options, else from their variables, else the defaults.
 * @throws Failure INVALID_SETTINGS that lists every invalid variable
 */
export function serviceSettingsOf(globals: Input, env: Environment): ServiceSettings {
  const violations: Violation[] = [];
  const read = (option: ServiceAddress): string => {
    const configured = globals.get(option) ?? env[option.variable] ?? '';
    const text = configured === '' ? option.defaultAddress : configured;
    const result = option.form.read(text);
    if (result.ok) return result.value;
    violations.push({ field: option.variable, reason: `is "${text}", which ${result.fault}` });
    return '';
  };
  const addresses = { ipam: read(IPAM), dataplane: read(DATAPLANE), plugin: read(PLUGIN) };
  if (violations.length > 0) throw violationsFailure('INVALID_SETTINGS', 'Settings refused', violations);
  return { ...addresses, ipamProofs: () => proofsOf(addresses.ipam, globals, env) };
}

/** A unix socket needs no TLS. Plain text over loopback is for a podwire-ipam that allows it. */
function proofsOf(address: string, globals: Input, env: Environment): Proofs | undefined {
  if (address.startsWith('unix:')) return undefined;
  const ca = fileOf(IPAM_TLS.ca, globals, env);
  const certificate = fileOf(IPAM_TLS.certificate, globals, env);
  const key = fileOf(IPAM_TLS.key, globals, env);
  if (ca && certificate && key) return { files: { ca, identity: { certificate, key } }, token: undefined };
  const token = env[IPAM_TOKEN_VARIABLE] ?? '';
  if (ca && !certificate && !key && token !== '')
    return { files: { ca, identity: undefined }, token: { setting: IPAM_TOKEN_VARIABLE, path: token } };
  if (!ca && !certificate && !key && isLocalAddress(address)) return undefined;
  const missing = [!ca && IPAM_TLS.ca, !certificate && IPAM_TLS.certificate, !key && IPAM_TLS.key]
    .filter((option) => option !== false)
    .map(({ name, variable }) => `${name} (${variable})`);
  throw new Failure(
    'INVALID_REQUEST',
    `podwire-ipam at ${address}: needs TLS with a certificate of its caller; set ${missing.join(', ')}`,
  );
}

function fileOf(option: TlsFileOption, globals: Input, env: Environment): NamedFile | undefined {
  const typed = globals.get(option);
  if (typed !== undefined) return { setting: option.name, path: typed };
  const path = env[option.variable] ?? '';
  return path === '' ? undefined : { setting: option.variable, path };
}

/** The options of a command line that lead to services, so that a suggested command reaches the same ones. */
export function serviceOptionWords(globals: Input): string[] {
  return SERVICE_OPTIONS.flatMap((option) => {
    const value = globals.get(option);
    return value === undefined ? [] : [option.name, quoteForShell(value)];
  });
}
