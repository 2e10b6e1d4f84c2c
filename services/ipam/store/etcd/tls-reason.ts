import { X509Certificate } from 'node:crypto';

/** The certificate that this process shows, and the time at which a connection made with it has failed. */
export interface ShownCertificate {
  /** PEM, its own certificate first. */
  readonly certificate: Buffer;
  readonly nowMs: number;
}

/** How Node and OpenSSL name what goes wrong before gRPC has a connection. */
const TLS_TEXT = /certificate|self-signed|SSL|TLS|wrong version number|altnames|issuer/i;

/** etcd's refusals of a client's certificate, as they come over the wire (RFC 8446, 6.2). */
const REFUSAL =
  /alert (bad certificate|certificate (?:expired|unknown|revoked|required)|unknown ca|handshake failure|access denied)/;

/** The end of the connection after a refusal may come before the refusal is read. */
const CUT_OFF = /ECONNRESET|EPIPE|Connection dropped|socket hang up/;

/** What is wrong with etcd's own certificate, by the words of OpenSSL and Node.js. */
const FAULTS: readonly { readonly text: RegExp; readonly hint: string }[] = [
  {
    text: /certificate has expired/,
    hint: 'the certificate that etcd shows, or the one that signed it, has expired: renew it there, which etcd takes up by itself',
  },
  {
    text: /certificate is not yet valid/,
    hint: 'the certificate that etcd shows, or the one that signed it, is not valid yet: compare the clocks',
  },
  {
    text: /altnames/,
    hint: 'etcd’s certificate is for other names: PODWIRE_IPAM_ETCD_ENDPOINTS has to name etcd as its certificate does',
  },
  {
    text: /self-signed|unable to (?:get|verify)|issuer/,
    hint: 'the certificate that etcd shows is signed by none of the authorities in PODWIRE_IPAM_ETCD_CA_FILE',
  },
];

const ANY_FAULT =
  'check the scheme of PODWIRE_IPAM_ETCD_ENDPOINTS and the files of PODWIRE_IPAM_ETCD_CA_FILE, _CERT_FILE and _KEY_FILE';

/**
 * Why there is no connection, where TLS is the reason or may be.
 * @param text - of the error
 * @param shown - undefined when no certificate is shown
 * @returns undefined when nothing points to TLS
 */
export function tlsReason(text: string, shown: ShownCertificate | undefined): string | undefined {
  const refused = REFUSAL.exec(text)?.[1];
  const expiry = shown && expiryOf(shown);
  if (expiry !== undefined && (refused !== undefined || CUT_OFF.test(text)))
    return `the certificate of PODWIRE_IPAM_ETCD_CERT_FILE has expired at ${expiry}: renew it and its key, the files are read again by themselves`;
  if (refused !== undefined)
    return shown
      ? `etcd refuses the certificate of PODWIRE_IPAM_ETCD_CERT_FILE (${refused}): it has to be signed by an authority of etcd’s --trusted-ca-file`
      : `etcd wants a certificate (${refused}): set PODWIRE_IPAM_ETCD_CERT_FILE and PODWIRE_IPAM_ETCD_KEY_FILE`;
  return FAULTS.find((fault) => fault.text.test(text))?.hint ?? (TLS_TEXT.test(text) ? ANY_FAULT : undefined);
}

/** @returns when it ended, in RFC 3339; undefined for one that holds */
function expiryOf({ certificate, nowMs }: ShownCertificate): string | undefined {
  const endMs = Date.parse(new X509Certificate(certificate).validTo);
  return endMs < nowMs ? new Date(endMs).toISOString() : undefined;
}

/** What gRPC says of a connection that failed, without its own bookkeeping and the lines of OpenSSL's sources. */
export function connectionText(text: string): string {
  return text
    .replace(/[0-9A-F]+:error:[0-9A-F]+:SSL routines:[^:\n]*:([^:\n]*)[^\n]*\n?/g, '$1')
    .replace(/(?: \([^()]*Z\))?\.? Resolution note:\s*$/, '')
    .replace(/\s*\n\s*/g, ' ');
}
