import { once } from 'node:events';
import { connect, createServer, type Server, type Socket } from 'node:net';

/** A way to a server over TCP on which everything can be lost without a word, as when a machine has lost its power. */
export class SilentProxy {
  readonly #server: Server;
  /** Of each connection whether what is sent on it still arrives. */
  readonly #arrives = new Map<Socket, boolean>();
  #isSilent = false;

  private constructor(server: Server) {
    this.#server = server;
  }

  /** @param target - path of the server's unix socket */
  static async start(target: string): Promise<SilentProxy> {
    const server = createServer();
    const proxy = new SilentProxy(server);
    server.on('connection', (client) => proxy.#serve(client, target));
    server.listen(0, '127.0.0.1');
    await once(server, 'listening');
    return proxy;
  }

  get address(): string {
    const address = this.#server.address();
    if (address === null || typeof address === 'string') throw new Error('the proxy is closed');
    return `127.0.0.1:${address.port}`;
  }

  /** Number of connections that clients have open. */
  get connections(): number {
    return this.#arrives.size;
  }

  /** Nothing arrives any more, on connections there are and on those to come. */
  fallSilent(): void {
    this.#isSilent = true;
    for (const client of this.#arrives.keys()) this.#arrives.set(client, false);
  }

  /** What is sent on later connections arrives, on those there are it does not. */
  recover(): void {
    this.#isSilent = false;
  }

  async close(): Promise<void> {
    const closed = once(this.#server, 'close');
    this.#server.close();
    for (const client of this.#arrives.keys()) client.destroy();
    await closed;
  }

  #serve(client: Socket, target: string): void {
    const server = connect(target);
    this.#arrives.set(client, !this.#isSilent);
    const pass = (bytes: Buffer, to: Socket): void => {
      if (this.#arrives.get(client)) to.write(bytes);
    };
    client.on('data', (bytes) => pass(bytes, server));
    server.on('data', (bytes) => pass(bytes, client));
    server.on('close', () => {
      if (this.#arrives.get(client)) client.destroy();
    });
    client.on('close', () => {
      this.#arrives.delete(client);
      server.destroy();
    });
    for (const socket of [client, server]) socket.on('error', () => undefined);
  }
}
