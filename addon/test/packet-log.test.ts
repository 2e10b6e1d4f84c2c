import { expect, it } from 'vitest';

import type { Namespace } from '../lib/index.js';
import { failureOf, makePod, open, run } from './ip.js';

const LOG = { group: 40, copyBytes: 48 };

/** A namespace whose rules log UDP to port 53 in both directions. */
async function makeLoggingPod(): Promise<{ pod: string; inside: Namespace }> {
  const { name, path } = makePod();
  run('ip', '-n', name, 'link', 'set', 'lo', 'up');
  const chain = (hook: string) =>
    `chain ${hook} { type filter hook ${hook} priority 0; udp dport 53 log prefix "${hook}" group 40 snaplen 64; }`;
  run('ip', 'netns', 'exec', name, 'nft', `table inet podwire { ${chain('output')}; ${chain('input')}; }`);
  return { pod: name, inside: await open(path) };
}

const SEND = `import socket, sys
s = socket.socket(socket.AF_INET6 if ':' in sys.argv[1] else socket.AF_INET, socket.SOCK_DGRAM)
for n in range(int(sys.argv[2])): s.sendto(b'x' * 20, (sys.argv[1], 53))`;

function send(pod: string, address: string, count = 1): void {
  run('ip', 'netns', 'exec', pod, 'python3', '-c', SEND, address, String(count));
}

it.each([
  ['127.0.0.1', '45', 48],
  ['::1', '60', 48],
])('receives packets to %s with prefix, interface and the first bytes', async (address, first, length) => {
  const { pod, inside } = await makeLoggingPod();
  const packets = await inside.monitorPackets(LOG);
  send(pod, address);
  const received = [];
  for await (const packet of packets) if (received.push(packet) === 2) break;
  expect(received).toMatchObject([
    { object: 'packet', prefix: 'output', outputIndex: 1 },
    { object: 'packet', prefix: 'input', inputIndex: 1 },
  ]);
  expect(received[0]).not.toHaveProperty('inputIndex');
  for (const packet of received) {
    if (packet.object !== 'packet') throw new Error('must be a packet');
    expect(packet.payload.subarray(0, 1).toString('hex')).toBe(first);
    expect(packet.payload.length).toBe(length);
  }
});

it('refuses a group that another socket has, until that one is closed', async () => {
  const { inside } = await makeLoggingPod();
  const packets = await inside.monitorPackets(LOG);
  expect(await failureOf(inside.monitorPackets(LOG))).toMatchObject({ code: 'EPERM' });
  packets.close();
  (await inside.monitorPackets(LOG)).close();
});

it('reports an overrun when the process was too busy to read, and continues', async () => {
  const { pod, inside } = await makeLoggingPod();
  const packets = await inside.monitorPackets(LOG);
  // The event loop is blocked meanwhile.
  send(pod, '127.0.0.1', 150_000);
  const seen = { packets: 0, overruns: 0 };
  for await (const { object } of packets) {
    seen[object === 'packet' ? 'packets' : 'overruns']++;
    // After the report the queue is empty.
    if (object === 'overrun') break;
  }
  expect(seen.packets).toBeGreaterThan(0);
  expect(seen.packets).toBeLessThan(300_000);
});

it.each([
  ['group 0', { ...LOG, group: 0 }, 'options.group'],
  ['no bytes', { ...LOG, copyBytes: 0 }, 'options.copyBytes'],
])('refuses %s', async (_, options, path) => {
  const inside = await open(makePod().path);
  expect(await failureOf(inside.monitorPackets(options))).toMatchObject({ name: 'ArgumentError', path });
});
