import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';

import { readTcp } from './programs.js';

const PORT = 8080;

const PROGRAM = `
  const server = require('node:net').createServer((socket) => {
    socket.on('error', () => undefined).end(socket.remoteAddress.replace('::ffff:', ''));
  });
  server.listen(${PORT}, '::', () => process.stdout.write('listening'));
`;

/** A TCP server in a network namespace that sends each client its source address. */
export class AddressServer {
  readonly #child: ChildProcess;

  private constructor(child: ChildProcess) {
    this.#child = child;
  }

  /** @param netns - path of the network namespace */
  static async start(netns: string): Promise<AddressServer> {
    const child = spawn('nsenter', [`--net=${netns}`, process.execPath, '-e', PROGRAM], {
      stdio: ['ignore', 'pipe', 'inherit'],
    });
    await once(child.stdout, 'data');
    return new AddressServer(child);
  }

  async stop(): Promise<void> {
    const exited = once(this.#child, 'exit');
    this.#child.kill('SIGKILL');
    await exited;
  }
}

/** The client address that an {@link AddressServer} sees; undefined when it cannot be reached. */
export function seenAddress(server: string, netns: string): string | undefined {
  return readTcp({ address: server, port: PORT }, netns);
}
