// A gRPC service that decides nothing. usage: service.js SOCKET [embedded DIRECTORY | etcd URL]
import process from 'node:process';

import { Server, ServerCredentials, type handleUnaryCall } from '@grpc/grpc-js';
import { EmbeddedStore } from '@podwire/ipam/engine/embedded/embedded-store';
import type { Store } from '@podwire/ipam/engine/store';

import { openEtcdStore } from '../ipam/etcd.js';
import { DO } from './method.js';
import { Writer } from './writer.js';

/** An answer as long as Allocate's. */
const ANSWER = Buffer.alloc(300);

const [socket = '', kind = '', place = ''] = process.argv.slice(2);

function openStore(): Promise<Store> | undefined {
  if (kind === 'embedded') return EmbeddedStore.open({ directory: place, pid: process.pid });
  return kind === 'etcd' ? openEtcdStore({ url: place }, '/bench') : undefined;
}

const store = await openStore();
const writer = store && new Writer(store);
const handle: handleUnaryCall<Buffer, Buffer> = ({ request }, answer) => {
  if (!writer) answer(null, ANSWER);
  else writer.write(request.toString('latin1')).then(() => answer(null, ANSWER), answer);
};
const server = new Server();
server.addService({ Do: DO }, { Do: handle });
server.bindAsync(`unix:${socket}`, ServerCredentials.createInsecure(), (error) => {
  if (error) throw error;
});
process.once('SIGTERM', () => {
  server.forceShutdown();
  void store?.close();
});
