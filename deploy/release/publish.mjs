// Pushes image and charts of a built release to a registry, and signs them and the checksums.
import { readFileSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import process from 'node:process';

import { run } from '../image/tree.mjs';
import { ensurePrograms, hasProgram } from '../local/programs.mjs';

const isLoopback = (registry) => /^(localhost|127\.[\d.]+|\[::1\])(:|\/|$)/.test(registry);

/** The archives of a release, by their name in the registry. */
const archives = (version) => ({
  podwire: `podwire-image-${version}.oci.tar`,
  'charts/podwire': `podwire-chart-${version}.oci.tar`,
  'charts/podwire-crds': `podwire-crds-chart-${version}.oci.tar`,
});

/** Commands of cosign: signatures of image and charts, and of the checksums, which cover the provenance. */
function signingCommands({ folder, references, key }) {
  const sums = join(folder, 'SHA256SUMS');
  return [
    ...references.map((reference) => ['sign', '--key', key, '--yes', '--recursive', reference]),
    ['sign-blob', '--key', key, '--yes', '--bundle', `${sums}.sigstore.json`, sums],
  ];
}

/**
 * Pushes a release, and signs it where cosign is installed and a key is given; otherwise prints the commands.
 * @param release - folder, version, registry: HOST[:PORT][/PATH], key: file or URI of cosign's private key
 */
export function publish({ folder, version, registry, key }) {
  const fault = ensurePrograms({ skopeo: 'skopeo' });
  if (fault) throw new Error(fault);
  run('sha256sum', ['--check', '--quiet', 'SHA256SUMS'], { cwd: folder });
  const copy = ['--insecure-policy', 'copy', '--all', '--preserve-digests', '--quiet'];
  const tls = `--dest-tls-verify=${!isLoopback(registry)}`;
  const digestFile = join(folder, '..', 'pushed-digest');
  const references = Object.entries(archives(version)).map(([name, file]) => {
    const target = `docker://${registry}/${name}:${version}`;
    run('skopeo', [...copy, tls, `--digestfile=${digestFile}`, `oci-archive:${join(folder, file)}`, target]);
    const reference = `${registry}/${name}@${readFileSync(digestFile, 'utf8').trim()}`;
    rmSync(digestFile);
    process.stdout.write(`pushed ${registry}/${name}:${version}: ${reference}\n`);
    return reference;
  });
  const commands = signingCommands({ folder, references, key: key ?? 'cosign.key' });
  if (key !== undefined && hasProgram('cosign')) {
    for (const args of commands) run('cosign', args);
    process.stdout.write('signed\n');
    return;
  }
  const reason = key === undefined ? 'without --key' : 'cosign is not installed';
  process.stdout.write(`not signed, ${reason}. These commands sign:\n`);
  for (const args of commands) process.stdout.write(`cosign ${args.join(' ')}\n`);
}
