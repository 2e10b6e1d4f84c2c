// A resident that records each pod in a file, and decides nothing. usage: plugin.js SOCKET RECORD
import { renameSync, writeFileSync } from 'node:fs';
import { createServer } from 'node:http';
import process from 'node:process';
import { buffer } from 'node:stream/consumers';

/** The answer for a pod with one address. */
const RESULT = JSON.stringify({
  cniVersion: '1.0.0',
  interfaces: [{ name: 'eth0', sandbox: '/run/netns/pod', mac: 'aa:bb:cc:dd:ee:ff' }],
  ips: [{ address: '10.65.0.1/32', interface: 0 }],
  routes: [{ dst: '0.0.0.0/0' }],
  dns: {},
});

const [socket = '', record = ''] = process.argv.slice(2);

const server = createServer((request, response) => {
  void buffer(request).then((body) => {
    JSON.parse(body.toString());
    writeFileSync(`${record}.writing`, RESULT);
    renameSync(`${record}.writing`, record);
    response.writeHead(200, { 'content-type': 'application/json', 'content-length': RESULT.length });
    response.end(RESULT);
  });
});
server.listen(socket);
process.once('SIGTERM', () => {
  server.close();
  server.closeAllConnections();
});
