import { generateKeyPair, sign, type KeyObject } from 'node:crypto';
import { promisify } from 'node:util';

/** A new key, and the request for a certificate of its public key. */
export interface SigningRequest {
  /** ECDSA on the curve P-256, PKCS #8 in PEM. */
  readonly key: string;
  /** PKCS #10 (RFC 2986) in DER, signed with the key. It has no subject: the authority decides over the name. */
  readonly request: Buffer;
}

/** Tags of ASN.1 (X.690). */
const INTEGER = 0x02;
const BIT_STRING = 0x03;
const OBJECT_IDENTIFIER = 0x06;
const SEQUENCE = 0x30;
/** The attributes of a request: context-specific tag 0, constructed. */
const ATTRIBUTES = 0xa0;

const VERSION_1 = element(INTEGER, Buffer.of(0));

/** ecdsa-with-SHA256, 1.2.840.10045.4.3.2 (RFC 5758, section 3.2); it has no parameters. */
const SIGNATURE_ALGORITHM = element(
  SEQUENCE,
  element(OBJECT_IDENTIFIER, Buffer.of(0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03, 0x02)),
);

/** Bits of the last byte of a signature that do not belong to it. */
const NO_UNUSED_BITS = Buffer.of(0);

const generateKeys = promisify(generateKeyPair);

/**
 * Makes a key and signs a request with it, which proves to the authority that the caller has the key. Written without
 * the library for certificates, which would take 24 MB of memory in a process on every node.
 */
export async function createSigningRequest(): Promise<SigningRequest> {
  const { privateKey, publicKey } = await generateKeys('ec', { namedCurve: 'P-256' });
  return {
    key: privateKey.export({ type: 'pkcs8', format: 'pem' }).toString(),
    request: requestOf(publicKey, privateKey),
  };
}

/** CertificationRequest of RFC 2986, section 4, with an empty subject and without attributes. */
function requestOf(publicKey: KeyObject, privateKey: KeyObject): Buffer {
  const subject = element(SEQUENCE);
  const subjectKey = publicKey.export({ type: 'spki', format: 'der' });
  const info = element(SEQUENCE, VERSION_1, subject, subjectKey, element(ATTRIBUTES));
  const signature = element(BIT_STRING, NO_UNUSED_BITS, sign('sha256', info, privateKey));
  return element(SEQUENCE, info, SIGNATURE_ALGORITHM, signature);
}

/** An element in DER. */
function element(tag: number, ...content: readonly Buffer[]): Buffer {
  const body = Buffer.concat(content);
  return Buffer.concat([Buffer.of(tag, ...lengthOf(body)), body]);
}

/** Length of the content: one byte, or from 128 on the number of its bytes and these (X.690, section 8.1.3). */
function lengthOf({ length }: Buffer): number[] {
  if (length < 0x80) return [length];
  const bytes = length < 0x100 ? [length] : [length >> 8, length & 0xff];
  return [0x80 | bytes.length, ...bytes];
}
