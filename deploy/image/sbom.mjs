// The bill of materials (SPDX 2.3) of both layers, and the licence texts.
import { Buffer } from 'node:buffer';
import { copyFileSync, mkdirSync, readFileSync, readdirSync } from 'node:fs';
import { join } from 'node:path';

import { readJson } from './podwire.mjs';
import { NODE } from './recipe.mjs';
import { ship, step, write } from './tree.mjs';

const FOLDER = 'usr/share/podwire';
const UNKNOWN = 'NOASSERTION';

const identifier = (text) => `SPDXRef-${text.replace(/[^A-Za-z0-9.-]+/g, '-')}`;

function spdxPackage({ kind, name, version, licence, locator, supplier = UNKNOWN, ...rest }) {
  return {
    SPDXID: identifier(`${kind}-${name}-${version}`),
    name,
    versionInfo: version,
    supplier,
    downloadLocation: UNKNOWN,
    filesAnalyzed: false,
    licenseConcluded: UNKNOWN,
    licenseDeclared: licence,
    copyrightText: UNKNOWN,
    externalRefs: [{ referenceCategory: 'PACKAGE-MANAGER', referenceType: 'purl', referenceLocator: locator }],
    ...rest,
  };
}

/** The licence expression of a manifest; older ones have an object or a list. */
function licenceOf({ license, licenses }) {
  if (typeof license === 'string') return license;
  const found = license?.type ?? licenses?.map(({ type }) => type).join(' OR ');
  return found ?? UNKNOWN;
}

/** The digest of an npm package, from the form of its lock file. */
const checksumsOf = (integrity) => [
  { algorithm: 'SHA512', checksumValue: Buffer.from(integrity.replace('sha512-', ''), 'base64').toString('hex') },
];

function npmPackage({ manifest, integrity }) {
  const { name, version } = manifest;
  return spdxPackage({
    kind: 'npm',
    name,
    version,
    licence: licenceOf(manifest),
    locator: `pkg:npm/${name.replace('@', '%40')}@${version}`,
    ...(integrity?.startsWith('sha512-') ? { checksums: checksumsOf(integrity) } : {}),
  });
}

function debianPackage({ name, control }) {
  const field = (title) => new RegExp(`^${title}: (.*)$`, 'm').exec(control)?.[1];
  const version = field('Version');
  return spdxPackage({
    kind: 'deb',
    name,
    version,
    licence: UNKNOWN,
    supplier: 'Organization: Debian',
    locator: `pkg:deb/debian/${name}@${encodeURIComponent(version)}?arch=${field('Architecture')}`,
    sourceInfo: `built from the source package ${field('Source') ?? name}`,
    licenseComments: `see licenses/debian/${name}`,
  });
}

function nodePackage(arch) {
  const { version } = NODE;
  const entry = spdxPackage({
    kind: 'runtime',
    name: 'node',
    version,
    licence: 'MIT',
    locator: `pkg:generic/node@${version}`,
    checksums: checksumsOf(NODE.integrity[arch]),
    licenseComments: 'licenses/node lists what Node.js contains',
  });
  const cpe = `cpe:2.3:a:nodejs:node.js:${version}:*:*:*:*:*:*:*`;
  entry.externalRefs.push({ referenceCategory: 'SECURITY', referenceType: 'cpe23Type', referenceLocator: cpe });
  return entry;
}

/** Writes the licence texts. @returns names of npm packages that bring none */
function writeLicences({ source, layer, base, packages }) {
  const folder = join(layer, FOLDER, 'licenses');
  ship(join(source, 'LICENSE'), join(folder, 'podwire'));
  ship(join(base.nodeFolder, 'LICENSE'), join(folder, 'node'));
  for (const { name, licence } of base.debian) ship(licence, join(folder, 'debian', name));
  mkdirSync(join(folder, 'common'));
  for (const name of readdirSync(base.commonLicences)) {
    copyFileSync(join(base.commonLicences, name), join(folder, 'common', name));
  }
  for (const { folder: from, manifest, licences } of packages) {
    const parts = licences.map((file) => readFileSync(join(from, file), 'utf8').trimEnd());
    const text = parts.length > 0 ? parts.join('\n\n') : `${licenceOf(manifest)}; the package has no licence text`;
    write(join(folder, 'npm', `${manifest.name.replace('/', '+')}@${manifest.version}`), `${text}\n`);
  }
}

/** Writes usr/share/podwire/sbom.spdx.json and usr/share/podwire/licenses into the layer. */
export function addBillOfMaterials({ arch, source, layer, base, packages, epochSeconds, revision }) {
  step('bill of materials and licences', () => {
    const { version, license } = readJson(join(source, 'package.json'));
    const podwire = spdxPackage({
      kind: 'product',
      name: 'podwire',
      version,
      licence: license,
      locator: `pkg:generic/podwire@${version}?arch=${arch}`,
    });
    const parts = [nodePackage(arch), ...base.debian.map(debianPackage), ...packages.map(npmPackage)];
    const unique = [...new Map(parts.map((part) => [part.SPDXID, part])).values()];
    const document = {
      spdxVersion: 'SPDX-2.3',
      dataLicense: 'CC0-1.0',
      SPDXID: 'SPDXRef-DOCUMENT',
      name: `podwire-${version}-${arch}`,
      documentNamespace: `urn:podwire:sbom:${version}:${arch}:${revision}`,
      creationInfo: {
        created: new Date(epochSeconds * 1000).toISOString().replace('.000', ''),
        creators: [`Tool: podwire-image-${version}`],
      },
      packages: [podwire, ...unique],
      relationships: [
        { spdxElementId: 'SPDXRef-DOCUMENT', relationshipType: 'DESCRIBES', relatedSpdxElement: podwire.SPDXID },
        ...unique.map(({ SPDXID }) => ({
          spdxElementId: podwire.SPDXID,
          relationshipType: 'CONTAINS',
          relatedSpdxElement: SPDXID,
        })),
      ],
    };
    write(join(layer, FOLDER, 'sbom.spdx.json'), `${JSON.stringify(document, null, 1)}\n`);
    writeLicences({ source, layer, base, packages });
  });
}
