import type { MethodDefinition } from '@grpc/grpc-js';
import { Peer } from '@podwire/shared/rpc/client';
import type { Clock } from '@podwire/shared/runtime/clock';

import { assertReachable } from './reach.js';
import type { Service } from './services.js';

export interface GrpcServiceOptions {
  /** For messages: `podwire-ipam`. */
  readonly name: string;
  /** `unix:/path` or `host:port`. */
  readonly address: string;
  /** The option that names another address. */
  readonly option: string;
  readonly clock: Clock;
  /** When the command's time is over, in epoch milliseconds. */
  readonly deadlineMs: number;
}

/** A service that is connected to with the first call, and not at all by commands that have none for it. */
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
