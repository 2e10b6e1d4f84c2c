import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, existsSync, mkdtempSync, openSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { requireThrowawayNamespace } from '@podwire/dataplane/testing/kernels';
import { EtcdServer } from '@podwire/ipam/engine/testing/etcd-server';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';

import { bufCurl, rpc, run } from '../support/programs.js';
import { ROOT } from '../support/root.js';

const folder = mkdtempSync(join(tmpdir(), 'podwire-e2e-etcd-'));
const children: ChildProcess[] = [];
let etcd: EtcdServer;

/** Starts podwire-ipam as a separate process. @returns its socket, once it is healthy */
async function startReplica(name: string): Promise<string> {
  const socket = join(folder, name, 'ipam.sock');
  const logFile = join(folder, `${name}.log`);
  const log = openSync(logFile, 'a');
  const env = {
    PATH: process.env.PATH,
    PODWIRE_IPAM_LISTEN: `unix:${socket}`,
    PODWIRE_IPAM_STORE: 'etcd',
    PODWIRE_IPAM_ETCD_ENDPOINTS: `http://127.0.0.1:1,${etcd.url}`,
    PODWIRE_IPAM_DEFAULT_POOL_CIDR: '10.65.0.0/16',
  };
  const child = spawn(process.execPath, [join(ROOT, 'services/ipam/dist/main.js')], {
    env,
    stdio: ['ignore', log, log],
  });
  closeSync(log);
  children.push(child);
  const isHealthy = (): boolean =>
    existsSync(socket) &&
    bufCurl(socket, '-d', '{}', 'http://localhost/grpc.health.v1.Health/Check').text.includes('SERVING');
  await expect.poll(isHealthy, { timeout: 30_000, message: readFileSync(logFile, 'utf8') }).toBe(true);
  return socket;
}

/** Starts podwire-node as node-1: with etcd, IPAM accepts only registered nodes. */
function startNode(ipamSocket: string): void {
  const log = openSync(join(folder, 'node.log'), 'a');
  const env = {
    PATH: process.env.PATH,
    PODWIRE_NODE_CNI_SOCKET: join(folder, 'node', 'cni.sock'),
    PODWIRE_NODE_LISTEN: `unix:${join(folder, 'node', 'dataplane.sock')}`,
    PODWIRE_NODE_STATE_DIRECTORY: join(folder, 'journal'),
    PODWIRE_NODE_IPAM_ADDRESS: `unix:${ipamSocket}`,
    PODWIRE_NODE_RECORDS_DIRECTORY: join(folder, 'attachments'),
    PODWIRE_NODE_NAME: 'node-1',
    PODWIRE_NODE_IPV4: '198.18.0.1/32',
  };
  const main = join(ROOT, 'services/node/dist/main.js');
  children.push(spawn(process.execPath, [main], { env, stdio: ['ignore', log, log] }));
  closeSync(log);
}

beforeAll(async () => {
  etcd = await EtcdServer.start();
});

afterAll(async () => {
  await Promise.all(
    children.map(async (child) => {
      if (child.exitCode !== null) return;
      const exited = once(child, 'exit');
      child.kill('SIGTERM');
      await exited;
    }),
  );
  await etcd.dispose();
  // The node's tables stay active without podwire-node.
  requireThrowawayNamespace();
  run('nft', 'flush', 'ruleset');
  rmSync(folder, { recursive: true, force: true });
});

const attachment = (containerId: string) => ({ network: 'net', containerId, interfaceName: 'eth0' });

describe('podwire-ipam on etcd', () => {
  test('allocates over gRPC what etcdctl shows, and every replica knows it', async () => {
    const sockets = [await startReplica('first'), await startReplica('second')] as const;
    const allocate = (socket: string) =>
      rpc(socket, 'podwire.ipam.v1.AddressService/Allocate', { attachment: attachment('c1'), nodeName: 'node-1' });
    startNode(sockets[1]);
    const nodes = () => JSON.stringify(rpc(sockets[0], 'podwire.ipam.v1.NodeService/ListNodes', {}));
    await expect.poll(nodes, { timeout: 30_000 }).toContain('198.18.0.1/32');
    const answer = JSON.stringify(allocate(sockets[0]));
    const [address = 'none'] = /10\.65\.\d+\.\d+/.exec(answer) ?? [];
    expect(JSON.stringify(allocate(sockets[1]))).toContain(address);

    const keys = [...etcd.dump('/calico').keys()];
    const block = keys.find((key) => key.startsWith('/calico/ipam/v2/assignment/ipv4/block/')) ?? 'none';
    expect(JSON.parse(etcd.dump(block).get(block) ?? '')).toMatchObject({ affinity: 'host:node-1' });
    expect(keys).toContain('/calico/ipam/v2/handle/net.c1');

    rpc(sockets[1], 'podwire.ipam.v1.AddressService/Release', { attachment: attachment('c1') });
    expect([...etcd.dump('/calico/ipam/v2/handle/').keys()]).toEqual([]);
    const gone = bufCurl(
      sockets[0],
      '-d',
      JSON.stringify({ attachment: attachment('c1') }),
      'http://localhost/podwire.ipam.v1.AddressService/GetEndpoint',
    );
    expect(gone.text).toContain('not_found');
  }, 180_000);
});
