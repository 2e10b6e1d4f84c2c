import { once } from 'node:events';
import { connect, createServer, type Server, type Socket } from 'node:net';

/** The modes of connections through a proxy. */
export type ProxyMode =
  /** Bytes pass both ways. */
  | 'open'
  /** New connections are closed at once. */
  | 'refusing'
  /** Connections stay open, and nothing passes, like a network without routes. Held bytes pass when it opens. */
  | 'silent'
  /** Requests pass, and their answers are lost. */
  | 'answerless';

/** A port on 127.0.0.1, or the path of a unix socket. */
type Target = { readonly port: number; readonly host: string } | { readonly path: string };

/** A proxy on 127.0.0.1 or on a unix socket whose connections can be cut or held at any moment. */
export class FlakyProxy {
  readonly #target: Target;
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();
  #mode: ProxyMode = 'open';
  cuts = 0;

  private constructor(target: Target) {
    this.#target = target;
    this.#server = createServer({ allowHalfOpen: true }, (socket) => this.#accept(socket));
  }

  /** @param port - where the real server listens on 127.0.0.1 */
  static async start(port: number): Promise<FlakyProxy> {
    const proxy = new FlakyProxy({ port, host: '127.0.0.1' });
    proxy.#server.listen(0, '127.0.0.1');
    await once(proxy.#server, 'listening');
    return proxy;
  }

  /** @param target - the unix socket of the real server, which may not be there yet */
  static async startUnix(path: string, target: string): Promise<FlakyProxy> {
    const proxy = new FlakyProxy({ path: target });
    proxy.#server.listen(path);
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
      this.#reset(socket);
    }
  }

  async close(): Promise<void> {
    this.cut();
    this.#server.close();
    await once(this.#server, 'close');
  }

  #accept(near: Socket): void {
    if (this.#mode === 'refusing') {
      this.#reset(near);
      return;
    }
    const far = connect({ ...this.#target, allowHalfOpen: true });
    this.#join(near, far, () => true);
    this.#join(far, near, () => this.#mode !== 'answerless');
    if (this.#mode === 'silent') for (const socket of [near, far]) socket.pause();
  }

  /** Unix sockets know no reset. */
  #reset(socket: Socket): void {
    if ('path' in this.#target) socket.destroy();
    else socket.resetAndDestroy();
  }

  #join(socket: Socket, other: Socket, passes: () => boolean): void {
    this.#sockets.add(socket);
    socket.setNoDelay(true);
    // Not `pipe`, which would resume a socket that has to be silent.
    socket.on('data', (chunk) => passes() && other.write(chunk));
    socket.on('end', () => other.end());
    socket.on('error', () => other.destroy());
    socket.on('close', () => {
      this.#sockets.delete(socket);
      other.destroy();
    });
  }
}
