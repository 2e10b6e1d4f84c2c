import { z } from 'zod';

import { violationsFailure, type Violation } from '../failure/failure.js';
import type { Setting } from '../settings/config-reader.js';
import { isLocalAddress } from '../settings/service-address.js';
import { flag } from '../settings/setting.js';
import { tokenOf, type TokenDeps } from './token-file.js';
import type { NamedFile, TlsFiles } from './tls-files.js';

/** The settings of TLS, and the rules between them. */

const optionalPath = z.string().regex(/^(\/|$)/, 'is not an absolute path');

const UNIX = 'unix:';
function file(variable: string, about: string): Setting<string> {
  return { variable, schema: optionalPath, default: '', about };
}

const READ_AGAIN = 'Read again while the process runs; new connections use the last read files.';

/** The settings of podwire-ipam's network listener. */
export const SERVER_TLS_SETTINGS = {
  tlsCertFile: file(
    'PODWIRE_IPAM_TLS_CERT_FILE',
    `Absolute path of a PEM file with the certificate of podwire-ipam, whose DNS name is podwire-ipam, and its chain. Required when PODWIRE_IPAM_LISTEN has a host:port. ${READ_AGAIN}`,
  ),
  tlsKeyFile: file(
    'PODWIRE_IPAM_TLS_KEY_FILE',
    `Absolute path of a PEM file with the key of that certificate. ${READ_AGAIN}`,
  ),
  tlsClientCaFile: file(
    'PODWIRE_IPAM_TLS_CLIENT_CA_FILE',
    `Absolute path of a PEM file with the authorities that sign the certificates of callers. ${READ_AGAIN}`,
  ),
  plaintextLoopback: {
    variable: 'PODWIRE_IPAM_PLAINTEXT_LOOPBACK',
    schema: flag,
    default: 'false',
    about:
      'Whether a loopback address in PODWIRE_IPAM_LISTEN is served in plain text, without certificates: every process of the machine can then allocate and release every address.',
  },
} as const;

interface ServerTlsValues {
  readonly tlsCertFile: string;
  readonly tlsKeyFile: string;
  readonly tlsClientCaFile: string;
  readonly plaintextLoopback: boolean;
}

/** The files of the network listener; undefined where there is none, or in plain text. */
export function serverTlsFiles({ tlsCertFile, tlsKeyFile, tlsClientCaFile }: ServerTlsValues): TlsFiles | undefined {
  if (tlsCertFile === '' || tlsKeyFile === '' || tlsClientCaFile === '') return undefined;
  const { tlsCertFile: certificate, tlsKeyFile: key, tlsClientCaFile: ca } = SERVER_TLS_SETTINGS;
  return {
    ca: named(ca, tlsClientCaFile),
    identity: { certificate: named(certificate, tlsCertFile), key: named(key, tlsKeyFile) },
  };
}

/** Contradictions between the settings of the network listener. */
export function serverTlsFaults(addresses: readonly string[], values: ServerTlsValues): Violation[] {
  const network = addresses.find((address) => !address.startsWith(UNIX));
  const files = ['tlsCertFile', 'tlsKeyFile', 'tlsClientCaFile'] as const;
  const isSet = files.some((name) => values[name] !== '');
  if (network === undefined || (values.plaintextLoopback && !isSet && addresses.every(isLocalAddress))) return [];
  if (values.plaintextLoopback && isSet) {
    const { variable, about } = SERVER_TLS_SETTINGS.plaintextLoopback;
    return [
      { field: variable, reason: `contradicts PODWIRE_IPAM_TLS_…: one listener has TLS or plain text. ${about}` },
    ];
  }
  return files
    .filter((name) => values[name] === '')
    .map((name) => {
      const { variable, about } = SERVER_TLS_SETTINGS[name];
      return { field: variable, reason: `is empty, and ${network} needs TLS. ${about}` };
    });
}

/** The settings of a client of podwire-ipam. @param prefix - of its process: `PODWIRE_NODE_` */
export function ipamTlsSettings(prefix: string) {
  const needed = `Required when ${prefix}IPAM_ADDRESS is a host:port beyond this machine; no effect with a unix socket.`;
  return {
    ipamTlsCaFile: file(
      `${prefix}IPAM_TLS_CA_FILE`,
      `Absolute path of a PEM file with the authorities that sign podwire-ipam's certificate. ${needed} ${READ_AGAIN}`,
    ),
    ipamTlsCertFile: file(
      `${prefix}IPAM_TLS_CERT_FILE`,
      `Absolute path of a PEM file with the certificate that is shown to podwire-ipam: its organization is podwire:node and its common name the node's name. ${needed} ${READ_AGAIN}`,
    ),
    ipamTlsKeyFile: file(
      `${prefix}IPAM_TLS_KEY_FILE`,
      `Absolute path of a PEM file with the key of that certificate. ${needed} ${READ_AGAIN}`,
    ),
    ipamTokenFile: file(
      `${prefix}IPAM_TOKEN_FILE`,
      `Absolute path of a file with a token of the pod's service account for the audience podwire-ipam, in place of a certificate and its key; empty for none. Read again while the process runs.`,
    ),
  } as const;
}

interface IpamTlsValues {
  readonly ipamAddress: string;
  readonly ipamTlsCaFile: string;
  readonly ipamTlsCertFile: string;
  readonly ipamTlsKeyFile: string;
  readonly ipamTokenFile: string;
}

/**
 * The files of a client of podwire-ipam; undefined for plain text.
 * @param prefix - of its process: `PODWIRE_NODE_`
 * @throws Failure INVALID_SETTINGS when files are missing that the address needs, or a token and a certificate are set
 */
export function ipamTlsFiles(prefix: string, values: IpamTlsValues): TlsFiles | undefined {
  const { ipamAddress, ipamTlsCaFile, ipamTlsCertFile, ipamTlsKeyFile, ipamTokenFile } = values;
  if (ipamAddress.startsWith(UNIX)) return undefined;
  const settings = ipamTlsSettings(prefix);
  const hasToken = ipamTokenFile !== '';
  if (hasToken && ipamTlsCertFile + ipamTlsKeyFile !== '') {
    const { variable, about } = settings.ipamTokenFile;
    const reason = `is set together with a certificate. ${about}`;
    throw violationsFailure('INVALID_SETTINGS', 'Settings refused', [{ field: variable, reason }]);
  }
  const names = ['ipamTlsCaFile', ...(hasToken ? [] : (['ipamTlsCertFile', 'ipamTlsKeyFile'] as const))] as const;
  const missing = names.filter((name) => values[name] === '');
  if (missing.length === names.length && !hasToken && isLocalAddress(ipamAddress)) return undefined;
  if (missing.length > 0) {
    const violations = missing.map((name) => {
      const { variable, about } = settings[name];
      return { field: variable, reason: `is empty, and ${ipamAddress} needs TLS. ${about}` };
    });
    throw violationsFailure('INVALID_SETTINGS', 'Settings refused', violations);
  }
  return {
    ca: named(settings.ipamTlsCaFile, ipamTlsCaFile),
    identity: hasToken
      ? undefined
      : {
          certificate: named(settings.ipamTlsCertFile, ipamTlsCertFile),
          key: named(settings.ipamTlsKeyFile, ipamTlsKeyFile),
        },
  };
}

/** The token of a client of podwire-ipam; undefined without one. @throws Failure INVALID_SETTINGS when it cannot be read */
export function ipamToken(
  prefix: string,
  { ipamTokenFile }: Pick<IpamTlsValues, 'ipamTokenFile'>,
  deps: TokenDeps,
): (() => string) | undefined {
  return ipamTokenFile === '' ? undefined : tokenOf(named(ipamTlsSettings(prefix).ipamTokenFile, ipamTokenFile), deps);
}

function named({ variable }: Setting<string>, path: string): NamedFile {
  return { setting: variable, path };
}
