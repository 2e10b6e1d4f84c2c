import { Failure } from '@podwire/shared/failure/failure';
import type { Clock } from '@podwire/shared/runtime/clock';
import type { Logger } from '@podwire/shared/runtime/log';
import { AuthorityDirectory } from '@podwire/shared/tls/authority-directory';
import { CertificateSource } from '@podwire/shared/tls/certificate-source';
import { filesOrigin, type TlsOrigin } from '@podwire/shared/tls/tls-files';
import { serverTlsFiles } from '@podwire/shared/tls/tls-settings';

import type { Config } from '../config.js';
import type { KubernetesApi } from '../api-server/api.js';
import { AuthorityConfigMap } from '../api-server/authority-config-map.js';
import type { OwnAuthority, OwnAuthorityOptions } from '../api-server/own-authority.js';
import type { UpkeepTask } from '../upkeep.js';
import { retryUntilAvailable, type StartRetry } from './datastore.js';

/** Identity that podwire-ipam shows to callers over the network. */
export interface NetworkIdentity {
  /** Certificates; undefined in plain text. */
  readonly certificates: CertificateSource | undefined;
  /** Renewal and publication. */
  readonly tasks: readonly UpkeepTask[];
}

export interface NetworkIdentityDeps {
  readonly clock: Clock;
  readonly log: Logger;
  readonly retry: Omit<StartRetry, 'report'>;
  /** The API server; used only where nodes show tokens, as their pods mount the ConfigMap of the authority. */
  readonly api: KubernetesApi | undefined;
}

type IdentityConfig = Pick<
  Config,
  'authorityDirectory' | 'nodeTokens' | 'tlsCertFile' | 'tlsKeyFile' | 'tlsClientCaFile' | 'plaintextLoopback'
>;

/**
 * Opens the certificates that the settings name: files, or the authority of podwire-ipam. Waits for the API server only
 * where a new authority has to be published.
 * @throws Failure INVALID_SETTINGS; UNREACHABLE or DEADLINE_EXCEEDED when the signal fired first
 */
export async function openNetworkIdentity(config: IdentityConfig, deps: NetworkIdentityDeps): Promise<NetworkIdentity> {
  const { clock, log } = deps;
  const api = config.nodeTokens ? deps.api : undefined;
  const source = (origin: TlsOrigin): CertificateSource => new CertificateSource({ origin, clock, log });
  if (config.authorityDirectory === '') {
    const files = serverTlsFiles(config);
    return { certificates: files && source(filesOrigin(files)), tasks: [] };
  }
  const setting = 'PODWIRE_IPAM_AUTHORITY_DIRECTORY';
  const directory = new AuthorityDirectory(
    config.authorityDirectory,
    (reason, cause) => new Failure('INVALID_SETTINGS', `${setting} ${config.authorityDirectory}: ${reason}`, { cause }),
  );
  const publication = api && new AuthorityConfigMap(api);
  const authority = await openAuthority({ directory, publication, clock, log }, deps);
  const certificate = { setting, path: 'of podwire-ipam itself' };
  const origin = { read: () => authority.material(), certificate };
  return {
    certificates: source(origin),
    tasks: [{ name: 'keep-certificate-authority', run: (signal) => authority.maintain(signal) }],
  };
}

async function openAuthority(options: OwnAuthorityOptions, { retry, log }: NetworkIdentityDeps): Promise<OwnAuthority> {
  // Loaded only where it is needed: the library for certificates takes 18 MiB.
  const { OwnAuthority } = await import('../api-server/own-authority.js');
  let reported = '';
  const report = ({ message }: Failure): void => {
    if (message !== reported) log.warn(`certificate authority: not ready: ${message}; trying again`);
    reported = message;
  };
  const open = async (): Promise<OwnAuthority> => {
    try {
      return await OwnAuthority.open(options, retry.signal);
    } catch (error) {
      // The permissions of a role that was just applied take effect some seconds later.
      if (error instanceof Failure && error.code === 'ACCESS_DENIED')
        throw new Failure('UNREACHABLE', error.message, { cause: error });
      throw error;
    }
  };
  return await retryUntilAvailable(open, { ...retry, report });
}
