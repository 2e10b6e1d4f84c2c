import { once } from 'node:events';
import { connect, createServer, type AddressInfo, type Server, type Socket } from 'node:net';

/** The modes of connections through a proxy. */
export type ProxyMode =
  /** Bytes pass both ways. */
  | 'open'
  /** New connections are closed at once. */
  | 'refusing'
  /** Connections stay open, and nothing passes, like a network without routes. Held bytes pass when it opens. */
  | 'silent';

/** A TCP proxy on 127.0.0.1 whose connections can be cut or held at any moment. */
export class FlakyProxy {
  readonly #target: AddressInfo;
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();
  #mode: ProxyMode = 'open';
  cuts = 0;

  private constructor(target: AddressInfo) {
    this.#target = target;
    this.#server = createServer({ allowHalfOpen: true }, (socket) => this.#accept(socket));
  }

  /** @param port - where the real server listens on 127.0.0.1 */
  static async start(port: number): Promise<FlakyProxy> {
    const proxy = new FlakyProxy({ address: '127.0.0.1', family: 'IPv4', port });
    proxy.#server.listen(0, '127.0.0.1');
    await once(proxy.#server, 'listening');
    return proxy;
  }

  get port(): number {
    const address = this.#server.address();
    if (address === null || typeof address === 'string') throw new Error('the proxy does not listen');
    return address.port;
  }

  set mode(mode: ProxyMode) {
    this.#mode = mode;
    for (const socket of this.#sockets) {
      if (mode === 'silent') socket.pause();
      else socket.resume();
    }
  }

  /** Breaks every connection with a reset, like a firewall that loses its state. */
  cut(): void {
    for (const socket of this.#sockets) {
      this.cuts++;
      socket.resetAndDestroy();
    }
  }

  async close(): Promise<void> {
    this.cut();
    this.#server.close();
    await once(this.#server, 'close');
  }

  #accept(near: Socket): void {
    if (this.#mode === 'refusing') {
      near.resetAndDestroy();
      return;
    }
    const far = connect({ port: this.#target.port, host: this.#target.address, allowHalfOpen: true });
    this.#join(near, far);
    this.#join(far, near);
    if (this.#mode === 'silent') for (const socket of [near, far]) socket.pause();
  }

  #join(socket: Socket, other: Socket): void {
    this.#sockets.add(socket);
    socket.setNoDelay(true);
    // Not `pipe`, which would resume a socket that has to be silent.
    socket.on('data', (chunk) => other.write(chunk));
    socket.on('end', () => other.end());
    socket.on('error', () => other.destroy());
    socket.on('close', () => {
      this.#sockets.delete(socket);
      other.destroy();
    });
  }
}
