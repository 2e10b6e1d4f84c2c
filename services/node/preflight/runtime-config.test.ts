import { expect, test } from 'vitest';

import { readRuntimeConfig } from './runtime-config.js';

const read = (text: string, path = '/etc/containerd/config.toml') => readRuntimeConfig([{ path, text }]);

test.each([
  [
    'containerd 1, as Debian has it',
    `version = 2
[plugins]
  [plugins."io.containerd.grpc.v1.cri"]
    [plugins."io.containerd.grpc.v1.cri".cni]
      bin_dir = "/usr/lib/cni"
      conf_dir = "/etc/cni/net.d"  # as it is
  [plugins."io.containerd.internal.v1.opt"]
    path = "/var/lib/containerd"`,
    { binDirectories: ['/usr/lib/cni'], configDirectory: '/etc/cni/net.d', usesInternalLoopback: false },
  ],
  [
    'containerd 2',
    `version = 3
[plugins.'io.containerd.cri.v1.runtime'.cni]
  bin_dir = ''
  bin_dirs = [
    '/opt/cni/bin/',
    '/usr/libexec/cni', # of the distribution
  ]
  conf_dir = '/run/cni/net.d'
  use_internal_loopback = true
[other]
  conf_dir = '/elsewhere'`,
    {
      binDirectories: ['/opt/cni/bin', '/usr/libexec/cni'],
      configDirectory: '/run/cni/net.d',
      usesInternalLoopback: true,
    },
  ],
  [
    'CRI-O',
    `[crio.network]
network_dir = "/etc/cni/net.d/"
plugin_dirs = ["/opt/cni/bin/"]`,
    { binDirectories: ['/opt/cni/bin'], configDirectory: '/etc/cni/net.d', usesInternalLoopback: false },
  ],
  [
    'a file without the keys',
    '# bin_dir = "/x"\nversion = 2\n',
    { binDirectories: ['/opt/cni/bin'], configDirectory: '/etc/cni/net.d', usesInternalLoopback: false },
  ],
])('%s', (_, text, expected) => {
  expect(read(text)).toEqual({ file: '/etc/containerd/config.toml', ...expected });
});

test('a later file goes before an earlier one', () => {
  const text = (directory: string) => `[plugins."x".cni]\nbin_dirs = ["${directory}"]`;
  const files = ['/a', '/b'].map((path) => ({ path, text: text(path) }));
  expect(readRuntimeConfig(files)).toMatchObject({ file: '/b', binDirectories: ['/b'] });
});

test('without a file the runtime is unknown', () => {
  expect(readRuntimeConfig([])).toBeUndefined();
});
