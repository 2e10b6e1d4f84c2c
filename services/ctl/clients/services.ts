import type { Readable, Writable } from 'node:stream';

import type { JsonValue } from '@bufbuild/protobuf';
import type { MethodDefinition } from '@grpc/grpc-js';
import { Failure } from '@podwire/shared/failure/failure';
import type { Peer } from '@podwire/shared/rpc/client';
import type { Clock } from '@podwire/shared/runtime/clock';
import type { Running } from '@podwire/shared/runtime/lifecycle';
import type { Logger } from '@podwire/shared/runtime/log';
import { IPAM_SERVER_NAME } from '@podwire/shared/tls/caller';
import type { NamedFile, TlsFiles } from '@podwire/shared/tls/tls-files';

import type { OutputFormat, Report } from '../output/report.js';
import type { PluginSocket } from './plugin-socket.js';

/** One of Podwire's gRPC services. */
export interface Service {
  /** `unix:/path` or `host:port`. */
  readonly address: string;
  /** @throws Failure of the service, or UNREACHABLE, DEADLINE_EXCEEDED, UNIMPLEMENTED */
  call<Request, Response>(method: MethodDefinition<Request, Response>, request: Request): Promise<Response>;
  /** The messages of a stream, until the deadline of the command. @throws Failure as {@link call} */
  stream<Request, Response>(
    method: MethodDefinition<Request, Response>,
    request: Request,
  ): AsyncGenerator<Response, void, void>;
}

/** Process services for commands that wait or keep running. */
export interface CommandProcess {
  /** A number from 0 (included) to 1 (excluded). */
  readonly random: () => number;
  /** Opens a file in an editor. @throws Failure INVALID_REQUEST where it fails */
  readonly edit: (file: string) => Promise<void>;
  /** Gives the calls of the command a trace. Called before the first call, at most once for each service. */
  readonly traceCommand: () => Promise<void>;
  /** The signal fires on SIGTERM or SIGINT. After this call neither ends the process by itself. */
  readonly stopSignal: () => AbortSignal;
  /**
   * Serves until SIGTERM or SIGINT, as Podwire's other processes do, with JSON lines as its log, and ends the process.
   * @param start - starts the work
   */
  readonly serve: (start: (log: Logger) => Running) => Promise<void>;
}

/** The clients of a command, each of which connects with its first call, and further means of a command. */
export interface Context {
  readonly ipam: Service;
  readonly dataplane: Service;
  /** Loads the client, which few commands need. @param of - another node than the command's, and the time for each call */
  readonly plugin: (of?: { readonly node: string; readonly limitMs: number }) => Promise<PluginSocket>;
  readonly clock: Clock;
  readonly process: CommandProcess;
  readonly env: Readonly<Record<string, string | undefined>>;
  readonly stdin: Readable;
  /** For output that is no report. */
  readonly stdout: Writable;
  readonly output: OutputFormat;
  /** Prints a report before the command ends. */
  readonly print: (report: Report, options?: { readonly hasHeadings: boolean }) => void;
  /** Writes a line to the standard error before the command ends. */
  readonly note: (text: string) => void;
  /** The programs of a node, called through podwire-ipam. @param limitMs - of each call. Default: the rest of the command's time */
  readonly onNode: (nodeName: string, limitMs?: number) => Promise<Service>;
  /** Begins the timeout of the command again, for one that waits. @param defaultMs - without --timeout */
  readonly restartTimeout: (defaultMs?: number) => void;
  /** The value of --timeout, in milliseconds; undefined where the command line has none. */
  readonly timeoutMs: number | undefined;
  /** Converts an answer of a method to protobuf's JSON form. */
  readonly json: {
    of<Request, Response>(method: MethodDefinition<Request, Response>, answer: Response): JsonValue;
  };
}

/** Proofs of identity that a service and this side exchange over TLS. */
export interface Proofs {
  readonly files: TlsFiles;
  /** Token in place of a certificate. */
  readonly token: NamedFile | undefined;
}

/** podwire-ipam itself reports a node that does not answer in time; this is for a podwire-ipam that does not. */
const STREAM_GRACE_MS = 1000;

interface GrpcServiceOptions {
  /** Service name for messages: `podwire-ipam`. */
  readonly name: string;
  /** `unix:/path` or `host:port`. */
  readonly address: string;
  /** The option that sets another address. */
  readonly option: string;
  /** TLS proofs; undefined for plain text. Called with the first call only. @throws Failure where files are missing */
  readonly proofs?: () => Proofs | undefined;
  readonly traceCommand: CommandProcess['traceCommand'];
  readonly log: () => Promise<Logger>;
  readonly clock: Clock;
  /** Deadline of the command, in epoch milliseconds. */
  readonly deadlineMs: () => number;
}

/** A service. Connects with the first call, so that a command connects only to the services that it uses. */
export class GrpcService implements Service {
  readonly #options: GrpcServiceOptions;
  #peer: Promise<Peer> | undefined;

  constructor(options: GrpcServiceOptions) {
    this.#options = options;
  }

  get address(): string {
    return this.#options.address;
  }

  async call<Request, Response>(method: MethodDefinition<Request, Response>, request: Request): Promise<Response> {
    return (await this.#connected()).call(method, request, { deadlineMs: this.#options.deadlineMs() });
  }

  async *stream<Request, Response>(
    method: MethodDefinition<Request, Response>,
    request: Request,
  ): AsyncGenerator<Response, void, void> {
    const peer = await this.#connected();
    const { clock, deadlineMs } = this.#options;
    const late = new AbortController();
    const cancel = clock.after(deadlineMs() + STREAM_GRACE_MS - clock.nowMs(), () => late.abort());
    try {
      yield* peer.stream(method, request, late.signal);
    } catch (error) {
      if (!late.signal.aborted) throw error;
      const message = `${peer.description}: no answer in time; check that it runs, or raise --timeout`;
      throw new Failure('DEADLINE_EXCEEDED', message, { cause: error });
    } finally {
      cancel();
    }
  }

  /** A command that waits tries again with its next call. */
  #connected(): Promise<Peer> {
    this.#peer ??= this.#connect().catch((error: unknown) => {
      this.#peer = undefined;
      throw error;
    });
    return this.#peer;
  }

  async #connect(): Promise<Peer> {
    const { name: service, address, option, proofs, traceCommand, log, clock, deadlineMs } = this.#options;
    const { files, token } = proofs?.() ?? {};
    const endpoint = { service, address, option, tls: files && { files, serverName: IPAM_SERVER_NAME } };
    const timeoutMs = Math.max(1, deadlineMs() - clock.nowMs());
    // Loaded late: commands that call nothing start without gRPC and OpenTelemetry.
    const [{ assertReachable }, { Peer }] = await Promise.all([
      import('./reach.js'),
      import('@podwire/shared/rpc/client'),
      traceCommand(),
    ]);
    await assertReachable(endpoint, { timeoutMs, timeoutOption: '--timeout' });
    if (!files) return new Peer(service, address);
    const [{ ipamTls }, { tokenOf }, deps] = await Promise.all([
      import('@podwire/shared/tls/certificate-source'),
      import('@podwire/shared/tls/token-file'),
      log().then((log) => ({ clock, log })),
    ]);
    return new Peer(service, address, { tls: ipamTls(files, deps), token: token && tokenOf(token, deps) });
  }

  close(): void {
    this.#peer?.then(
      (peer) => peer.close(),
      () => undefined,
    );
  }
}

/** The contract's largest page. */
const PAGE_SIZE = 1000;

/** @returns all pages of a list, in order */
export async function allPages<Page extends { readonly nextPageToken: string }>(
  read: (page: { readonly pageSize: number; readonly pageToken: string }) => Promise<Page>,
): Promise<Page[]> {
  const pages: Page[] = [];
  for (let pageToken: string | undefined = ''; pageToken !== undefined;) {
    const page: Page = await read({ pageSize: PAGE_SIZE, pageToken });
    pages.push(page);
    pageToken = page.nextPageToken === '' ? undefined : page.nextPageToken;
  }
  return pages;
}
