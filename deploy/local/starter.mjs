// start.mjs, as the demonstration knows it: the other end of a channel that also passes sockets. A socket stays in the network
// namespace that it was made in, so each side can serve the other's network.
import { createServer } from 'node:net';
import process from 'node:process';

export class Starter {
  /** Resolves with {namespacesPid, pageSocket, hasCollector}; the socket is undefined with --once. */
  greeting = new Promise((resolve) => {
    process.once('message', (message, pageSocket) => resolve({ ...message, pageSocket }));
  });

  /** Resolves when start.mjs is stopped or has died. */
  gone = new Promise((resolve) => process.once('disconnect', resolve));

  /** Lets start.mjs serve a port of the node, from which no collector outside can be reached. @returns its URL */
  collectorUrl() {
    return new Promise((resolve) => {
      const socket = createServer();
      socket.listen(0, '127.0.0.1', () => {
        const url = `http://127.0.0.1:${socket.address().port}`;
        process.send('collector', socket, () => {
          socket.close();
          resolve(url);
        });
      });
    });
  }
}
