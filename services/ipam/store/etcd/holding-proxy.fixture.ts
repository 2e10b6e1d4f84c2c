import { once } from 'node:events';
import { connect, createServer, type Server, type Socket } from 'node:net';

/** A way to a server on which what clients send can be held back, and be let through long after they have given up. */
export class HoldingProxy {
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();
  /** What is held, each with the way on which it goes. */
  #held: { readonly to: Socket; readonly bytes: Buffer }[] = [];
  #state: 'open' | 'holding' | 'frozen' = 'open';

  private constructor(server: Server) {
    this.#server = server;
  }

  /** @param port - 0 for a free one */
  static async start(targetPort: number, port = 0): Promise<HoldingProxy> {
    const server = createServer();
    const proxy = new HoldingProxy(server);
    server.on('connection', (client) => proxy.#serve(client, connect(targetPort, '127.0.0.1')));
    server.listen(port, '127.0.0.1');
    await once(server, 'listening');
    return proxy;
  }

  get url(): string {
    const address = this.#server.address();
    if (address === null || typeof address === 'string') throw new Error('the proxy is closed');
    return `http://127.0.0.1:${address.port}`;
  }

  /** From now on, what clients send is kept here; what servers send goes on. */
  hold(): void {
    this.#state = 'holding';
  }

  /** Whether it is among what is held, byte for byte. */
  holds(text: string): boolean {
    return Buffer.concat(this.#held.map(({ bytes }) => bytes)).includes(text);
  }

  /** From now on, what clients send is lost, their farewells too. */
  freeze(): void {
    this.#state = 'frozen';
  }

  /** Lets through what was held. @returns how many bytes */
  deliver(): number {
    const held = this.#held.splice(0);
    for (const { to, bytes } of held) to.write(bytes);
    return held.reduce((sum, { bytes }) => sum + bytes.length, 0);
  }

  async close(): Promise<void> {
    const closed = once(this.#server, 'close');
    this.#server.close();
    for (const socket of this.#sockets) socket.destroy();
    await closed;
  }

  #serve(client: Socket, target: Socket): void {
    for (const socket of [client, target]) {
      this.#sockets.add(socket);
      socket.on('error', () => undefined);
      socket.on('close', () => this.#sockets.delete(socket));
    }
    client.on('data', (bytes) => {
      if (this.#state === 'open') target.write(bytes);
      else if (this.#state === 'holding') this.#held.push({ to: target, bytes });
    });
    client.on('close', () => {
      if (this.#state === 'open') target.end();
    });
    target.on('data', (bytes) => client.write(bytes));
    target.on('close', () => client.destroy());
  }
}
