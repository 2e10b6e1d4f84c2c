import { createSocket, type Socket } from 'node:dgram';
import { once } from 'node:events';

import { afterEach, beforeEach, describe, expect, test } from 'vitest';

import { recordingLog, testRegistry } from './dataplane.fixture.js';
import { Dataplane } from './dataplane.js';
import { Events } from './events.js';
import { addPod, cleanUp, requireThrowawayNamespace, run } from './kernel/netlink/namespaces.fixture.js';
import { NetlinkKernel } from './kernel/netlink/netlink-kernel.js';
import { send, udpPacket } from './kernel/nft/frames.fixture.js';
import { keeperOptions, until } from './kernel/nft/nft.fixture.js';
import { ProgramNft } from './kernel/nft/program/program-nft.js';
import { SourceGuard } from './kernel/nft/source-guard.js';
import { BY_FAMILY, podNetwork } from './plan/pod-network.fixture.js';

/** What a pod must not reach on its node, with packets that its own kernel would not send. */

const NODE = { 4: '198.18.0.1', 6: 'fd99::1' } as const;
const POD = { 4: '10.65.0.7', 6: 'fd65::7' } as const;
const LOOPBACK = { 4: '127.0.0.1', 6: '::1' } as const;
const FAMILIES = [4, 6] as const;

const never = () => new AbortController().signal;

let kernel: NetlinkKernel;
let guard: SourceGuard;
let dataplane: Dataplane;
const services: Socket[] = [];

beforeEach(async () => {
  requireThrowawayNamespace();
  for (const family of FAMILIES) run('ip', 'address', 'replace', NODE[family], 'dev', 'lo');
  kernel = await NetlinkKernel.open();
  guard = new SourceGuard(keeperOptions(new ProgramNft()).options);
  await guard.start(new Map());
  dataplane = new Dataplane({ kernel, registry: testRegistry(), events: new Events(recordingLog().log), guard });
});

afterEach(async () => {
  for (const service of services.splice(0)) service.close();
  await guard.stop();
  await kernel.close();
  cleanUp();
});

/** A UDP service of the node. */
async function serve(family: 4 | 6, bound: string) {
  const received: string[] = [];
  const socket = createSocket(`udp${family}`).on('message', (data) => received.push(data.toString()));
  services.push(socket);
  socket.bind(0, bound);
  await once(socket, 'listening');
  return { port: socket.address().port, received };
}

describe.each(FAMILIES)('IPv%i: a service on the node’s loopback address', (family) => {
  const [own, loopback, node] = [POD[family], LOOPBACK[family], NODE[family]];

  test('gets nothing from a pod that sends to it, or under its address', async () => {
    addPod('a');
    await dataplane.attach(podNetwork('a', BY_FAMILY['both families']), never());
    const [inside, outside] = [await serve(family, loopback), await serve(family, node)];
    send('a', [
      udpPacket({ source: own, destination: loopback, port: inside.port, data: 'to loopback' }),
      udpPacket({ source: loopback, destination: loopback, port: inside.port, data: 'from loopback to loopback' }),
      udpPacket({ source: loopback, destination: node, port: outside.port, data: 'from loopback' }),
      udpPacket({ source: own, destination: node, port: outside.port, data: 'as a pod may' }),
    ]);
    await until(() => outside.received.includes('as a pod may'));
    expect([inside.received, outside.received]).toEqual([[], ['as a pod may']]);
  });
});
