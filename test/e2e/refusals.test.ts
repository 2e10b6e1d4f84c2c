import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';

import { afterAll, beforeAll, describe, expect, test } from 'vitest';

import { allocations } from '../support/leftovers.js';
import { callCni, makePod, removePod, type CniCall } from '../support/pods.js';
import { bufCurl, rpc, run } from '../support/programs.js';
import { Stack } from '../support/stack.js';

const stack = new Stack({
  env: { PODWIRE_IPAM_DEFAULT_POOL_CIDR: '10.66.0.0/29', PODWIRE_IPAM_DEFAULT_POOL_BLOCK_SIZE: '30' },
});
const pod = makePod('refused');

/** Routes except the node's own blocks, which the node adds and removes at its own time. */
const routes = (): string => {
  const all: readonly { readonly type?: string }[] = JSON.parse(stack.ip('-j', 'route'));
  return JSON.stringify(all.filter(({ type }) => type !== 'blackhole'));
};

/** Every state that a refused request could have changed, as text. */
const state = () =>
  [
    stack.ip('-j', 'link'),
    routes(),
    run('ip', '-n', pod.name, '-j', 'address'),
    JSON.stringify(rpc(stack.sockets.ipam, 'podwire.ipam.v1.BlockService/ListBlocks')),
    JSON.stringify(rpc(stack.sockets.ipam, 'podwire.ipam.v1.PoolService/ListPools')),
  ].join('\n');

const add = (rest: Partial<CniCall> = {}) => callCni({ command: 'ADD', pod, socket: stack.sockets.node, ...rest });

beforeAll(() => stack.start());

afterAll(async () => {
  await stack.destroy();
  removePod(pod);
});

describe('the plugin refuses with an error object, and nothing changes', () => {
  const file = () => {
    const path = join(stack.folder, 'no-namespace');
    writeFileSync(path, '');
    return path;
  };
  const cases: readonly (readonly [string, number, () => Partial<CniCall>, RegExp])[] = [
    ['a configuration that is not JSON', 6, () => ({ stdin: `{"socket":"${stack.sockets.node}",` }), /JSON/],
    ['a configuration without a name', 7, () => ({ config: { name: undefined } }), /name/],
    ['an unknown cniVersion', 1, () => ({ config: { cniVersion: '9.9.9' } }), /9\.9\.9/],
    ['a bad container ID', 4, () => ({ env: { CNI_CONTAINERID: '../etc' } }), /CNI_CONTAINERID/],
    ['an interface name that is a directory', 4, () => ({ interfaceName: '..' }), /CNI_IFNAME/],
    ['an interface name with a slash', 4, () => ({ interfaceName: 'a/b' }), /CNI_IFNAME/],
    ['an interface name of 16 bytes', 4, () => ({ interfaceName: 'x'.repeat(16) }), /CNI_IFNAME/],
    ['the loopback interface', 4, () => ({ interfaceName: 'lo' }), /CNI_IFNAME/],
    ['a netns path that does not exist', 4, () => ({ env: { CNI_NETNS: '/run/netns/nowhere' } }), /nowhere/],
    ['a netns path that is not a namespace', 4, () => ({ env: { CNI_NETNS: file() } }), /no-namespace/],
    ['the node’s own namespace', 4, () => ({ env: { CNI_NETNS: stack.netnsPath } }), /own/],
    [
      'the node’s own namespace, with CNI_NETNS_OVERRIDE',
      4,
      () => ({ env: { CNI_NETNS: stack.netnsPath, CNI_NETNS_OVERRIDE: '1' } }),
      /own/,
    ],
    [
      'missing variables, all at once',
      4,
      () => ({ env: { CNI_IFNAME: undefined, CNI_NETNS: undefined } }),
      /CNI_NETNS.*CNI_IFNAME|CNI_IFNAME.*CNI_NETNS/,
    ],
  ];

  test.each(cases)('%s (code %i)', async (_, code, call, message) => {
    const before = state();
    const answer = await add(call());
    expect(answer.exitCode).toBe(1);
    const error = JSON.parse(answer.stdout);
    expect(error).toMatchObject({ code });
    expect(`${error.msg} ${error.details ?? ''}`).toMatch(message);
    expect(state()).toBe(before);
  });

  test('an interface that already exists in the pod', async () => {
    run('ip', '-n', pod.name, 'link', 'add', 'name', 'eth0', 'type', 'veth', 'peer', 'name', 'other');
    const before = state();
    const answer = await add();
    expect(answer.exitCode).toBe(1);
    expect(JSON.parse(answer.stdout).msg).toMatch(/eth0/);
    const withoutBlocks = (text: string) => text.split('\n').slice(0, 3).join('\n');
    expect(withoutBlocks(state())).toBe(withoutBlocks(before));
    // The journal releases addresses that an ADD on a busy machine has no time to release.
    await expect.poll(() => allocations(stack), { timeout: 40_000 }).toEqual([]);
    run('ip', '-n', pod.name, 'link', 'delete', 'eth0');
  });
});

describe('IPAM refuses', () => {
  const create = (pool: object) =>
    bufCurl(
      stack.sockets.ipam,
      '-d',
      JSON.stringify({ pool }),
      'http://localhost/podwire.ipam.v1.PoolService/CreatePool',
    );

  test.each([
    ['a malformed CIDR', { name: 'a', cidr: '10.0.0/8' }, /pool\.cidr/],
    ['host bits', { name: 'a', cidr: '10.0.0.1/24' }, /host bits/],
    ['a pool smaller than a block', { name: 'a', cidr: '10.0.0.0/27', blockSize: 26 }, /block/],
    ['a link-local range', { name: 'a', cidr: '169.254.0.0/24' }, /169\.254/],
    ['an overlap with another pool', { name: 'a', cidr: '10.66.0.0/16' }, /default-ipv4-ippool/],
    ['a bad name and a bad CIDR, both named', { name: 'A_b', cidr: 'x' }, /pool\.name.*pool\.cidr/s],
  ])('%s', (_, pool, message) => {
    const before = state();
    const answer = create(pool);
    expect(answer.ok).toBe(false);
    expect(answer.text).toMatch(message);
    expect(state()).toBe(before);
  });

  test('an ADD when the pools are exhausted, with the reason for each pool', async () => {
    const pods = Array.from({ length: 9 }, (_, i) => makePod(`full-${i}`));
    const answers = [];
    for (const each of pods) answers.push(await add({ pod: each }));
    expect(answers.map(({ exitCode }) => exitCode)).toEqual([0, 0, 0, 0, 0, 0, 0, 0, 1]);
    const error = JSON.parse(answers[8]!.stdout);
    expect(error).toMatchObject({ code: 11 });
    expect(error.msg).toMatch(/default-ipv4-ippool/);
    expect(error.msg).toMatch(/10\.66\.0\.0\/29/);
    for (const each of pods)
      expect((await callCni({ command: 'DEL', pod: each, socket: stack.sockets.node })).exitCode).toBe(0);
    pods.forEach(removePod);
  });
});

describe('settings are refused at start, with all errors at once', () => {
  const wrong = {
    ipam: { PODWIRE_IPAM_STORE: 'paper', PODWIRE_IPAM_LISTN: 'x', PODWIRE_IPAM_DEFAULT_POOL_CIDR: 'y' },
    node: {
      PODWIRE_NODE_LISTEN: 'nowhere',
      PODWIRE_NODE_CNI_SOCKET: 'relative',
      PODWIRE_NODE_COLOUR: 'blue',
    },
  } as const;

  test.each(['ipam', 'node'] as const)('%s', async (name) => {
    const refused = new Stack({ env: wrong[name] });
    await expect(refused.start(name)).rejects.toThrow('does not answer');
    for (const variable of Object.keys(wrong[name])) expect(refused.log(name)).toContain(variable);
    await refused.destroy();
  });
});

/** There is no other user in a user namespace that maps root only. */
const hasOtherUsers = !/^\s*0\s+\d+\s+1\s*$/.test(readFileSync('/proc/self/uid_map', 'utf8'));

describe.runIf(hasOtherUsers)('the unix sockets are accessible to root only', () => {
  const SOCKETS = [
    ['ipam', 'ipam'],
    ['node', 'node'],
    ['dataplane', 'node'],
  ] as const;

  /** Connects as another user, and prints what becomes of it. */
  function connectAsNobody(socket: string): string {
    const script =
      '$SIG{PIPE} = "IGNORE"; socket(S, PF_UNIX, SOCK_STREAM, 0); connect(S, sockaddr_un($ARGV[0])) or print($!), exit; syswrite(S, "PRI"); print sysread(S, $b, 1) ? "served" : "refused"';
    const user = ['--reuid=65534', '--regid=65534', '--clear-groups'];
    return run('setpriv', ...user, 'perl', '-MSocket', '-e', script, socket);
  }

  beforeAll(() => void run('chmod', '755', stack.folder, join(stack.folder, 'run')));

  test.each(SOCKETS)('%s', (name) => {
    expect(connectAsNobody(stack.sockets[name])).toBe('Permission denied');
  });

  test.each(SOCKETS)('%s, also when a permission lets other users connect', async (name, process) => {
    const socket = stack.sockets[name];
    run('chmod', '666', socket);
    expect([connectAsNobody(socket), connectAsNobody(socket)]).toEqual(['refused', 'refused']);
    const lines = () =>
      stack
        .log(process)
        .match(/socket [^"]*: refused a connection of user 65534 [^"]*/g)
        ?.filter((line) => line.includes(socket));
    await expect.poll(lines).toHaveLength(1);
    await stack.untilServing(process);
    run('chmod', '600', socket);
  });
});
