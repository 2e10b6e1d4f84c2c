import { once } from 'node:events';
import {
  connect,
  constants,
  createServer,
  type ClientHttp2Session,
  type Http2Server,
  type IncomingHttpHeaders,
  type ServerHttp2Session,
  type ServerHttp2Stream,
} from 'node:http2';
import { connect as dial } from 'node:net';

/** A proxy between gRPC clients and a server, on unix sockets, that can lose the answers of methods. */
export class GrpcProxy {
  readonly #target: string;
  readonly #server: Http2Server;
  readonly #clients = new Set<ServerHttp2Session>();
  /**
   * Paths of methods, as `/podwire.ipam.v1.LeaseService/BindAddresses`. Calls that begin from now on are executed, and get no
   * answer. Calls in flight get theirs.
   */
  answerless: ReadonlySet<string> = new Set();

  private constructor(target: string) {
    this.#target = target;
    this.#server = createServer().on('session', (client) => this.#accept(client));
  }

  /** @param target - the socket of the server, which may not be there yet */
  static async start(path: string, target: string): Promise<GrpcProxy> {
    const proxy = new GrpcProxy(target);
    proxy.#server.listen(path);
    await once(proxy.#server, 'listening');
    return proxy;
  }

  /** Breaks every connection. */
  cut(): void {
    for (const client of this.#clients) client.destroy();
  }

  async close(): Promise<void> {
    this.cut();
    this.#server.close();
    await once(this.#server, 'close');
  }

  #accept(client: ServerHttp2Session): void {
    const upstream = connect('http://localhost', { createConnection: () => dial(this.#target) });
    this.#clients.add(client);
    client.on('stream', (stream, headers) => this.#forward(upstream, stream, headers));
    client
      .on('error', () => undefined)
      .on('close', () => {
        this.#clients.delete(client);
        upstream.destroy();
      });
    upstream.on('error', () => undefined).on('close', () => client.destroy());
  }

  #forward(upstream: ClientHttp2Session, near: ServerHttp2Stream, headers: IncomingHttpHeaders): void {
    const isAnswered = !this.answerless.has(headers[':path'] ?? '');
    if (upstream.destroyed) {
      near.close(constants.NGHTTP2_REFUSED_STREAM);
      return;
    }
    const far = upstream.request(headers);
    near.on('error', () => undefined).on('close', () => far.close(constants.NGHTTP2_CANCEL));
    far.on('error', () => undefined);
    near.pipe(far);
    if (!isAnswered) {
      far.resume();
      return;
    }
    let trailers: IncomingHttpHeaders = {};
    far.on('trailers', (received) => (trailers = received));
    far.on('response', (answer, flags) => {
      const endStream = (flags & constants.NGHTTP2_FLAG_END_STREAM) !== 0;
      near.respond(answer, { endStream, waitForTrailers: !endStream });
      if (!endStream) far.pipe(near);
    });
    near.on('wantTrailers', () => near.sendTrailers(trailers));
    far.on('close', () => near.close(far.rstCode));
  }
}
