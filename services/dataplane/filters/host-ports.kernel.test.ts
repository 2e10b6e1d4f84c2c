import { spawn, spawnSync, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';

import type { HostPort } from '@podwire/shared/attachment/host-port';
import { parseAddress } from '@podwire/shared/net/address';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { NetlinkKernel } from '../kernel/pod-kernel.js';
import { addPod, cleanUp, requireThrowawayNamespace, run } from '../testing/kernels.js';
import { reconcilerOptions, kernelNft } from '../testing/nft.js';
import { hostPort as port, podNetwork } from '../testing/pods.js';
import { HostPorts } from './host-ports.js';

/** Two pods of this node, and a client outside: pod-a, pod-b ── node (this namespace) ── outside. */
const POD = { 4: '10.65.0.7', 6: 'fd00:65::7' } as const;
const POD_B = { 4: '10.65.0.8', 6: 'fd00:65::8' } as const;
const CLIENT = { 4: '192.0.2.9', 6: '2001:db8::9' } as const;
const NODE = { 4: '192.0.2.1', 6: '2001:db8::1' } as const;
/** A second address of the node. */
const SECOND = { 4: '192.0.2.2', 6: '2001:db8::2' } as const;
const FAMILIES = [4, 6] as const;
const BITS = { 4: 32, 6: 128 } as const;

const inside = (namespace: string, ...command: readonly string[]) => run('ip', 'netns', 'exec', namespace, ...command);

function wire(pod: string, device: string, addresses: typeof POD | typeof POD_B): void {
  addPod(pod);
  const mac = `02:00:00:00:00:0${addresses[4].at(-1)}`;
  run('ip', 'link', 'add', device, 'type', 'veth', 'peer', 'name', 'eth0', 'address', mac, 'netns', pod);
  run('ip', 'link', 'set', device, 'address', 'ee:ee:ee:ee:ee:ee', 'up');
  run('sysctl', '-qw', `net.ipv4.conf.${device}.route_localnet=1`, `net.ipv4.conf.${device}.rp_filter=1`);
  for (const link of ['eth0', 'lo']) inside(pod, 'ip', 'link', 'set', link, 'up');
  for (const family of FAMILIES) {
    const gateway = family === 4 ? '169.254.1.1' : 'fe80::1';
    const flags = family === 6 ? ['nodad'] : [];
    inside(pod, 'ip', 'address', 'add', `${addresses[family]}/${BITS[family]}`, 'dev', 'eth0', ...flags);
    inside(pod, 'ip', 'neigh', 'replace', gateway, 'dev', 'eth0', 'lladdr', 'ee:ee:ee:ee:ee:ee', 'nud', 'permanent');
    inside(pod, 'ip', 'route', 'add', `${gateway}/${BITS[family]}`, 'dev', 'eth0');
    inside(pod, 'ip', `-${family}`, 'route', 'add', 'default', 'via', gateway, 'dev', 'eth0');
    run('ip', 'route', 'add', `${addresses[family]}/${BITS[family]}`, 'dev', device);
    run('ip', 'neigh', 'replace', addresses[family], 'dev', device, 'lladdr', mac, 'nud', 'permanent');
  }
}

function addClient(): void {
  addPod('outside');
  run('ip', 'link', 'add', 'eth0', 'type', 'veth', 'peer', 'name', 'eth0', 'netns', 'outside');
  run('ip', 'link', 'set', 'eth0', 'up');
  inside('outside', 'ip', 'link', 'set', 'eth0', 'up');
  for (const family of FAMILIES) {
    const [length, flags] = [family === 4 ? 24 : 64, family === 6 ? ['nodad'] : []];
    for (const address of [NODE[family], SECOND[family]])
      run('ip', 'address', 'add', `${address}/${length}`, 'dev', 'eth0', ...flags);
    inside('outside', 'ip', 'address', 'add', `${CLIENT[family]}/${length}`, 'dev', 'eth0', ...flags);
  }
}

/** Answers each TCP connection and UDP packet with the pod's name and the client's address. */
const SERVER = `
  const name = process.argv[1];
  const plain = (address) => address.replace('::ffff:', '');
  const tcp = require('net').createServer((socket) => socket.on('error', () => {}).end(name + ' ' + plain(socket.remoteAddress)));
  const udp = require('dgram').createSocket('udp6');
  udp.on('message', (_, from) => udp.send(name + ' ' + plain(from.address), from.port, from.address));
  tcp.listen(80, '::', () => udp.bind(53, '::', () => process.stdout.write('ready')));`;

/** Prints the answer, or nothing after 1 s. */
const TCP_CLIENT = `
  const [host, port] = process.argv.slice(1);
  setTimeout(() => process.exit(), 1000);
  require('net').connect({ host, port: Number(port) }).on('error', () => process.exit()).pipe(process.stdout);`;

let servers: ChildProcess[] = [];

async function serve(pod: string): Promise<void> {
  const server = spawn('ip', ['netns', 'exec', pod, process.execPath, '-e', SERVER, pod], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  servers.push(server);
  await once(server.stdout, 'data');
}

/** The answer to a TCP connection from the node, or from a namespace. */
function answer(host: string, port: number, from?: string): string {
  const client = [process.execPath, '-e', TCP_CLIENT, host, `${port}`];
  const [program, ...args] = from === undefined ? client : ['ip', 'netns', 'exec', from, ...client];
  return spawnSync(program!, args, { encoding: 'utf8' }).stdout;
}

/** Sends a packet for each line, always from one socket, and prints the answer. */
const UDP_CLIENT = `
  const [host, port] = process.argv.slice(1);
  const socket = require('dgram').createSocket('udp4');
  socket.on('message', (answer) => process.stdout.write(answer + '\\n'));
  require('readline').createInterface(process.stdin)
    .on('line', () => socket.send('question', Number(port), host)).on('close', () => process.exit());`;

class UdpClient {
  readonly #child = spawn('ip', ['netns', 'exec', 'outside', process.execPath, '-e', UDP_CLIENT, NODE[4], '5353'], {
    stdio: ['pipe', 'pipe', 'inherit'],
  });

  async ask(): Promise<string> {
    this.#child.stdin.write('\n');
    const [answer] = await once(this.#child.stdout, 'data');
    return String(answer).trim();
  }

  async end(): Promise<void> {
    const exited = once(this.#child, 'exit');
    this.#child.stdin.end();
    await exited;
  }
}

/** The common header of SCTP with one chunk, and its CRC32c (RFC 9260, sections 3.1 and 6.8). */
const SCTP = `
import socket, struct, sys
def crc32c(data):
    crc = 0xffffffff
    for byte in data:
        crc ^= byte
        for _ in range(8): crc = (crc >> 1) ^ (0x82f63b78 if crc & 1 else 0)
    return crc ^ 0xffffffff
def packet(source, destination, tag, chunk):
    head = struct.pack('!HHI', source, destination, tag)
    return head + struct.pack('<I', crc32c(head + bytes(4) + chunk)) + chunk
def init(kind, tag): return struct.pack('!BBHIIHHI', kind, 0, 20, tag, 65536, 1, 1, 1)
raw = socket.socket(socket.AF_INET, socket.SOCK_RAW, 132)
raw.settimeout(20)
`;

/** Answers one INIT with an INIT ACK, which has the port that it was sent to as its tag. */
const SCTP_PEER = `${SCTP}
print('ready', flush=True)
data, peer = raw.recvfrom(2000)
source, destination = struct.unpack('!HH', data[20:24])
tag, = struct.unpack('!I', data[36:40])
raw.sendto(packet(destination, source, tag, init(2, destination)), peer)
`;

/** Sends an INIT, and prints the answer's port and tag. */
const SCTP_CLIENT = `${SCTP}
raw.sendto(packet(40000, int(sys.argv[2]), 0, init(1, 99)), (sys.argv[1], 0))
data, _ = raw.recvfrom(2000)
source, destination, tag = struct.unpack('!HHI', data[20:28])
kind, own = data[32], struct.unpack('!I', data[36:40])[0]
assert (destination, tag, kind) == (40000, 99, 2) and packet(source, destination, tag, data[32:]) == data[20:]
sys.stdout.write(f'INIT ACK from port {source} for port {own}')
`;

const podWith = (name: 'a' | 'b', hostPorts: readonly HostPort[]) => ({
  ...podNetwork(name, {
    hostInterfaceName: `podw${name}`,
    addresses: FAMILIES.map((family) => parseAddress((name === 'a' ? POD : POD_B)[family])!),
    hostPorts,
  }),
  pod: { namespace: 'default', name, uid: '' },
});

let kernel: NetlinkKernel;
let ports: HostPorts;

beforeEach(async () => {
  requireThrowawayNamespace();
  run('sysctl', '-qw', 'net.ipv4.ip_forward=1', 'net.ipv6.conf.all.forwarding=1');
  run('ip', 'link', 'set', 'lo', 'up');
  addClient();
  wire('pod-a', 'podwa', POD);
  wire('pod-b', 'podwb', POD_B);
  kernel = await NetlinkKernel.open();
  ports = new HostPorts({ ...reconcilerOptions(kernelNft()).options, kernel });
  await ports.start([]);
  await Promise.all([serve('pod-a'), serve('pod-b')]);
});

afterEach(async () => {
  for (const server of servers) server.kill('SIGKILL');
  servers = [];
  await ports.stop();
  await kernel.close();
  spawnSync('nft', ['delete', 'table', 'inet', 'podwire_hostports']);
  cleanUp();
});

describe.each(FAMILIES)('IPv%i: a host port leads to its pod', (family) => {
  test('from outside, from the node, from another pod, and from the pod itself', async () => {
    await ports.install(podWith('a', [port(8080)]));
    expect(answer(NODE[family], 8080, 'outside')).toBe(`pod-a ${CLIENT[family]}`);
    expect(answer(SECOND[family], 8080, 'outside')).toBe(`pod-a ${CLIENT[family]}`);
    expect(answer(NODE[family], 8080)).toMatch(/^pod-a /);
    expect(answer(NODE[family], 8080, 'pod-b')).toBe(`pod-a ${POD_B[family]}`);
    expect(answer(NODE[family], 8080, 'pod-a')).toMatch(/^pod-a /);
    expect(answer(NODE[family], 8081, 'outside')).toBe('');
  });

  test('only at its address, if it has one, and before a pod that has the port at any address', async () => {
    await ports.install(podWith('a', [port(8080)]));
    await ports.install(podWith('b', [port(8080, { hostAddress: parseAddress(SECOND[family])! })]));
    expect(answer(NODE[family], 8080, 'outside')).toBe(`pod-a ${CLIENT[family]}`);
    expect(answer(SECOND[family], 8080, 'outside')).toBe(`pod-b ${CLIENT[family]}`);
  });

  test('until the pod ends, and then to the next pod', async () => {
    await ports.install(podWith('a', [port(8080)]));
    await expect(ports.install(podWith('b', [port(8080)]))).rejects.toMatchObject({ code: 'HOST_PORT_TAKEN' });
    expect(answer(NODE[family], 8080, 'outside')).toBe(`pod-a ${CLIENT[family]}`);
    await ports.release('podwa');
    expect(answer(NODE[family], 8080, 'outside')).toBe('');
    await ports.install(podWith('b', [port(8080)]));
    expect(answer(NODE[family], 8080, 'outside')).toBe(`pod-b ${CLIENT[family]}`);
  });
});

test('the node’s 127.0.0.1 leads to the pod, and ::1 stays the node’s own', async () => {
  await ports.install(podWith('a', [port(8080)]));
  expect(answer('127.0.0.1', 8080)).toMatch(/^pod-a /);
  expect(answer('::1', 8080)).toBe('');
});

test('the next process finds the table as it has to be, and a flushed one is written again', async () => {
  const pods = [
    podWith('a', [port(8080), port(5353, { protocol: 'udp', podPort: 53 }), port(9, { protocol: 'sctp' })]),
  ];
  await ports.install(pods[0]!);
  await ports.stop();
  const next = reconcilerOptions(kernelNft());
  ports = new HostPorts({ ...next.options, kernel });
  await ports.start(pods);
  expect(next.events.takeLines()).toEqual([]);
  run('nft', 'flush', 'ruleset');
  next.clock.advance(15_000);
  await expect.poll(() => answer(NODE[4], 8080, 'outside')).toBe(`pod-a ${CLIENT[4]}`);
});

test('a UDP client that keeps its socket reaches the next pod with its next packet', async () => {
  const udp = port(5353, { protocol: 'udp', podPort: 53 });
  await ports.install(podWith('a', [udp]));
  const client = new UdpClient();
  expect(await client.ask()).toBe(`pod-a ${CLIENT[4]}`);
  await ports.release('podwa');
  await ports.forget('podwa');
  await ports.install(podWith('b', [udp]));
  expect(await client.ask()).toBe(`pod-b ${CLIENT[4]}`);
  await client.end();
});

test('an SCTP association is led to the pod, and its answers come from the host port', async () => {
  await ports.install(podWith('a', [port(7777, { protocol: 'sctp', podPort: 36412 })]));
  const peer = spawn('ip', ['netns', 'exec', 'pod-a', 'python3', '-c', SCTP_PEER], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  servers.push(peer);
  await once(peer.stdout, 'data');
  const answered = spawnSync('ip', ['netns', 'exec', 'outside', 'python3', '-c', SCTP_CLIENT, NODE[4], '7777']);
  expect(answered.stdout.toString()).toBe('INIT ACK from port 7777 for port 36412');
});

test('an element that another program deleted is named by a check', async () => {
  const network = podWith('a', [port(8080), port(8081, { hostAddress: parseAddress(NODE[6])! })]);
  await ports.install(network);
  expect(await ports.differences(network)).toEqual([]);
  await ports.stop();
  run('nft', 'delete', 'element', 'inet', 'podwire_hostports', 'pod_address_of6', `{ ${NODE[6]} . tcp . 8081 }`);
  expect(await ports.differences(network)).toMatchObject([{ wanted: 'present', actual: 'missing' }]);
});
