// Documents of a release: checksums, provenance and notes.
import { readFileSync } from 'node:fs';
import { join } from 'node:path';

import { sha256 } from '../image/oci.mjs';

/** @returns the changelog's section of a version, without its heading @throws Error without one */
export function notesOf(changelog, version) {
  const sections = changelog.split(/^## /m).slice(1);
  const section = sections.find((text) => text.split('\n')[0].trim() === version);
  if (section === undefined) throw new Error(`CHANGELOG.md: has no section "## ${version}"; write one`);
  return `${section.split('\n').slice(1).join('\n').trim()}\n`;
}

/** Digests of files in a folder, by name. */
export function digestsOf(folder, names) {
  return Object.fromEntries(names.toSorted().map((name) => [name, sha256(readFileSync(join(folder, name)))]));
}

/** Text that `sha256sum --check` reads. */
export function checksums(digests) {
  return Object.entries(digests)
    .map(([name, digest]) => `${digest}  ${name}\n`)
    .join('');
}

/**
 * The provenance of a release, as an in-toto statement with SLSA's predicate, version 1.
 * @param release - digests of the files, commit, sboms of the images, builder: versions of its programs
 */
export function provenance({ digests, commit: { version, revision }, sboms, builder }) {
  const packages = sboms.flatMap((sbom) => sbom.packages).filter(({ name }) => name !== 'podwire');
  const materials = packages.map(({ externalRefs, checksums: sums = [] }) => ({
    uri: externalRefs[0].referenceLocator,
    ...(sums.length > 0 ? { digest: { sha512: sums[0].checksumValue } } : {}),
  }));
  const unique = new Map(materials.map((material) => [JSON.stringify(material), material]));
  const commit = { name: 'podwire', digest: { gitCommit: revision } };
  return {
    _type: 'https://in-toto.io/Statement/v1',
    subject: Object.entries(digests).map(([name, sha]) => ({ name, digest: { sha256: sha } })),
    predicateType: 'https://slsa.dev/provenance/v1',
    predicate: {
      buildDefinition: {
        buildType: 'urn:podwire:release:1',
        externalParameters: { command: 'npm run release', version },
        resolvedDependencies: [commit, ...unique.values()],
      },
      // A time of the build would differ between two builds of a commit.
      runDetails: { builder: { id: 'urn:podwire:release:builder', version: builder } },
    },
  };
}
