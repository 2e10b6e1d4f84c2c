// The Debian package and the archive of one architecture: the programs of the image, with the units of deploy/systemd; Helm charts.
import { chmodSync, lstatSync, mkdirSync, readlinkSync, rmSync } from 'node:fs';
import { dirname, join } from 'node:path';

import { packFolder } from '../image/oci.mjs';
import { readJson } from '../image/podwire.mjs';
import { HOME, NODE, WORKSPACES } from '../image/recipe.mjs';
import { filesBelow, link, run, setTimes, ship, write } from '../image/tree.mjs';

const UNITS = ['podwire-ipam.service', 'podwire-node.service', 'podwire-install.service'];

/** Files of the repository, by their path on a host. */
const FILES = {
  ...Object.fromEntries(UNITS.map((unit) => [`usr/lib/systemd/system/${unit}`, `deploy/systemd/${unit}`])),
  'usr/lib/sysusers.d/podwire.conf': 'deploy/systemd/podwire.sysusers',
  'usr/lib/tmpfiles.d/podwire.conf': 'deploy/systemd/podwire.tmpfiles',
  'usr/lib/modules-load.d/podwire.conf': 'deploy/systemd/podwire.modules',
  'usr/share/doc/podwire/README.md': 'deploy/systemd/README.md',
  'usr/share/doc/podwire/copyright': 'LICENSE',
};

/** Configuration files: an upgrade keeps the changes of the host. */
const CONFIGURATION = ['ipam.env', 'node.env', 'install.env'];

/**
 * Packages of Debian whose files the programs need: of the libraries that the image ships, and of `nft`. The versions are
 * Debian 12's, on which everything is compiled.
 */
const DEPENDS = ['libatomic1', 'libc6 (>= 2.36)', 'libgcc-s1', 'libstdc++6 (>= 12)', 'nftables', 'systemd', 'kmod'];

/** The package's scripts. No unit is enabled: which ones a host needs depends on its role. */
const SCRIPTS = {
  postinst: `#!/bin/sh
set -e
[ "$1" = configure ] || exit 0
systemd-sysusers podwire.conf
systemd-tmpfiles --create podwire.conf
[ -d /run/systemd/system ] || exit 0
# podwire-node reports a module that the kernel does not have.
systemctl restart systemd-modules-load.service || true
systemctl daemon-reload
[ -z "$2" ] || systemctl try-restart ${UNITS.join(' ')}
`,
  prerm: `#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
  systemctl disable --now ${UNITS.toReversed().join(' ')}
fi
`,
  postrm: `#!/bin/sh
set -e
[ ! -d /run/systemd/system ] || systemctl daemon-reload
`,
};

/** Licence texts and bill of materials of the image, without the Debian packages that only the image has. */
function shipLicences({ from, folder }) {
  const documents = 'usr/share/podwire';
  for (const file of filesBelow(join(from, documents))) {
    // The shim is linked statically with the C library.
    const isForeign = file.startsWith('licenses/debian/') && !file.endsWith('/libc6');
    if (!isForeign && file !== 'sbom.spdx.json') ship(join(from, documents, file), join(folder, documents, file));
  }
  const image = readJson(join(from, documents, 'sbom.spdx.json'));
  const isShipped = (id) => !id.startsWith('SPDXRef-deb-') || id.startsWith('SPDXRef-deb-libc6-');
  const sbom = {
    ...image,
    name: image.name.replace('podwire-', 'podwire-package-'),
    documentNamespace: image.documentNamespace.replace(':sbom:', ':sbom:package:'),
    packages: image.packages.filter(({ SPDXID }) => isShipped(SPDXID)),
    relationships: image.relationships.filter(({ relatedSpdxElement }) => isShipped(relatedSpdxElement)),
  };
  write(join(folder, documents, 'sbom.spdx.json'), `${JSON.stringify(sbom, null, 1)}\n`);
}

/** Fills a folder with the files of a host. */
function stage({ source, layers, folder }) {
  rmSync(folder, { recursive: true, force: true });
  mkdirSync(join(folder, dirname(HOME)), { recursive: true });
  run('cp', ['-a', join(layers.podwire, HOME), join(folder, HOME)]);
  ship(join(layers.base, NODE.program), join(folder, NODE.program));
  const commands = Object.keys(WORKSPACES).flatMap((path) =>
    Object.keys(readJson(join(layers.podwire, HOME, path, 'package.json')).bin ?? {}),
  );
  for (const command of commands) {
    link(join(folder, 'usr/bin', command), readlinkSync(join(layers.podwire, 'usr/local/bin', command)));
  }
  for (const [path, file] of Object.entries(FILES)) ship(join(source, file), join(folder, path));
  for (const file of CONFIGURATION) ship(join(source, 'deploy/systemd/env', file), join(folder, 'etc/podwire', file));
  shipLicences({ from: layers.podwire, folder });
}

/** The control file of the Debian package. */
export function controlFile({ arch, version, sizeKibibytes }) {
  return `Package: podwire
Version: ${version}
Architecture: ${arch}
Maintainer: The Podwire authors
Section: net
Priority: optional
Installed-Size: ${sizeKibibytes}
Depends: ${DEPENDS.join(', ')}
Recommends: containernetworking-plugins
Suggests: bird2
Description: Pod networking for Kubernetes and containerd
 IPAM, dataplane, CNI plugin and podwirectl, with Node.js and systemd units.
 Enable podwire-node and podwire-install on each host, and podwire-ipam on
 the host that keeps the pools.
`;
}

const kibibytes = (file) => Math.ceil(lstatSync(file).size / 1024);

/**
 * Writes podwire_VERSION_ARCH.deb, and podwire-VERSION-linux-ARCH.tar.gz with the same files.
 * @param build - arch; source: clean tree; layers: base and podwire of the image; commit; work: folder; output: folder
 */
export function writePackages({ arch, source, layers, commit: { version, epochSeconds }, work, output }) {
  const folder = join(work, 'package');
  stage({ source, layers, folder });
  const file = join(output, `podwire-${version}-linux-${arch}.tar.gz`);
  packFolder({ file, folder, epochSeconds, entries: ['etc', 'opt', 'usr'] });
  const sizes = filesBelow(folder).map((path) => kibibytes(join(folder, path)));
  const sizeKibibytes = sizes.reduce((sum, size) => sum + size, 0);
  write(join(folder, 'DEBIAN/control'), controlFile({ arch, version, sizeKibibytes }));
  write(join(folder, 'DEBIAN/conffiles'), CONFIGURATION.map((name) => `/etc/podwire/${name}\n`).join(''));
  for (const [name, text] of Object.entries(SCRIPTS)) write(join(folder, 'DEBIAN', name), text, 0o755);
  chmodSync(folder, 0o755);
  setTimes(folder, epochSeconds);
  // gzip: the result of dpkg-deb's other compressors depends on the number of processors.
  const options = ['--root-owner-group', '-Zgzip', '--build', folder, join(output, `podwire_${version}_${arch}.deb`)];
  run('dpkg-deb', options, { env: { SOURCE_DATE_EPOCH: String(epochSeconds) } });
  rmSync(folder, { recursive: true });
}

/** Packs the chart of a folder as `helm package` does: links become the files that they lead to. */
export function packChart({ chart, source, name, work, epochSeconds }) {
  const folder = join(work, 'charts');
  mkdirSync(folder, { recursive: true });
  run('cp', ['-rL', source, join(folder, name)]);
  packFolder({ file: chart, folder, epochSeconds, entries: [name] });
}
