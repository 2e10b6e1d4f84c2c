import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { setTimeout as sleep } from 'node:timers/promises';

import { afterAll, beforeAll, expect, test, vi } from 'vitest';

import { callCni, makePod, removePod, type Pod } from '../support/pods.js';
import { rpc, run } from '../support/programs.js';
import { Stack } from '../support/stack.js';

/**
 * Another program deletes all tables of the node (`nft flush ruleset`), again and again, while pods come and go, and while one
 * pod sends to the node's 127.0.0.1 and with a foreign source: nothing of it may arrive once the tables are back.
 */

const ROUNDS = 20;
/** An address of the node that the pod's packets with a foreign source are for. */
const NODE_IPV6 = 'fd98::1';

/** Prints the text of each UDP packet to any address of the node. */
const RECEIVER = `
  const socket = require('node:dgram').createSocket('udp6');
  socket.on('message', (text) => process.stdout.write(text + '\\n'));
  socket.bind(9000, '::', () => process.stdout.write('ready\\n'));`;

/** Sends the packets for each line of its input as frames from `eth0`, which no socket of the pod would send. */
const SENDER = `
import socket, struct, sys
out = socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
out.bind(('eth0', 0))
host, own = bytes.fromhex('ee' * 6), out.getsockname()[4]
def total(data):
    value = sum(struct.unpack('!%dH' % (len(data) // 2), data))
    while value >> 16: value = (value & 0xffff) + (value >> 16)
    return value ^ 0xffff
def udp(text, pseudo):
    text += b' ' * (len(text) % 2)
    head = struct.pack('!HHH', 40000, 9000, 8 + len(text))
    return head + struct.pack('!H', total(pseudo + struct.pack('!HH', 17, 8 + len(text)) + head + bytes(2) + text)) + text
def ipv4(source, target, text):
    ends = socket.inet_aton(source) + socket.inet_aton(target)
    payload = udp(text, ends)
    head = struct.pack('!BBHHHBB', 0x45, 0, 20 + len(payload), 0, 0, 64, 17)
    return b'\\x08\\x00' + head + struct.pack('!H', total(head + bytes(2) + ends)) + ends + payload
def ipv6(source, target, text):
    ends = socket.inet_pton(socket.AF_INET6, source) + socket.inet_pton(socket.AF_INET6, target)
    payload = udp(text, ends)
    return b'\\x86\\xdd' + struct.pack('!IHBB', 0x60000000, len(payload), 17, 64) + ends + payload
pod, node6 = sys.argv[1:]
for line in sys.stdin:
    text = line.strip().encode()
    for packet in (ipv4(pod, '127.0.0.1', b'loopback ' + text), ipv6('fd99::1', node6, b'foreign ' + text)):
        out.send(host + own + packet)
    print('sent', flush=True)
`;

const stack = new Stack();
const children: ChildProcess[] = [];
const received: string[] = [];
const pods: Pod[] = [];

const call = (command: string, pod: Pod) =>
  callCni({
    command,
    pod,
    socket: stack.sockets.node,
    config: { ipam: { type: 'podwire-ipam', assign_ipv4: 'true', assign_ipv6: 'true' } },
  });

function newPod(name: string): Pod {
  const pod = makePod(name);
  pods.push(pod);
  return pod;
}

const tables = () => run('ip', 'netns', 'exec', stack.netns, 'nft', 'list', 'tables').trim().split('\n').toSorted();

const flush = () => run('ip', 'netns', 'exec', stack.netns, 'nft', 'flush', 'ruleset');

const arrived = (text: string) => received.filter((line) => line.endsWith(` ${text}`)).toSorted();

async function startReceiver(): Promise<void> {
  const receiver = spawn('ip', ['netns', 'exec', stack.netns, process.execPath, '-e', RECEIVER], {
    stdio: ['ignore', 'pipe', 'inherit'],
  });
  children.push(receiver);
  receiver.stdout.setEncoding('utf8').on('data', (text: string) => received.push(...text.trim().split(/\s*\n/)));
  await vi.waitFor(() => expect(received.splice(0)).toEqual(['ready']), { timeout: 20_000 });
}

/** @returns a function that sends the forbidden packets of a pod, with a text */
function startSender(pod: Pod, address: string): (text: string) => Promise<void> {
  const command = ['netns', 'exec', pod.name, 'python3', '-c', SENDER, address, NODE_IPV6];
  const sender = spawn('ip', command, { stdio: ['pipe', 'pipe', 'inherit'] });
  children.push(sender);
  return async (text) => {
    sender.stdin.write(`${text}\n`);
    await once(sender.stdout, 'data');
  };
}

beforeAll(async () => {
  await stack.start();
  rpc(stack.sockets.ipam, 'podwire.ipam.v1.PoolService/CreatePool', { pool: { name: 'ipv6', cidr: 'fd65::/48' } });
  stack.ip('address', 'add', `${NODE_IPV6}/128`, 'dev', 'lo');
  await startReceiver();
});

afterAll(async () => {
  for (const child of children) child.kill('SIGKILL');
  await stack.destroy();
  pods.forEach(removePod);
});

test('what a pod must not send arrives at most until the tables are back', async () => {
  const pod = newPod('e2e-flushed');
  const added = await vi.waitFor(
    async () => {
      const { stdout } = await call('ADD', pod);
      expect(JSON.parse(stdout).ips).toHaveLength(2);
      return JSON.parse(stdout);
    },
    { timeout: 30_000 },
  );
  const send = startSender(pod, added.ips[0].address.replace(/\/.*/, ''));
  const before = tables();
  await send('at rest');

  let isOver = false;
  const failures: string[] = [];
  const comeAndGo = async (name: string) => {
    const other = newPod(name);
    while (!isOver)
      for (const command of ['ADD', 'DEL']) {
        const { exitCode, stdout } = await call(command, other);
        if (exitCode !== 0) failures.push(stdout);
      }
  };
  const churn = [comeAndGo('e2e-flushed-1'), comeAndGo('e2e-flushed-2')];
  for (let round = 0; round < ROUNDS; round++) {
    flush();
    await vi.waitFor(() => expect(tables()).toEqual(before), { timeout: 30_000, interval: 2 });
    await send(`after ${round}`);
    await sleep(20);
  }
  isOver = true;
  await Promise.all(churn);

  // Without podwire-node nothing brings the tables back: the same packets arrive.
  await stack.kill('node');
  flush();
  await send('unguarded');
  const both = ['foreign unguarded', 'loopback unguarded'];
  await vi.waitFor(() => expect(arrived('unguarded')).toEqual(both), { timeout: 20_000 });
  expect(received.filter((line) => !line.endsWith('unguarded'))).toEqual([]);
  expect(failures).toEqual([]);

  await stack.start('node');
  await vi.waitFor(() => expect(tables()).toEqual(before), { timeout: 30_000 });
  await send('after the restart');
  await sleep(200);
  expect(arrived('after the restart')).toEqual([]);
  expect(await call('DEL', pod)).toMatchObject({ exitCode: 0 });
});
