// A TCP proxy that delays what passes: a process of its own, as the lane's process waits for its programs.
// usage: delay-proxy.mjs HOST PORT TARGET_HOST TARGET_PORT
// Each line of standard input is the delay in milliseconds of what arrives afterwards, for each direction.
import { connect, createServer } from 'node:net';
import process from 'node:process';
import { createInterface } from 'node:readline';

const [host, port, targetHost, targetPort] = process.argv.slice(2);
let delayMs = 0;

/** Bytes keep their order, as all timers of one delay do; a shorter delay waits for the bytes before it. */
function pass(from, to) {
  let dueMs = 0;
  const later = (action) => {
    dueMs = Math.max(dueMs, Date.now() + delayMs);
    setTimeout(action, dueMs - Date.now());
  };
  from.on('data', (bytes) => later(() => to.write(bytes)));
  from.on('end', () => later(() => to.end()));
  from.on('error', () => to.destroy());
  from.on('close', () => later(() => to.destroy()));
}

createServer({ allowHalfOpen: true, noDelay: true }, (client) => {
  const server = connect({ host: targetHost, port: Number(targetPort), allowHalfOpen: true, noDelay: true });
  pass(client, server);
  pass(server, client);
}).listen(Number(port), host);

createInterface({ input: process.stdin }).on('line', (line) => (delayMs = Number(line)));
