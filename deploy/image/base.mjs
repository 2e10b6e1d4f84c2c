// The first layer: files of Debian packages, with the libraries that they need, and Node.js.
import { createHash } from 'node:crypto';
import {
  chmodSync,
  copyFileSync,
  existsSync,
  lstatSync,
  mkdirSync,
  readFileSync,
  readdirSync,
  readlinkSync,
} from 'node:fs';
import { basename, dirname, join, normalize, relative } from 'node:path';

import { DEBIAN, FOLDERS, LINKS, NODE, USERS } from './recipe.mjs';
import { filesBelow, link, run, ship, step, write } from './tree.mjs';

/** Debian's sources of this machine, in the form of its release or the older one. */
const SOURCES = ['/etc/apt/sources.list.d/debian.sources', '/etc/apt/sources.list'];

/**
 * Downloads the packages of an architecture with their dependencies, as if nothing were installed, and unpacks each into a
 * folder of its own. Needs no root, and runs no program of that architecture.
 * @returns folders by package name
 */
export function unpackPackages({ arch, work, packages }) {
  const apt = join(work, 'apt');
  const [sources] = SOURCES.filter((path) => existsSync(path));
  const parts = join(apt, 'sources');
  const archives = join(apt, 'cache', 'archives');
  for (const folder of [parts, join(apt, 'state', 'lists', 'partial'), join(archives, 'partial')]) {
    mkdirSync(folder, { recursive: true });
  }
  copyFileSync(sources, join(parts, basename(sources) === 'sources.list' ? 'debian.list' : 'debian.sources'));
  write(join(apt, 'status'), '');
  const settings = {
    'Dir::State': join(apt, 'state'),
    'Dir::State::status': join(apt, 'status'),
    'Dir::Cache': join(apt, 'cache'),
    'Dir::Etc::sourcelist': '/dev/null',
    'Dir::Etc::sourceparts': parts,
    'APT::Architecture': arch,
    'APT::Sandbox::User': '',
  };
  const lines = Object.entries(settings).map(([name, value]) => `${name} "${value}";\n`);
  write(join(apt, 'apt.conf'), `${lines.join('')}APT::Architectures { "${arch}"; };\n`);
  const env = { APT_CONFIG: join(apt, 'apt.conf') };
  run('apt-get', ['update', '-qq'], { env });
  const download = ['install', '-y', '-qq', '--no-install-recommends', '--download-only', ...packages];
  run('apt-get', download, { env });
  const folders = new Map();
  for (const folder of ['debian', 'control']) mkdirSync(join(work, folder));
  for (const file of readdirSync(archives).filter((name) => name.endsWith('.deb'))) {
    const [name] = file.split('_');
    folders.set(name, join(work, 'debian', name));
    run('dpkg-deb', ['-x', join(archives, file), join(work, 'debian', name)]);
    run('dpkg-deb', ['-e', join(archives, file), join(work, 'control', name)]);
  }
  return folders;
}

/** Downloads and unpacks Node.js. @returns its folder, with bin, include and LICENSE */
function unpackNode({ arch, names, work }) {
  const name = `node-linux-${names.node}`;
  const [{ filename }] = JSON.parse(run('npm', ['pack', '--json', `${name}@${NODE.version}`], { cwd: work }));
  const archive = join(work, filename.replace('@', '').replace('/', '-'));
  const digest = `sha512-${createHash('sha512').update(readFileSync(archive)).digest('base64')}`;
  if (digest !== NODE.integrity[arch]) throw new Error(`${filename}: digest ${digest} differs from recipe.mjs`);
  run('tar', ['-xzf', archive, '-C', work]);
  return join(work, 'package');
}

/** Finds files in the unpacked packages by their path on a merged system, where /lib is /usr/lib. */
class Packages {
  #files = new Map();

  constructor(folders) {
    for (const [name, folder] of folders) {
      for (const path of filesBelow(folder)) {
        const merged = `/${path}`.replace(/^\/(bin|sbin|lib|lib64)\//, '/usr/$1/');
        this.#files.set(merged, { name, file: join(folder, path) });
      }
    }
  }

  /** Package and file at a path, after following the links of the packages. */
  find(path) {
    const found = this.#files.get(path);
    if (found === undefined || !lstatSync(found.file).isSymbolicLink()) return found;
    const target = readlinkSync(found.file);
    const next = normalize(target.startsWith('/') ? target : join(dirname(path), target));
    return this.find(next.replace(/^\/(bin|sbin|lib|lib64)\//, '/usr/$1/'));
  }

  below(folder) {
    return [...this.#files.keys()].filter((path) => path.startsWith(`${folder}/`)).sort();
  }
}

/** Libraries and the loader that a program names in its ELF headers. */
export function neededBy(file) {
  const text = run('readelf', ['--wide', '--dynamic', '--program-headers', file]);
  const libraries = [...text.matchAll(/\(NEEDED\).*\[(.*)\]/g)].map(([, name]) => name);
  const loader = /program interpreter: (.*)\]/.exec(text)?.[1];
  return { libraries, loader };
}

/** Ships libraries with everything that they need in turn. @returns names of the packages that they are from */
function shipLibraries({ layer, names, packages, wanted, loaders }) {
  const owners = new Set();
  const place = `/usr/lib/${names.gnu}`;
  const queue = [...wanted];
  for (const name of queue) {
    const to = join(layer, place, name);
    if (existsSync(to)) continue;
    const found = packages.find(join(place, name));
    if (found === undefined) throw new Error(`no Debian package has ${name} in ${place}; add one to recipe.mjs`);
    owners.add(found.name);
    ship(found.file, to);
    queue.push(...neededBy(found.file).libraries);
  }
  for (const loader of loaders) {
    const merged = loader.replace(/^\/(lib|lib64)\//, '/usr/$1/');
    const found = packages.find(merged);
    if (found === undefined) throw new Error(`no Debian package has the loader ${loader}`);
    ship(found.file, join(layer, place, basename(loader)));
    chmodSync(join(layer, place, basename(loader)), 0o755);
    link(join(layer, merged), relative(dirname(merged), join(place, basename(loader))));
  }
  return owners;
}

function shipDebian({ layer, names, packages, binaries }) {
  const owners = new Set();
  for (const path of [...DEBIAN.programs, ...DEBIAN.files]) {
    const found = packages.find(path);
    if (found === undefined) throw new Error(`no Debian package has ${path}`);
    owners.add(found.name);
    ship(found.file, join(layer, path));
  }
  const needs = [...DEBIAN.programs.map((path) => join(layer, path)), ...binaries].map(neededBy);
  const wanted = [...DEBIAN.libraries, ...needs.flatMap(({ libraries }) => libraries)];
  const loaders = new Set(needs.flatMap(({ loader }) => loader ?? []));
  for (const name of shipLibraries({ layer, names, packages, wanted, loaders })) owners.add(name);
  const certificates = packages.below('/usr/share/ca-certificates').filter((path) => path.endsWith('.crt'));
  const texts = certificates.map((path) => readFileSync(packages.find(path).file, 'utf8').trimEnd());
  write(join(layer, '/etc/ssl/certs/ca-certificates.crt'), `${texts.join('\n')}\n`);
  owners.add('ca-certificates');
  return owners;
}

/** Accounts, name resolution, empty folders and links. */
function shipSystemFiles(layer) {
  const passwd = USERS.map(({ name, id, home }) => `${name}:x:${id}:${id}:${name}:${home}:/usr/sbin/nologin\n`);
  const group = USERS.map(({ name, id }) => `${name}:x:${id}:\n`);
  write(join(layer, 'etc/passwd'), passwd.join(''));
  write(join(layer, 'etc/group'), group.join(''));
  write(join(layer, 'etc/nsswitch.conf'), 'passwd: files\ngroup: files\nhosts: files dns\n');
  for (const [path, mode] of Object.entries(FOLDERS)) {
    mkdirSync(join(layer, path), { recursive: true });
    chmodSync(join(layer, path), mode);
  }
  for (const [path, target] of Object.entries(LINKS)) link(join(layer, path), target);
}

/**
 * Fills the layer.
 * @returns nodeFolder: Node.js as unpacked; debian: name, control file and licence text of each package that has a file in it
 */
export function addBase({ arch, names, work, cross, layer }) {
  const folders = step('Debian packages', () => unpackPackages({ arch, work, packages: DEBIAN.packages }));
  const nodeFolder = step('Node.js', () => unpackNode({ arch, names, work }));
  return step('base layer', () => {
    const node = join(layer, NODE.program);
    ship(join(nodeFolder, 'bin/node'), node);
    run(`${cross}strip`, ['--strip-all', node]);
    const packages = new Packages(folders);
    const owners = shipDebian({ layer, names, packages, binaries: [node] });
    shipSystemFiles(layer);
    const debian = [...owners].sort().map((name) => debianPackage({ name, work, layer }));
    return { nodeFolder, debian, commonLicences: join(folders.get('base-files'), 'usr/share/common-licenses') };
  });
}

/** Writes the record that image scanners read of a package, as the image has no dpkg database. */
function debianPackage({ name, work, layer }) {
  const control = readFileSync(join(work, 'control', name, 'control'), 'utf8');
  write(join(layer, 'var/lib/dpkg/status.d', name), control);
  // Packages of one source may have their documents in one of them, and links to it.
  const doc = join(work, 'debian', name, 'usr/share/doc', name);
  const owner = lstatSync(doc).isSymbolicLink() ? readlinkSync(doc) : name;
  return { name, control, licence: join(work, 'debian', owner, 'usr/share/doc', owner, 'copyright') };
}
