import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { cleanUp, requireThrowawayNamespace, run } from '@podwire/dataplane/testing/kernels';
import { EncapsulationMode, Pool } from '@podwire/proto/podwire/ipam/v1/pool';
import { systemClock } from '@podwire/shared/runtime/clock';
import { afterEach, beforeEach, expect, test } from 'vitest';

import { preflight } from './facts.js';

let root: string;
beforeEach(() => {
  requireThrowawayNamespace();
  root = mkdtempSync(join(tmpdir(), 'podwire-preflight-'));
  mkdirSync(join(root, 'opt/cni/bin'), { recursive: true });
  mkdirSync(join(root, 'etc/containerd'), { recursive: true });
  mkdirSync(join(root, 'var'));
  symlinkSync('/run', join(root, 'var/run'));
  writeFileSync(join(root, 'opt/cni/bin/loopback'), '#!/bin/sh\necho \'{"supportedVersions":["1.0.0"]}\'\n', {
    mode: 0o755,
  });
  writeFileSync(join(root, 'etc/containerd/config.toml'), 'version = 2\n');
  run('ip', 'link', 'add', 'eth9', 'type', 'bridge');
  run('ip', 'link', 'set', 'eth9', 'up');
  run('ip', 'address', 'add', '192.0.2.1/24', 'dev', 'eth9');
});
afterEach(() => {
  cleanUp();
  rmSync(root, { recursive: true });
});

const POOL = Pool.fromPartial({
  name: 'pods',
  cidr: '10.65.0.0/16',
  vxlanMode: EncapsulationMode.ENCAPSULATION_MODE_ALWAYS,
  ipipMode: EncapsulationMode.ENCAPSULATION_MODE_NEVER,
  natOutgoing: true,
});

function checksOf() {
  const installation = {
    binDirectory: '/opt/cni/bin',
    configDirectory: '/etc/cni/net.d',
    configName: '10-podwire.conflist',
  };
  return preflight({ root, pools: [POOL], installation, clock: systemClock });
}

/** Failed checks. The machine decides about warnings. */
async function failures(): Promise<readonly string[]> {
  const checks = await checksOf();
  return checks.filter(({ result }) => result === 'failed').map(({ check, detail }) => `${check}: ${detail}`);
}

test('names a firewall that drops forwarded packets, and a route into a pool', async () => {
  expect(await failures()).toEqual([]);
  run('nft', 'add', 'table', 'inet', 'site');
  run('nft', 'add', 'chain', 'inet', 'site', 'forward', '{ type filter hook forward priority 0; policy drop; }');
  run('ip', 'route', 'add', '10.65.128.0/20', 'via', '192.0.2.9');
  expect(await failures()).toEqual([
    expect.stringMatching(/^firewall: .*chain forward of table inet site \(policy drop\); run: nft insert rule/),
    expect.stringMatching(
      /^ranges: pool pods \(10\.65\.0\.0\/16\) overlaps with the route to 10\.65\.128\.0\/20 by eth9/,
    ),
  ]);
});

test('names a missing loopback, an earlier configuration and other directories of the runtime', async () => {
  rmSync(join(root, 'opt/cni/bin/loopback'));
  mkdirSync(join(root, 'etc/cni/net.d'), { recursive: true });
  writeFileSync(join(root, 'etc/cni/net.d/05-bridge.conf'), '{ "name": "n", "type": "bridge" }');
  writeFileSync(join(root, 'etc/containerd/config.toml'), '[plugins."x".cni]\nbin_dir = "/usr/lib/cni"\n');
  expect(await failures()).toEqual([
    expect.stringContaining('runtime: /etc/containerd/config.toml names /usr/lib/cni, not /opt/cni/bin'),
    expect.stringContaining('programs: program loopback'),
    expect.stringContaining('configurations: 05-bridge.conf comes before'),
  ]);
  mkdirSync(join(root, 'proc/7'), { recursive: true });
  const started = ['/usr/bin/containerd', '--log-level=info', '--config', '/etc/other.toml', ''].join('\0');
  writeFileSync(join(root, 'proc/7/cmdline'), started);
  writeFileSync(join(root, 'etc/other.toml'), '[plugins."x".cni]\nbin_dir = "/opt/cni"\n');
  expect(await failures()).toContainEqual(expect.stringContaining('runtime: /etc/other.toml names /opt/cni, not'));
});

test('leaves the node as it is, and reads the clock', async () => {
  const state = () => [run('nft', 'list', 'ruleset'), run('ip', '-br', 'link'), run('ip', 'route')];
  const before = state();
  const checks = await checksOf();
  expect(state()).toEqual(before);
  expect(checks.map(({ detail }) => detail).filter((detail) => detail.startsWith('unknown state'))).toEqual([]);
});
