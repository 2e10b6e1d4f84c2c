// A resident plugin that calls services one after the other, and decides nothing. usage: plugin.js SOCKET SERVICE…
import { createServer } from 'node:http';
import process from 'node:process';
import { buffer } from 'node:stream/consumers';

import { Client, credentials, Metadata } from '@grpc/grpc-js';

import { DO } from './method.js';

const CALL_TIMEOUT_MS = 10_000;

const REQUEST = Buffer.from('node');

/** The answer for a pod with one address. */
const RESULT = JSON.stringify({
  cniVersion: '1.0.0',
  interfaces: [{ name: 'eth0', sandbox: '/run/netns/pod', mac: 'aa:bb:cc:dd:ee:ff' }],
  ips: [{ address: '10.65.0.1/32', interface: 0 }],
  routes: [{ dst: '0.0.0.0/0' }],
  dns: {},
});

const [socket = '', ...services] = process.argv.slice(2);

const OPTIONS = { 'grpc.enable_channelz': 0, 'grpc.service_config_disable_resolution': 1 };
const clients = services.map((path) => new Client(`unix:${path}`, credentials.createInsecure(), OPTIONS));

function ask(client: Client): Promise<void> {
  return new Promise((resolve, reject) => {
    const limits = { deadline: Date.now() + CALL_TIMEOUT_MS };
    const { path, requestSerialize, responseDeserialize } = DO;
    client.makeUnaryRequest(path, requestSerialize, responseDeserialize, REQUEST, new Metadata(), limits, (error) => {
      if (error) reject(error);
      else resolve();
    });
  });
}

const server = createServer((request, response) => {
  void buffer(request).then(async (body) => {
    JSON.parse(body.toString());
    for (const client of clients) await ask(client);
    response.writeHead(200, { 'content-type': 'application/json', 'content-length': RESULT.length });
    response.end(RESULT);
  });
});
server.listen(socket);
process.once('SIGTERM', () => {
  server.close();
  server.closeAllConnections();
  for (const client of clients) client.close();
});
