import { once } from 'node:events';
import { connect, createServer, type Server, type Socket } from 'node:net';

/** A TCP proxy that can drop all traffic without closing connections, like a machine without power. */
export class SilentProxy {
  readonly #server: Server;
  /** Whether each connection still passes data. */
  readonly #isPassing = new Map<Socket, boolean>();
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

  /** Number of open client connections. */
  get connections(): number {
    return this.#isPassing.size;
  }

  /** Drops all data, on existing and new connections. */
  fallSilent(): void {
    this.#isSilent = true;
    for (const client of this.#isPassing.keys()) this.#isPassing.set(client, false);
  }

  /** New connections pass data again; existing ones still do not. */
  recover(): void {
    this.#isSilent = false;
  }

  async close(): Promise<void> {
    const closed = once(this.#server, 'close');
    this.#server.close();
    for (const client of this.#isPassing.keys()) client.destroy();
    await closed;
  }

  #serve(client: Socket, target: string): void {
    const server = connect(target);
    this.#isPassing.set(client, !this.#isSilent);
    const pass = (bytes: Buffer, to: Socket): void => {
      if (this.#isPassing.get(client)) to.write(bytes);
    };
    client.on('data', (bytes) => pass(bytes, server));
    server.on('data', (bytes) => pass(bytes, client));
    server.on('close', () => {
      if (this.#isPassing.get(client)) client.destroy();
    });
    client.on('close', () => {
      this.#isPassing.delete(client);
      server.destroy();
    });
    for (const socket of [client, server]) socket.on('error', () => undefined);
  }
}
