// The images that Kubernetes' own tests name, made of Debian packages and of programs of this cache: there is no registry.
import { createHash } from 'node:crypto';
import {
  chmodSync,
  copyFileSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  symlinkSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { basename, join } from 'node:path';
import process from 'node:process';
import { fileURLToPath } from 'node:url';

import { unpackPackages } from '../../deploy/image/base.mjs';
import { link, step, write } from '../../deploy/image/tree.mjs';
import { ARCHITECTURE, writeDockerArchive } from './docker-archive.mjs';
import { makeAuthority } from './lane/certificates.mjs';
import { must } from './lane/wait.mjs';

export const COREDNS_IMAGE = 'cluster.invalid/coredns:1';

const REGISTRY = 'registry.k8s.io/';
const PREFIX = 'e2e-images-';

/** Programs that the tests execute in pods: hostexec, dig, curl, nc, iperf, conntrack. */
const PACKAGES = [
  ...['bash', 'coreutils', 'findutils', 'grep', 'hostname', 'libc-bin', 'mawk', 'procps', 'sed', 'util-linux'],
  ...['bind9-dnsutils', 'busybox-static', 'conntrack', 'curl', 'iperf', 'iproute2', 'netcat-openbsd', 'socat', 'wget'],
];

/** Links that scripts of the packages make. */
const LINKS = {
  'usr/bin/sh': 'bash',
  'usr/bin/awk': 'mawk',
  'usr/bin/nc': 'nc.openbsd',
  'usr/local/bin/iperf': '/usr/bin/iperf',
};

const FILES = {
  'etc/passwd': 'root:x:0:0:root:/root:/bin/bash\nuser-defined-in-image:x:1000:1000::/home:/bin/sh\n',
  'etc/group': 'root:x:0:\nuser-defined-in-image:x:1000:\ngroup-defined-in-image:x:50000:user-defined-in-image\n',
  'etc/nsswitch.conf': 'passwd: files\ngroup: files\nhosts: files dns\n',
};

const UNUSED = ['usr/share/doc', 'usr/share/man', 'usr/share/locale', 'usr/share/info'];

const ENVIRONMENT = ['PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'];

/** The images by name of the repository. The tests name the tags. */
const IMAGES = {
  agnhost: { layers: ['debian', 'coredns', 'agnhost'], config: { Entrypoint: ['/agnhost'], Cmd: ['pause'] } },
  'glibc-dns-testing': { layers: ['debian'], config: { Cmd: ['/bin/bash'] } },
  busybox: { layers: ['busybox'], config: { Cmd: ['sh'] } },
  // The tests need a pod with this image, and do not read its answers.
  nginx: { layers: ['agnhost'], config: { Entrypoint: ['/agnhost', 'netexec', '--http-port=80'] } },
  'regression-issue-74839': { layers: ['regression'], config: { Entrypoint: ['/regression-issue-74839'] } },
  pause: { layers: ['pod'], config: { Entrypoint: ['/pod'], Cmd: ['pause'] } },
};

const layerOf = (work, name) => {
  const root = join(work, name);
  mkdirSync(root, { recursive: true });
  return root;
};

function debianLayer(work) {
  const root = layerOf(work, 'debian-layer');
  for (const name of ['bin', 'sbin', 'lib', 'lib64']) {
    mkdirSync(join(root, 'usr', name), { recursive: true });
    symlinkSync(join('usr', name), join(root, name));
  }
  const packages = unpackPackages({ arch: ARCHITECTURE, work, packages: PACKAGES });
  const isUsed = ([name]) => !/^(lib)?perl/.test(name);
  for (const [, folder] of [...packages].filter(isUsed)) {
    must('sh', ['-c', 'tar -C "$1" -c . | tar -C "$2" --keep-directory-symlink -x', 'sh', folder, root]);
  }
  for (const path of UNUSED) rmSync(join(root, path), { recursive: true, force: true });
  for (const [path, target] of Object.entries(LINKS)) link(join(root, path), target);
  for (const [path, text] of Object.entries(FILES)) write(join(root, path), text);
  mkdirSync(join(root, 'uploads'));
  return root;
}

function busyboxLayer(work, debian) {
  const root = layerOf(work, 'busybox-layer');
  const program = join(root, 'bin', 'busybox');
  for (const folder of ['bin', 'etc', 'tmp', 'root']) mkdirSync(join(root, folder));
  copyFileSync(join(debian, 'bin', 'busybox'), program);
  chmodSync(join(root, 'tmp'), 0o1777);
  for (const name of must(program, ['--list']).trim().split('\n')) link(join(root, 'bin', name), 'busybox');
  return root;
}

function programLayer(work, name, program) {
  const root = layerOf(work, `${name}-layer`);
  copyFileSync(program, join(root, basename(program)));
  return root;
}

function agnhostLayer(work, programs) {
  const root = programLayer(work, 'agnhost', join(programs.agnhost, 'agnhost'));
  copyFileSync(join(programs.e2e, 'agnhost'), join(root, 'agnhost-upstream'));
  symlinkSync('agnhost', join(root, 'agnhost-2'));
  // Servers with TLS read /localhost.crt and /localhost.key, and no test verifies them.
  makeAuthority(root, 'localhost');
  return root;
}

function makeLayers(work, programs) {
  const debian = debianLayer(work);
  return {
    debian,
    busybox: busyboxLayer(work, debian),
    agnhost: agnhostLayer(work, programs),
    coredns: programLayer(work, 'coredns', join(programs.coredns, 'coredns')),
    regression: programLayer(work, 'regression', join(programs.e2e, 'regression-issue-74839')),
    pod: programLayer(work, 'pod', join(programs.pod, 'pod')),
  };
}

/** The images in the table, with the tags that the tests name. */
function imagesOf(names) {
  const nameOf = (tag) => basename(tag).split(':')[0];
  const ofTests = Object.entries(IMAGES).map(([name, { layers, config }]) => {
    const tags = names.filter((tag) => tag.startsWith(REGISTRY) && nameOf(tag) === name);
    if (tags.length === 0) throw new Error(`e2e.test: names no image "${name}"; remove it from e2e-images.mjs`);
    return { tags, layers, config: { Env: ENVIRONMENT, ...config } };
  });
  return [...ofTests, { tags: [COREDNS_IMAGE], layers: ['coredns'], config: { Entrypoint: ['/coredns'] } }];
}

/** Made once for each state of this file and of the programs. @returns the path of the archive */
export function makeE2eImages({ cache, programs }) {
  const hash = createHash('sha256').update(readFileSync(fileURLToPath(import.meta.url)));
  for (const group of ['e2e', 'cnp', 'agnhost', 'coredns', 'pod']) hash.update(basename(programs[group]));
  const archive = join(cache, `${PREFIX}${hash.digest('hex').slice(0, 12)}.tar`);
  if (existsSync(archive)) return archive;
  const work = mkdtempSync(join(tmpdir(), 'podwire-e2e-images-'));
  try {
    step('images of the tests', () => {
      const ofKubernetes = must(join(programs.e2e, 'e2e.test'), ['--list-images']).trim().split('\n');
      const ofCnp = readFileSync(join(programs.cnp, 'manifests.yaml'), 'utf8').matchAll(/image: (\S+)/g);
      const names = [...new Set([...ofKubernetes, ...[...ofCnp].map(([, name]) => name)])];
      const unfinished = `${archive}.${process.pid}`;
      const layers = makeLayers(work, programs);
      writeDockerArchive({ archive: unfinished, work: join(work, 'archive'), layers, images: imagesOf(names) });
      for (const name of readdirSync(cache)) {
        if (name.startsWith(PREFIX) && name !== basename(unfinished)) rmSync(join(cache, name));
      }
      renameSync(unfinished, archive);
    });
  } finally {
    rmSync(work, { recursive: true, force: true });
  }
  return archive;
}
