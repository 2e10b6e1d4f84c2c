// Certificates of the cluster: of the API server, of etcd and its clients, and Podwire's authority.
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';

import { must } from './wait.mjs';

const KEY = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:P-256', '-noenc'];

/** Makes an authority. @returns the paths of its certificate and key */
export function makeAuthority(folder, name) {
  const files = { cert: join(folder, `${name}.crt`), key: join(folder, `${name}.key`) };
  const constraints = ['basicConstraints=critical,CA:TRUE', 'keyUsage=critical,keyCertSign,cRLSign'];
  const extensions = constraints.flatMap((text) => ['-addext', text]);
  must('openssl', [
    ...['req', '-x509', ...KEY, '-days', '30', '-subj', `/CN=${name}`],
    ...['-keyout', files.key, '-out', files.cert, ...extensions],
  ]);
  return files;
}

/**
 * Makes a certificate that an authority signed, for servers and clients.
 * @param names - subject alternative names, such as `IP:198.18.0.1`
 * @returns the paths of certificate and key
 */
export function makeCertificate(folder, { authority, name, names = [] }) {
  const files = { cert: join(folder, `${name}.crt`), key: join(folder, `${name}.key`) };
  const [request, extensions] = [join(folder, `${name}.csr`), join(folder, `${name}.ext`)];
  const lines = ['basicConstraints=CA:FALSE', 'extendedKeyUsage=serverAuth,clientAuth'];
  if (names.length > 0) lines.push(`subjectAltName=${names.join(',')}`);
  writeFileSync(extensions, lines.join('\n'));
  must('openssl', ['req', ...KEY, '-subj', `/CN=${name}`, '-keyout', files.key, '-out', request]);
  const by = ['-CA', authority.cert, '-CAkey', authority.key, '-CAcreateserial', '-days', '30'];
  must('openssl', ['x509', '-req', '-in', request, ...by, '-extfile', extensions, '-out', files.cert]);
  return files;
}
