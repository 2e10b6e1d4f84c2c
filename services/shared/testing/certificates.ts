import 'reflect-metadata';

import { webcrypto } from 'node:crypto';
import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

import * as x509 from '@peculiar/x509';

import { systemClock } from '../runtime/clock.js';
import { Authority, type IssuedCertificate, type Validity } from '../tls/authority.js';
import type { Role } from '../tls/caller.js';
import { CertificateSource } from '../tls/certificate-source.js';
import { filesOrigin, type TlsFiles } from '../tls/tls-files.js';
import { recordingLog } from './server.js';

const HOUR_MS = 3_600_000;

const ALGORITHM = { name: 'ECDSA', namedCurve: 'P-256', hash: 'SHA-256' };

/** A certificate authority and the files of its certificate holders, in a folder. */
export class CertificateFolder {
  readonly #folder: string;
  readonly #authority: Authority;
  /** Path of the authority's certificate. */
  readonly caPath: string;

  private constructor(folder: string, authority: Authority, caPath: string) {
    this.#folder = folder;
    this.#authority = authority;
    this.caPath = caPath;
  }

  static async create(folder: string): Promise<CertificateFolder> {
    mkdirSync(folder, { recursive: true });
    const authority = await Authority.create('test authority', validity());
    const caPath = join(folder, 'ca.crt');
    writeFileSync(caPath, (await authority.stored()).certificate);
    return new CertificateFolder(folder, authority, caPath);
  }

  async server(lifetime = validity()): Promise<TlsFiles> {
    return this.#write('server', await this.#authority.issueServer(lifetime));
  }

  async client(role: Role, name: string, lifetime = validity()): Promise<TlsFiles> {
    return this.#write(`${role}-${name}`, await this.#authority.issueClient(role, name, lifetime));
  }

  /** Files of a client that trusts this authority and shows no certificate. */
  withoutCertificate(): TlsFiles {
    return { ca: { setting: 'CA', path: this.caPath }, identity: undefined };
  }

  #write(name: string, { certificate, key }: IssuedCertificate): TlsFiles {
    const certificatePath = join(this.#folder, `${name}.crt`);
    const keyPath = join(this.#folder, `${name}.key`);
    writeFileSync(certificatePath, certificate);
    writeFileSync(keyPath, key);
    return {
      ...this.withoutCertificate(),
      identity: {
        certificate: { setting: 'CERTIFICATE', path: certificatePath },
        key: { setting: 'KEY', path: keyPath },
      },
    };
  }
}

/** Validity from an hour ago to an hour from now, moved by some hours. */
export function validity({ byHours = 0 } = {}): Validity {
  const middleMs = Date.now() + byHours * HOUR_MS;
  return { fromMs: middleMs - HOUR_MS, untilMs: middleMs + HOUR_MS };
}

/** A certificate that a server at 127.0.0.1 signs itself, and its key, in PEM. */
export async function selfSignedServer(): Promise<IssuedCertificate> {
  const keys = await webcrypto.subtle.generateKey(ALGORITHM, true, ['sign', 'verify']);
  const { fromMs, untilMs } = validity();
  const certificate = await x509.X509CertificateGenerator.createSelfSigned({
    name: 'CN=test',
    notBefore: new Date(fromMs),
    notAfter: new Date(untilMs),
    keys,
    signingAlgorithm: ALGORITHM,
    extensions: [new x509.SubjectAlternativeNameExtension([{ type: 'ip', value: '127.0.0.1' }])],
  });
  const key = await webcrypto.subtle.exportKey('pkcs8', keys.privateKey);
  return { certificate: certificate.toString('pem'), key: x509.PemConverter.encode(key, 'PRIVATE KEY') };
}

export function certificateSource(files: TlsFiles, clock = systemClock) {
  const { log, lines } = recordingLog();
  return { source: new CertificateSource({ origin: filesOrigin(files), clock, log }), lines };
}
