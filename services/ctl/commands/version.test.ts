import { GetReleaseResponse, ReleaseServiceService } from '@podwire/proto/podwire/release/v1/release';
import { Failure } from '@podwire/shared/failure/failure';
import { readRelease } from '@podwire/shared/runtime/process-release';
import { afterEach, beforeEach, expect, test } from 'vitest';

import { fake, Fakes } from '../testing/ctl.js';

let fakes: Fakes;
let own: string;
beforeEach(async () => {
  fakes = new Fakes();
  own = await readRelease();
});
afterEach(() => fakes.clear());

const startTime = new Date('2026-05-04T12:30:00.250Z');
const release = { release: '0.9.1', nodeVersion: 'v22.13.0' };
const reported = fake(ReleaseServiceService.getRelease, () =>
  GetReleaseResponse.fromPartial({ ...release, startTime }),
);

const rowOf = (stdout: string, name: string) => stdout.split('\n').find((line) => line.startsWith(`${name} `));

test('shows podwirectl and the services that it reaches', async () => {
  await fakes.serve(reported);
  const { exitCode, stdout, stderr } = await fakes.podwirectl('version');
  expect([exitCode, stderr]).toEqual([0, '']);
  const lines = stdout.trim().split('\n');
  expect(lines.map((line) => line.split(/ +/)[0])).toEqual(['COMPONENT', 'podwirectl', 'podwire-ipam', 'podwire-node']);
  expect(lines[0]).toMatch(/^COMPONENT +RELEASE +NODE\.JS +STARTED +ENDPOINT$/);
  expect(lines[1]?.split(/ {2,}/)).toEqual(['podwirectl', own, process.version, '-', '-']);
  const started = expect.stringMatching(/^2026-05-04T12:30:00Z \(\S+ ago\)$/);
  for (const at of [2, 3])
    expect(lines[at]?.split(/ {2,}/).slice(1)).toEqual(['0.9.1', 'v22.13.0', started, `unix:${fakes.socket}`]);
});

test('prints the same as JSON', async () => {
  await fakes.serve(reported);
  const { exitCode, stdout } = await fakes.podwirectl('version', '-o', 'json');
  expect(exitCode).toBe(0);
  const answer = { ...release, startTime: startTime.toISOString(), error: null };
  expect(JSON.parse(stdout)).toEqual({
    components: [
      {
        component: 'podwirectl',
        endpoint: null,
        release: own,
        nodeVersion: process.version,
        startTime: null,
        error: null,
      },
      { component: 'podwire-ipam', endpoint: `unix:${fakes.socket}`, ...answer },
      { component: 'podwire-node', endpoint: `unix:${fakes.socket}`, ...answer },
    ],
  });
});

test('with --client connects to no service', async () => {
  const { exitCode, stdout } = await fakes.podwirectl('version', '--client', '-o', 'yaml');
  expect([exitCode, stdout]).toEqual([0, expect.stringContaining('component: podwirectl')]);
  expect(stdout).not.toContain('podwire-ipam');
});

test('shows services that do not answer, with the reasons', async () => {
  const { exitCode, stdout, stderr } = await fakes.podwirectl('version');
  expect(exitCode).toBe(5);
  for (const name of ['podwire-ipam', 'podwire-node']) {
    expect(rowOf(stdout, name)).toMatch(/ unreachable +- +- +unix:/);
    expect(stderr).toMatch(
      new RegExp(`^podwirectl: unreachable: ${name} at unix:.*: the socket does not exist: .*\\(UNREACHABLE\\)$`, 'm'),
    );
  }
  const { components } = JSON.parse((await fakes.podwirectl('version', '-o', 'json')).stdout);
  expect(components[1]).toMatchObject({ release: null, error: expect.stringContaining('the socket does not exist') });
});

test('a service that refuses the call is a failure', async () => {
  await fakes.serve(
    fake(ReleaseServiceService.getRelease, (): GetReleaseResponse => {
      throw new Failure('ACCESS_DENIED', 'anonymous: may not call it');
    }),
  );
  const { exitCode, stdout, stderr } = await fakes.podwirectl('version');
  expect([exitCode, rowOf(stdout, 'podwire-ipam')]).toEqual([1, expect.stringContaining(' refused ')]);
  expect(stderr).toMatch(/^podwirectl: refused: .*anonymous: may not call it \(ACCESS_DENIED\)$/m);
});
