import 'reflect-metadata';

import { createPrivateKey, randomBytes, webcrypto, type KeyObject } from 'node:crypto';

import * as x509 from '@peculiar/x509';

import { IPAM_SERVER_NAME, organizationOf, type Role } from './caller.js';

/** A certificate with its key, both in PEM. */
export interface IssuedCertificate {
  readonly certificate: string;
  /** PKCS #8. */
  readonly key: string;
}

/** Validity period of a certificate, in epoch milliseconds. */
export interface Validity {
  readonly fromMs: number;
  readonly untilMs: number;
}

/** Node.js's name of P-256. */
const NODE_CURVE = 'prime256v1';

/** Signed to see whether a key belongs to a certificate. */
const PROBE_BYTES = 32;

const ALGORITHM = { name: 'ECDSA', namedCurve: 'P-256', hash: 'SHA-256' } as const;

/** Bytes of a serial number (RFC 5280, section 4.1.2.2: positive, at most 20 bytes). */
const SERIAL_BYTES = 16;

/**
 * A certificate authority for one cluster: it issues the certificates of podwire-ipam and of its callers. For trying
 * Podwire out, and for tests; a cluster in production has its own issuer, such as cert-manager.
 */
export class Authority {
  readonly #certificate: x509.X509Certificate;
  readonly #keys: webcrypto.CryptoKeyPair;

  private constructor(certificate: x509.X509Certificate, keys: webcrypto.CryptoKeyPair) {
    this.#certificate = certificate;
    this.#keys = keys;
  }

  /** A new authority, with a self-signed certificate (RFC 5280, section 4.2.1.9). */
  static async create(name: string, validity: Validity): Promise<Authority> {
    const keys = await generateKeys();
    const certificate = await x509.X509CertificateGenerator.createSelfSigned({
      serialNumber: serialNumber(),
      name: [{ CN: [name] }],
      ...datesOf(validity),
      keys,
      signingAlgorithm: ALGORITHM,
      extensions: [
        new x509.BasicConstraintsExtension(true, 0, true),
        new x509.KeyUsagesExtension(x509.KeyUsageFlags.keyCertSign | x509.KeyUsageFlags.cRLSign, true),
        await x509.SubjectKeyIdentifierExtension.create(keys.publicKey),
      ],
    });
    return new Authority(certificate, keys);
  }

  /**
   * An authority that was stored.
   * @param stored - the certificate, of which only the first in the text counts, and its key in any PEM form
   * @throws Error when the texts are not the certificate of an authority and its key on the curve P-256
   */
  static async load({ certificate, key }: IssuedCertificate): Promise<Authority> {
    const parsed = new x509.X509Certificate(firstBlock(certificate));
    if (parsed.getExtension(x509.BasicConstraintsExtension)?.ca !== true)
      throw new Error('the certificate is not one of an authority');
    const keyObject = createPrivateKey(key);
    if (keyObject.asymmetricKeyDetails?.namedCurve !== NODE_CURVE)
      throw new Error(
        `the key is ${describeKey(keyObject)}; an authority of Podwire has an ECDSA key on the curve P-256`,
      );
    const bytes = keyObject.export({ type: 'pkcs8', format: 'der' });
    const privateKey = await webcrypto.subtle.importKey('pkcs8', bytes, ALGORITHM, true, ['sign']);
    const publicKey = await webcrypto.subtle.importKey('spki', parsed.publicKey.rawData, ALGORITHM, true, ['verify']);
    const probe = randomBytes(PROBE_BYTES);
    const signature = await webcrypto.subtle.sign(ALGORITHM, privateKey, probe);
    if (!(await webcrypto.subtle.verify(ALGORITHM, publicKey, signature, probe)))
      throw new Error('the key does not belong to the certificate');
    return new Authority(parsed, { privateKey, publicKey });
  }

  /** Stored form for {@link Authority.load}. */
  async stored(): Promise<IssuedCertificate> {
    return { certificate: pem(this.#certificate), key: await keyPem(this.#keys.privateKey) };
  }

  /** End of the authority's own certificate, in epoch milliseconds. */
  get untilMs(): number {
    return this.#certificate.notAfter.getTime();
  }

  /** Certificate for podwire-ipam's network listener. */
  issueServer(validity: Validity): Promise<IssuedCertificate> {
    return this.#issue({
      subject: [{ CN: [IPAM_SERVER_NAME] }],
      usage: x509.ExtendedKeyUsage.serverAuth,
      names: [{ type: 'dns', value: IPAM_SERVER_NAME }],
      validity,
    });
  }

  /** @param name - of a node: its name as Kubernetes knows it */
  issueClient(role: Role, name: string, validity: Validity): Promise<IssuedCertificate> {
    const subject = [{ O: [organizationOf(role)] }, { CN: [name] }];
    return this.#issue({ subject, usage: x509.ExtendedKeyUsage.clientAuth, names: [], validity });
  }

  async #issue({ subject, usage, names, validity }: Order): Promise<IssuedCertificate> {
    const { privateKey, publicKey } = await generateKeys();
    const certificate = await x509.X509CertificateGenerator.create({
      serialNumber: serialNumber(),
      subject,
      issuer: this.#certificate.subject,
      ...datesOf(validity),
      publicKey,
      signingKey: this.#keys.privateKey,
      signingAlgorithm: ALGORITHM,
      extensions: [
        new x509.BasicConstraintsExtension(false, undefined, true),
        new x509.KeyUsagesExtension(x509.KeyUsageFlags.digitalSignature, true),
        new x509.ExtendedKeyUsageExtension([usage]),
        ...(names.length > 0 ? [new x509.SubjectAlternativeNameExtension(names)] : []),
        await x509.AuthorityKeyIdentifierExtension.create(this.#certificate),
      ],
    });
    return { certificate: pem(certificate), key: await keyPem(privateKey) };
  }
}

interface Order {
  readonly subject: x509.JsonName;
  readonly usage: string;
  readonly names: x509.JsonGeneralNames;
  readonly validity: Validity;
}

/** A file of an authority may have several certificates: the first signs, all are trusted. */
function firstBlock(text: string): ArrayBuffer {
  const [block] = x509.PemConverter.decode(text);
  if (!block) throw new Error('the certificate has no PEM block');
  return block;
}

function describeKey({ asymmetricKeyType, asymmetricKeyDetails }: KeyObject): string {
  return [asymmetricKeyType, asymmetricKeyDetails?.namedCurve].filter(Boolean).join(' on the curve ');
}

function generateKeys(): Promise<webcrypto.CryptoKeyPair> {
  return webcrypto.subtle.generateKey(ALGORITHM, true, ['sign', 'verify']);
}

/** The first bit is clear, so that the number is positive. */
function serialNumber(): string {
  const bytes = randomBytes(SERIAL_BYTES);
  bytes.writeUInt8((bytes.readUInt8(0) & 0x7f) | 0x01, 0);
  return bytes.toString('hex');
}

function datesOf({ fromMs, untilMs }: Validity): { notBefore: Date; notAfter: Date } {
  return { notBefore: new Date(fromMs), notAfter: new Date(untilMs) };
}

function pem(certificate: x509.X509Certificate): string {
  return `${certificate.toString('pem')}\n`;
}

async function keyPem(key: webcrypto.CryptoKey): Promise<string> {
  const bytes = await webcrypto.subtle.exportKey('pkcs8', key);
  return `${x509.PemConverter.encode(bytes, 'PRIVATE KEY')}\n`;
}
