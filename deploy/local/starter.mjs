// start.mjs, as the demonstration knows it: the other end of a channel that also passes sockets. A socket stays in the network
// namespace that it was made in, so the demonstration can serve this machine's loopback.
import process from 'node:process';

export class Starter {
  /** Resolves with {namespacesPid, pageSocket}; the socket is undefined with --once. */
  greeting = new Promise((resolve) => {
    process.once('message', (message, pageSocket) => resolve({ ...message, pageSocket }));
  });

  /** Resolves when start.mjs is stopped or has died. */
  gone = new Promise((resolve) => process.once('disconnect', resolve));
}
