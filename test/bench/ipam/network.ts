import { readFileSync, writeFileSync } from 'node:fs';
import { once } from 'node:events';
import { connect as connectTcp } from 'node:net';
import { connect, type TLSSocket } from 'node:tls';

import { Authority, type IssuedCertificate } from '@podwire/shared/tls/authority';
import { IPAM_SERVER_NAME } from '@podwire/shared/tls/caller';

import type { Place } from './processes.js';

const HOUR_MS = 3_600_000;

/** Files of a certificate, in PEM. */
export interface CertificateFiles {
  readonly caPath: string;
  readonly certificatePath: string;
  readonly keyPath: string;
}

/** A certificate with its key, and the authority of the server's, in PEM. */
export interface Identity {
  readonly ca: string;
  readonly cert: string;
  readonly key: string;
}

/** An authority for one measurement, and the files of what it issues. */
export class Certificates {
  readonly #place: Place;
  readonly #authority: Authority;
  readonly #validity: Parameters<typeof Authority.create>[1];

  private constructor(place: Place, authority: Authority, validity: Parameters<typeof Authority.create>[1]) {
    this.#place = place;
    this.#authority = authority;
    this.#validity = validity;
  }

  static async create(place: Place): Promise<Certificates> {
    const validity = { fromMs: Date.now() - HOUR_MS, untilMs: Date.now() + 24 * HOUR_MS };
    const authority = await Authority.create('bench', validity);
    writeFileSync(place.path('ca.crt'), (await authority.stored()).certificate);
    return new Certificates(place, authority, validity);
  }

  /** The settings of podwire-ipam for a network listener. */
  async serverSettings(): Promise<Record<string, string>> {
    const { caPath, certificatePath, keyPath } = this.#write(
      'server',
      await this.#authority.issueServer(this.#validity),
    );
    return {
      PODWIRE_IPAM_TLS_CERT_FILE: certificatePath,
      PODWIRE_IPAM_TLS_KEY_FILE: keyPath,
      PODWIRE_IPAM_TLS_CLIENT_CA_FILE: caPath,
    };
  }

  async node(name: string): Promise<CertificateFiles> {
    return this.#write(name, await this.#authority.issueClient('node', name, this.#validity));
  }

  /** A node's certificate, without files. */
  async identity(name: string): Promise<Identity> {
    const { certificate: cert, key } = await this.#authority.issueClient('node', name, this.#validity);
    return { ca: readFileSync(this.#place.path('ca.crt'), 'utf8'), cert, key };
  }

  #write(name: string, { certificate, key }: IssuedCertificate): CertificateFiles {
    const [certificatePath, keyPath] = [this.#place.path(`${name}.crt`), this.#place.path(`${name}.key`)];
    writeFileSync(certificatePath, certificate);
    writeFileSync(keyPath, key);
    return { caPath: this.#place.path('ca.crt'), certificatePath, keyPath };
  }
}

export function readIdentity(files: CertificateFiles): Identity {
  const [ca = '', cert = '', key = ''] = [files.caPath, files.certificatePath, files.keyPath].map((path) =>
    readFileSync(path, 'utf8'),
  );
  return { ca, cert, key };
}

/**
 * A connection to podwire-ipam over TLS, for a light client.
 * @param localAddress - of the client; podwire-ipam limits the connections of an address
 */
export async function connectTls(port: number, identity: Identity, localAddress = '127.0.0.1'): Promise<TLSSocket> {
  const names = { servername: IPAM_SERVER_NAME, ALPNProtocols: ['h2'] };
  const tcp = connectTcp({ host: '127.0.0.1', port, localAddress, noDelay: true });
  const socket = connect({ socket: tcp, ...identity, ...names });
  await once(socket, 'secureConnect');
  return socket;
}
