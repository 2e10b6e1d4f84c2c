import { Failure } from '@podwire/shared/failure/failure';
import { propagateTraces } from '@podwire/shared/telemetry/telemetry';
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest';

import { SUPPORTED_VERSIONS } from './cni/version.js';
import { CONFIG, NOTHING, Plugin, type Command } from './testing/plugin.js';

let plugin: Plugin;

beforeAll(async () => {
  plugin = await new Plugin().start();
});

afterAll(() => plugin.end());

beforeEach(() => {
  plugin.script.calls.length = 0;
});

const PREV_RESULT = { cniVersion: '1.0.0', interfaces: [{ name: 'eth0', sandbox: '/run/netns/pod' }], ips: [] };

async function refusal(command: string, what: Command) {
  const answer = await plugin.run(command, what);
  expect(answer.exitCode).toBe(1);
  const error: Record<string, unknown> = JSON.parse(answer.stdout);
  expect(error).toEqual({
    cniVersion: expect.any(String),
    code: expect.any(Number),
    msg: expect.stringMatching(/./),
    details: expect.stringMatching(/./),
  });
  return error;
}

function aborted(): AbortController {
  const controller = new AbortController();
  controller.abort(new Failure('CANCELLED', 'the caller is gone'));
  return controller;
}

type Refusal = readonly [string, number, Command, RegExp];

describe('ADD is refused before any call to a service', () => {
  const environment = (name: string, value: string): Command => ({ variables: { [name]: value } });
  const refusals: readonly Refusal[] = [
    ['no command', 4, environment('CNI_COMMAND', ''), /CNI_COMMAND is missing/],
    ['an unknown command', 4, environment('CNI_COMMAND', 'add'), /^unknown CNI_COMMAND: add$/],
    ['no container ID', 4, environment('CNI_CONTAINERID', ''), /CNI_CONTAINERID is missing/],
    ['a bad container ID', 4, environment('CNI_CONTAINERID', '../etc'), /CNI_CONTAINERID is "..\/etc"/],
    ['a long container ID', 4, environment('CNI_CONTAINERID', 'c'.repeat(129)), /128 bytes/],
    ['no interface name', 4, environment('CNI_IFNAME', ''), /CNI_IFNAME is missing/],
    ['the interface name ..', 4, environment('CNI_IFNAME', '..'), /CNI_IFNAME is "\.\."/],
    ['the interface name .', 4, environment('CNI_IFNAME', '.'), /CNI_IFNAME/],
    ['an interface name with /', 4, environment('CNI_IFNAME', 'a/b'), /CNI_IFNAME/],
    ['an interface name with :', 4, environment('CNI_IFNAME', 'a:b'), /CNI_IFNAME/],
    ['an interface name with a space', 4, environment('CNI_IFNAME', 'a b'), /CNI_IFNAME/],
    ['an interface name of 16 bytes', 4, environment('CNI_IFNAME', 'x'.repeat(16)), /15 bytes/],
    ['the interface lo', 4, environment('CNI_IFNAME', 'lo'), /loopback/],
    ['no namespace', 4, environment('CNI_NETNS', ''), /CNI_NETNS is missing/],
    ['a relative namespace', 4, environment('CNI_NETNS', 'netns/pod'), /absolute path/],
    ['a namespace that does not exist', 4, environment('CNI_NETNS', '/run/netns/nowhere'), /nowhere does not exist/],
    ['args without an equals sign', 4, environment('CNI_ARGS', 'IgnoreUnknown'), /KEY=VALUE/],
    ['unknown args', 4, environment('CNI_ARGS', 'COLOUR=blue;SIZE=9'), /COLOUR, SIZE/],
    ['an invalid pod name', 4, environment('CNI_ARGS', 'K8S_POD_NAMESPACE=a;K8S_POD_NAME=_'), /K8S_POD_NAME/],
    ['an empty configuration', 6, { text: '' }, /0 bytes.*JSON object/],
    ['a configuration that is not JSON', 6, { text: '{"name":' }, /JSON object/],
    ['a list for a configuration', 6, { text: '[]' }, /JSON object/],
    ['null for a configuration', 6, { text: 'null' }, /JSON object/],
    ['an unknown cniVersion', 1, { config: { cniVersion: '1.2.0' } }, /"1\.2\.0".*0\.1\.0, .*1\.1\.0/],
    ['a cniVersion that is not a string', 1, { config: { cniVersion: 1 } }, /cniVersion is 1;/],
    ['no network name', 7, { config: { name: undefined } }, /name is missing/],
    ['an empty network name', 7, { config: { name: '' } }, /name is empty/],
    ['a bad network name', 7, { config: { name: 'a/b' } }, /name must begin/],
    ['no type', 7, { config: { type: undefined } }, /type is missing/],
    ['a relative socket', 7, { config: { socket: 'cni.sock' } }, /socket is not an absolute path/],
    ['an MTU below IPv4’s', 7, { config: { mtu: 67 } }, /mtu must be 0 or from 68 to 65535/],
    ['an MTU that is a string', 7, { config: { mtu: '1500' } }, /mtu must be a whole number/],
    ['a broken MTU', 7, { config: { mtu: 1500.5 } }, /mtu must be a whole number/],
    ['a bad node name', 7, { config: { nodename: 'Node_1' } }, /nodename is not a valid name of a Kubernetes node/],
    [
      'an IPAM plugin in a folder',
      7,
      { config: { ipam: { type: '../x' } } },
      /ipam\.type is not a valid IPAM plugin name/,
    ],
    ['Podwire as IPAM plugin', 7, { config: { ipam: { type: 'podwire' } } }, /ipam\.type is not an IPAM plugin/],
    ['Calico’s name as IPAM plugin', 7, { config: { ipam: { type: 'calico' } } }, /ipam\.type is not an IPAM plugin/],
    ['an IPAM that is not an object', 7, { config: { ipam: 'podwire-ipam' } }, /ipam must be an object/],
    [
      'a flag that is a string',
      7,
      { config: { container_settings: { allow_ip_forwarding: 'yes' } } },
      /container_settings\.allow_ip_forwarding must be true or false/,
    ],
    ['a prevResult that is not an object', 7, { config: { prevResult: [] } }, /prevResult must be an object/],
    [
      'a prevResult with an address missing',
      7,
      { config: { prevResult: { ips: [{}] } } },
      /prevResult\.ips\.0\.address/,
    ],
  ];

  test.each(refusals)('%s (code %i)', async (_, code, what, message) => {
    const error = await refusal('ADD', what);
    expect(error.code).toBe(code);
    expect(error.msg).toMatch(message);
    expect(plugin.script.calls).toEqual([]);
    expect(plugin.state()).toBe(NOTHING);
  });

  test('with all errors of environment and configuration at once, under the environment’s code', async () => {
    const { code, msg } = await refusal('ADD', {
      variables: { CNI_CONTAINERID: '', CNI_NETNS: '', CNI_IFNAME: 'lo' },
      config: { name: '-', mtu: -1 },
    });
    expect(code).toBe(4);
    // Malformed variables, then missing ones.
    expect(msg).toMatch(/CNI_IFNAME.*CNI_CONTAINERID is missing; CNI_NETNS is missing.*name must begin.*mtu must/);
  });
});

describe('other commands are refused the same way', () => {
  const refusals: readonly (readonly [string, ...Refusal])[] = [
    ['DEL', 'without a container ID', 4, { variables: { CNI_CONTAINERID: '' } }, /CNI_CONTAINERID/],
    ['DEL', 'of a bad interface name', 4, { variables: { CNI_IFNAME: '../x' } }, /CNI_IFNAME/],
    ['DEL', 'without a name', 7, { config: { name: undefined } }, /name/],
    ['DEL', 'in an unknown version', 1, { config: { cniVersion: '2.0.0' } }, /2\.0\.0/],
    ['CHECK', 'without a prevResult', 7, {}, /prevResult is missing/],
    ['CHECK', 'with null for a prevResult', 7, { config: { prevResult: null } }, /prevResult is missing/],
    [
      'CHECK',
      'before 0.4.0',
      1,
      { config: { cniVersion: '0.3.1', prevResult: PREV_RESULT } },
      /CHECK requires CNI 0\.4\.0/,
    ],
    ['CHECK', 'without a namespace', 4, { variables: { CNI_NETNS: '' } }, /CNI_NETNS/],
    [
      'CHECK',
      'of a namespace that no longer exists',
      4,
      { variables: { CNI_NETNS: '/gone' }, config: { prevResult: PREV_RESULT } },
      /gone/,
    ],
    ['GC', 'in every version', 1, {}, /GC requires CNI 1\.1\.0/],
    ['STATUS', 'in every version', 1, { variables: { CNI_CONTAINERID: '' } }, /STATUS requires CNI 1\.1\.0/],
    ['STATUS', 'without JSON', 6, { text: 'x' }, /JSON object/],
  ];

  test.each(refusals)('%s %s (code %i)', async (command, _, code, what, message) => {
    const error = await refusal(command, what);
    expect(error.code).toBe(code);
    expect(error.msg).toMatch(message);
    expect(plugin.script.calls).toEqual([]);
  });
});

test.each(['ADD', 'CHECK', 'DEL'])('%s is refused where values are nested too deep', async (command) => {
  const deep = `{"cniVersion":"1.0.0","dns":${'['.repeat(100_000)}${']'.repeat(100_000)}}`;
  const text = `${JSON.stringify({ ...CONFIG }).slice(0, -1)},"prevResult":${deep}}`;
  const { exitCode, stdout } = await plugin.run(command, { text });
  expect([exitCode, JSON.parse(stdout)]).toMatchObject([
    1,
    { code: 7, msg: expect.stringContaining('deeper than 1000 levels') },
  ]);
  expect(plugin.state()).toBe(NOTHING);
});

test('an invalid version is shown up to its first characters', async () => {
  const { stdout } = await plugin.run('ADD', { config: { cniVersion: '9'.repeat(100_000) } });
  expect(JSON.parse(stdout)).toMatchObject({ code: 1 });
  expect(stdout.length).toBeLessThan(1000);
});

describe('an error object', () => {
  test.each([
    ['the version that was asked for', { config: { cniVersion: '0.3.1', name: '' } }, '0.3.1'],
    ['an unknown version that was asked for', { config: { cniVersion: '7.0.0' } }, '7.0.0'],
    ['Podwire’s version where none can be read', { text: 'garbage' }, '1.1.0'],
    ['Podwire’s version instead of an overlong one', { config: { cniVersion: '1'.repeat(65) } }, '1.1.0'],
  ])('has %s', async (_, what, cniVersion) => {
    expect((await refusal('ADD', what)).cniVersion).toBe(cniVersion);
  });

  test('lists the supported versions in its details', async () => {
    const { details } = await refusal('ADD', { config: { cniVersion: '9' } });
    expect(details).toContain('supported versions: 0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0');
  });
});

test('VERSION needs neither configuration nor services', async () => {
  const answer = await plugin.run('VERSION', { text: '', variables: { CNI_NETNS: 'dummy', CNI_CONTAINERID: '' } });
  expect(answer.exitCode).toBe(0);
  expect(JSON.parse(answer.stdout)).toEqual({
    cniVersion: '1.1.0',
    supportedVersions: ['0.1.0', '0.2.0', '0.3.0', '0.3.1', '0.4.0', '1.0.0', '1.1.0'],
  });
});

test.each(['0.4.0', '99.0.0'])('VERSION answers with the version %s that it was asked with', async (cniVersion) => {
  const answer = await plugin.run('VERSION', { text: JSON.stringify({ cniVersion }) });
  expect(JSON.parse(answer.stdout)).toMatchObject({ cniVersion, supportedVersions: SUPPORTED_VERSIONS });
});

test('keys of other plugins and later releases are accepted', async () => {
  const config = {
    capabilities: { aliases: true },
    runtimeConfig: { aliases: [{ a: 1 }] },
    args: { cni: { labels: [] } },
    'cni.dev/valid-attachments': [],
    ipam: { type: 'podwire-ipam', subnet: 'usePodCidr' },
    log_level: 'debug',
  };
  expect((await plugin.run('ADD', { config })).exitCode).toBe(0);
  expect((await plugin.run('DEL', { config })).exitCode).toBe(0);
});

test('DEL of another plugin above podwire-ipam succeeds without an attachment', async () => {
  const answer = await plugin.run('DEL', { rest: { plugin: 'podwire-ipam' } });
  expect(answer).toEqual({ exitCode: 0, stdout: '' });
});

test('ipam may be absent or empty', async () => {
  for (const ipam of [undefined, {}]) {
    expect((await plugin.run('ADD', { config: { ipam } })).exitCode).toBe(0);
  }
  expect((await plugin.run('DEL')).exitCode).toBe(0);
});

test('each command is logged with its attachment, a refusal without one', async () => {
  // Log lines take the attachment from the context of the trace.
  propagateTraces();
  const own = await new Plugin().start();
  await own.run('ADD');
  await own.run('ADD', { variables: { CNI_IFNAME: '' } });
  await own.run('DEL');
  expect(own.record.lines()).toEqual([
    expect.objectContaining({ level: 'info', msg: 'ADD done', attachment: 'net/c0ffee/eth0' }),
    expect.objectContaining({
      level: 'warn',
      msg: 'ADD failed',
      err: expect.objectContaining({ code: 'INVALID_ENVIRONMENT' }),
    }),
    expect.objectContaining({ level: 'info', msg: 'DEL done', attachment: 'net/c0ffee/eth0' }),
  ]);
  expect(own.record.lines()[1]).not.toHaveProperty('attachment');
  await own.end();
});

test('a command’s event names its pod and its durations, with success and failure', async () => {
  const own = await new Plugin().start();
  const arrivedNs = 1_700_000_000_000_000_000n;
  const rest = { startedNs: arrivedNs - 40_900_000n, arrivedNs };
  const variables = { CNI_ARGS: 'K8S_POD_NAMESPACE=red;K8S_POD_NAME=web-0' };
  await own.run('ADD', { variables, rest });
  await own.run('ADD', { variables, config: { ipam: { ipv4_pools: ['nowhere'] } }, rest: { cancel: aborted() } });
  await own.run('DEL', { variables });
  const ms = expect.any(Number);
  expect(own.record.lines()).toEqual([
    expect.objectContaining({
      msg: 'ADD done',
      pod: 'red/web-0',
      elapsed_ms: ms,
      phases_ms: expect.objectContaining({ shim: 40.9, queue: ms, rpc: ms, plugin: ms }),
    }),
    expect.objectContaining({ msg: 'ADD failed', pod: 'red/web-0', elapsed_ms: ms }),
    expect.objectContaining({
      msg: 'DEL done',
      phases_ms: expect.objectContaining({ queue: ms, rpc: ms, plugin: ms }),
    }),
  ]);
  await own.end();
});

test('a defect becomes code 999 with a neutral text, and is logged in full', async () => {
  const identify = () => {
    throw new TypeError('secret');
  };
  const own = new Plugin({ netns: { identify } });
  const answer = await own.run('ADD');
  expect(JSON.parse(answer.stdout)).toMatchObject({ code: 999, msg: expect.not.stringContaining('secret') });
  expect(own.record.lines()).toEqual([
    expect.objectContaining({ level: 'error', err: expect.objectContaining({ message: 'secret' }) }),
  ]);
  await own.end();
});

describe.each([...SUPPORTED_VERSIONS, undefined])('cniVersion %s', (cniVersion) => {
  const version = cniVersion ?? '0.1.0';

  test('gets its own form of the result', async () => {
    const answer = await plugin.run('ADD', { config: { cniVersion } });
    const result = JSON.parse(answer.stdout);
    expect(result.cniVersion).toBe(version);
    expect(Object.keys(result).includes('ip4')).toBe(version < '0.3.0');
    expect(result.ips?.[0].version).toBe(version < '0.3.0' || version >= '1.0.0' ? undefined : '4');
    expect(result.interfaces?.map(({ mtu }: { mtu: unknown }) => mtu)).toEqual(
      version < '0.3.0' ? undefined : Array.from({ length: 2 }, () => (version === '1.1.0' ? 1500 : undefined)),
    );
    expect((await plugin.run('DEL', { config: { cniVersion } })).exitCode).toBe(0);
  });

  test('has CHECK from 0.4.0, GC and STATUS from 1.1.0, and refuses them with code 1 before', async () => {
    const config = { cniVersion, prevResult: { ...PREV_RESULT, cniVersion: undefined } };
    const since = { CHECK: '0.4.0', GC: '1.1.0', STATUS: '1.1.0' };
    for (const [command, first] of Object.entries(since)) {
      if (version >= first) continue;
      const { code, msg } = await refusal(command, { config });
      expect([code, msg]).toEqual([
        1,
        `${command} requires CNI ${first}, but the configuration's cniVersion is ${version}; do not send it for this network`,
      ]);
    }
  });
});
