import { connect, type Socket } from 'node:net';

/**
 * A gRPC client for load, which takes little of the processors that it shares with the service. Calls over one HTTP/2
 * connection (RFC 9113), with header blocks encoded once and answers parsed only for success: a server that fails a unary
 * call sends no message.
 *
 * It sends less than the 65,535 bytes that a connection allows at first between two of the server's window updates, so it
 * need not count them, and opens its own window as far as it goes.
 */
export class LightClient {
  readonly #socket: Socket;
  readonly #calls = new Map<number, Call>();
  readonly #headers = new Map<string, Buffer>();
  #nextStream = 1;
  #unsent: Buffer[] = [];
  #rest = Buffer.alloc(0);

  /** @param endpoint - path of a unix socket, or a connection, such as one over TLS that has agreed on HTTP/2 */
  constructor(endpoint: string | Socket) {
    const path = typeof endpoint === 'string' ? endpoint : 'service';
    this.#socket = typeof endpoint === 'string' ? connect(endpoint) : endpoint;
    this.#socket.on('data', (chunk) => this.#read(chunk));
    this.#socket.on('error', (error) => this.#failAll(error));
    this.#socket.on('close', () => this.#failAll(new Error(`${path}: the connection was closed`)));
    this.#socket.write(Buffer.concat([PREFACE, OWN_SETTINGS, OWN_WINDOW]));
  }

  /**
   * Calls a method, `/package.Service/Method`, with an encoded message.
   * @returns the encoded answer
   * @throws Error when the server fails the call
   */
  call(method: string, message: Uint8Array): Promise<Buffer> {
    return new Promise((resolve, reject) => {
      let answer: Buffer | undefined;
      const failure = (): Error => new Error(`${method} failed; the service's log says why`);
      this.#begin(method, message, true, {
        received: (bytes) => (answer = bytes),
        ended: (error) => (answer && !error ? resolve(answer) : reject(error ?? failure())),
      });
    });
  }

  /**
   * Calls a method with a stream of requests and of answers.
   * @returns a function that sends a further request
   */
  exchange(method: string, first: Uint8Array, events: StreamEvents): (message: Uint8Array) => void {
    const stream = this.#begin(method, first, false, events);
    return (message) => this.#push(dataFrame(stream, message, false));
  }

  /** @returns the stream's number */
  #begin(method: string, message: Uint8Array, isLast: boolean, { received, ended }: StreamEvents): number {
    const stream = this.#nextStream;
    this.#nextStream += 2;
    this.#calls.set(stream, { messages: new MessageReader(received), ended });
    if (this.#socket.destroyed) setImmediate(() => this.#failAll(new Error('the connection is closed')));
    const payload = this.#headersOf(method);
    this.#push(makeFrame({ type: FRAME.headers, flags: FLAG.endHeaders, stream, payload }));
    this.#push(dataFrame(stream, message, isLast));
    return stream;
  }

  #push(frame: Buffer): void {
    if (this.#unsent.length === 0) setImmediate(() => this.#flush());
    this.#unsent.push(frame);
  }

  close(): void {
    this.#socket.removeAllListeners('close');
    this.#socket.destroy();
  }

  #headersOf(method: string): Buffer {
    const known = this.#headers.get(method);
    if (known) return known;
    const made = headerBlock(method);
    this.#headers.set(method, made);
    return made;
  }

  /** One write for all requests of an event loop turn. */
  #flush(): void {
    this.#socket.write(Buffer.concat(this.#unsent));
    this.#unsent = [];
  }

  #read(chunk: Buffer): void {
    const bytes = this.#rest.length > 0 ? Buffer.concat([this.#rest, chunk]) : chunk;
    let at = 0;
    while (bytes.length - at >= FRAME_HEADER_BYTES) {
      const end = at + FRAME_HEADER_BYTES + bytes.readUIntBE(at, 3);
      if (end > bytes.length) break;
      this.#frame(bytes.subarray(at, end));
      at = end;
    }
    this.#rest = Buffer.from(bytes.subarray(at));
  }

  #frame(frame: Buffer): void {
    const [type, flags] = [frame.readUInt8(3), frame.readUInt8(4)];
    const stream = frame.readUInt32BE(5) & 0x7fffffff;
    const call = this.#calls.get(stream);
    if (type === FRAME.data) call?.messages.read(frame.subarray(FRAME_HEADER_BYTES));
    if ((type === FRAME.settings || type === FRAME.ping) && (flags & FLAG.ack) === 0) this.#acknowledge(type, frame);
    const ended = type === FRAME.reset || ((flags & FLAG.endStream) !== 0 && type <= FRAME.headers);
    if (!call || !ended) return;
    this.#calls.delete(stream);
    call.ended(type === FRAME.reset ? new Error('the server reset the stream') : undefined);
  }

  #acknowledge(type: number, frame: Buffer): void {
    const payload = type === FRAME.ping ? frame.subarray(FRAME_HEADER_BYTES) : Buffer.alloc(0);
    this.#socket.write(makeFrame({ type, flags: FLAG.ack, stream: 0, payload }));
  }

  #failAll(error: Error): void {
    for (const { ended } of this.#calls.values()) ended(error);
    this.#calls.clear();
  }
}

interface StreamEvents {
  /** Receives each encoded message. */
  readonly received: (message: Buffer) => void;
  /** @param error - undefined if the server ended the stream, with whatever status */
  readonly ended: (error: Error | undefined) => void;
}

interface Call {
  readonly messages: MessageReader;
  readonly ended: StreamEvents['ended'];
}

/** A message is a byte, four of its length, and the message (gRPC over HTTP/2). */
const GRPC_PREFIX_BYTES = 5;

/** Joins the messages of a stream: a large one has many frames. */
class MessageReader {
  readonly #received: (message: Buffer) => void;
  #chunks: Buffer[] = [];
  #bytes = 0;
  /** Bytes of the present message with its prefix. */
  #needed = GRPC_PREFIX_BYTES;

  constructor(received: (message: Buffer) => void) {
    this.#received = received;
  }

  read(chunk: Buffer): void {
    this.#chunks.push(chunk);
    this.#bytes += chunk.length;
    while (this.#bytes >= this.#needed) {
      const bytes = this.#chunks.length === 1 ? (this.#chunks[0] ?? chunk) : Buffer.concat(this.#chunks);
      const end = GRPC_PREFIX_BYTES + bytes.readUInt32BE(1);
      this.#chunks = [bytes];
      this.#needed = end;
      if (bytes.length < end) return;
      this.#received(bytes.subarray(GRPC_PREFIX_BYTES, end));
      this.#chunks = [bytes.subarray(end)];
      this.#bytes -= end;
      this.#needed = GRPC_PREFIX_BYTES;
    }
  }
}

const FRAME_HEADER_BYTES = 9;
const FRAME = { data: 0, headers: 1, reset: 3, settings: 4, ping: 6, windowUpdate: 8 } as const;
const FLAG = { endStream: 1, ack: 1, endHeaders: 4 } as const;

interface Frame {
  readonly type: number;
  readonly flags: number;
  readonly stream: number;
  readonly payload: Uint8Array;
}

function makeFrame({ type, flags, stream, payload }: Frame): Buffer {
  const frame = Buffer.allocUnsafe(FRAME_HEADER_BYTES + payload.length);
  frame.writeUIntBE(payload.length, 0, 3);
  frame.writeUInt8(type, 3);
  frame.writeUInt8(flags, 4);
  frame.writeUInt32BE(stream, 5);
  frame.set(payload, FRAME_HEADER_BYTES);
  return frame;
}

const PREFACE = Buffer.from('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n');

/** No header table (setting 1), and the largest window for each stream (setting 4). */
const OWN_SETTINGS = makeFrame({
  type: FRAME.settings,
  flags: 0,
  stream: 0,
  payload: Buffer.from([0, 1, 0, 0, 0, 0, 0, 4, 0x7f, 0xff, 0xff, 0xff]),
});

/** The connection's window: the gap from 65,535 to 2^31 - 1. */
const OWN_WINDOW = makeFrame({
  type: FRAME.windowUpdate,
  flags: 0,
  stream: 0,
  payload: Buffer.from([0x7f, 0xff, 0, 0]),
});

/** RFC 7541: `:method POST` and `:scheme http` from the static table, the rest as literals that are not indexed. */
function headerBlock(method: string): Buffer {
  const [path, authority, contentType] = [[0x04], [0x01], [0x0f, 0x10]].map((bytes) => Buffer.from(bytes));
  const parts = [Buffer.from([0x83, 0x86]), path, literal(method), authority, literal('localhost'), contentType];
  const te = [Buffer.from([0x00]), literal('te'), literal('trailers')];
  return Buffer.concat([...parts, literal('application/grpc'), ...te].map((part) => part ?? Buffer.alloc(0)));
}

/** A text of less than 127 bytes, not Huffman-coded. */
function literal(text: string): Buffer {
  return Buffer.concat([Buffer.from([text.length]), Buffer.from(text)]);
}

function dataFrame(stream: number, message: Uint8Array, isLast: boolean): Buffer {
  const payload = Buffer.alloc(GRPC_PREFIX_BYTES + message.length);
  payload.writeUInt32BE(message.length, 1);
  payload.set(message, GRPC_PREFIX_BYTES);
  return makeFrame({ type: FRAME.data, flags: isLast ? FLAG.endStream : 0, stream, payload });
}
