import { mkdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

import { EncapsulationMode, ListPoolsResponse, Pool, PoolServiceService } from '@podwire/proto/podwire/ipam/v1/pool';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { z } from 'zod';

import { fake, Fakes } from '../../testing/ctl.js';

let fakes: Fakes;
beforeEach(() => {
  fakes = new Fakes();
});
afterEach(() => fakes.clear());

const REPORT = z.object({ passed: z.boolean(), checks: z.array(z.record(z.string(), z.string())) });

/** Lines of a check. The folder of the fakes has no programs, so the check of programs fails. */
async function linesOf(check: string, env: Readonly<Record<string, string>>, ...args: readonly string[]) {
  const { exitCode, stdout } = await fakes.podwirectlWith(
    env,
    'preflight',
    '--root',
    fakes.folder,
    '-o',
    'json',
    ...args,
  );
  const { passed, checks } = REPORT.parse(JSON.parse(stdout));
  expect([exitCode, passed]).toEqual([4, false]);
  return checks.filter((each) => each.check === check).map(({ detail = '' }) => detail);
}

test('checks the given ranges, else the pools of podwire-ipam, else the pool of the chart', async () => {
  const names = (...args: readonly string[]) => linesOf('ranges', {}, ...args);
  expect(await names()).toEqual([expect.stringContaining('10.65.0.0/16')]);
  const never = EncapsulationMode.ENCAPSULATION_MODE_NEVER;
  const pool = Pool.fromPartial({ name: 'web', cidr: '10.99.0.0/16', ipipMode: never, vxlanMode: never });
  await fakes.serve(fake(PoolServiceService.listPools, () => ListPoolsResponse.fromPartial({ pools: [pool] })));
  expect(await names()).toEqual([expect.stringContaining('web (10.99.0.0/16)')]);
  const given = ['--pool', '10.98.0.0/16', '--pool', 'fd98::/48'];
  expect(await names(...given)).toEqual([
    expect.stringContaining('10.98.0.0/16'),
    expect.stringContaining('fd98::/48'),
  ]);
});

test('reads the directories of the installation from the variables, else from its file of settings', async () => {
  const programs = (env: Readonly<Record<string, string>> = {}) => linesOf('programs', env);
  expect(await programs()).toEqual([expect.stringContaining('missing in /opt/cni/bin')]);
  mkdirSync(join(fakes.folder, 'etc/podwire'), { recursive: true });
  writeFileSync(join(fakes.folder, 'etc/podwire/install.env'), '# a comment\nCNI_BIN_DIR=/usr/lib/cni\n');
  expect(await programs()).toEqual([expect.stringContaining('missing in /usr/lib/cni')]);
  expect(await programs({ CNI_BIN_DIR: '/srv/cni' })).toEqual([expect.stringContaining('missing in /srv/cni')]);
});

test('refuses a range with host bits', async () => {
  const { exitCode, stderr } = await fakes.podwirectl('preflight', '--pool', '10.65.0.1/16');
  expect([exitCode, stderr]).toEqual([2, expect.stringContaining('has host bits set')]);
});
