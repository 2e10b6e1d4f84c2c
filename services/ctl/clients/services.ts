import type { JsonValue } from '@bufbuild/protobuf';
import type { MethodDefinition } from '@grpc/grpc-js';
import { Peer } from '@podwire/shared/rpc/client';
import type { Clock } from '@podwire/shared/runtime/clock';

import type { PluginSocket } from './plugin-socket.js';
import { assertReachable } from './reach.js';

/** One of Podwire's gRPC services. */
export interface Service {
  /** @throws Failure of the service, or UNREACHABLE, DEADLINE_EXCEEDED, UNIMPLEMENTED */
  call<Request, Response>(method: MethodDefinition<Request, Response>, request: Request): Promise<Response>;
}

/** The clients of a command. Each connects with its first call. */
export interface Context {
  readonly ipam: Service;
  readonly dataplane: Service;
  readonly plugin: PluginSocket;
  readonly clock: Clock;
  /** Converts an answer of a method to protobuf's JSON form. */
  readonly json: {
    of<Request, Response>(method: MethodDefinition<Request, Response>, answer: Response): JsonValue;
  };
}

interface GrpcServiceOptions {
  /** For messages: `podwire-ipam`. */
  readonly name: string;
  /** `unix:/path` or `host:port`. */
  readonly address: string;
  /** The option that sets another address. */
  readonly option: string;
  readonly clock: Clock;
  /** Deadline of the command, in epoch milliseconds. */
  readonly deadlineMs: number;
}

/** A service. Connects with the first call, so that a command connects only to the services that it uses. */
export class GrpcService implements Service {
  readonly #options: GrpcServiceOptions;
  #peer: Peer | undefined;

  constructor(options: GrpcServiceOptions) {
    this.#options = options;
  }

  async call<Request, Response>(method: MethodDefinition<Request, Response>, request: Request): Promise<Response> {
    const { name, address, option, clock, deadlineMs } = this.#options;
    if (!this.#peer) {
      await assertReachable(name, { address, option }, Math.max(1, deadlineMs - clock.nowMs()));
      this.#peer ??= new Peer(name, address);
    }
    return this.#peer.call(method, request, { deadlineMs });
  }

  close(): void {
    this.#peer?.close();
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
