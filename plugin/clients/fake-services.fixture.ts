// podwire-ipam and podwire-dataplane as the contract describes them, on real gRPC servers.
import { RpcServer } from '@podwire/shared/rpc/server';
import { systemClock } from '@podwire/shared/runtime/clock';
import type { Logger } from '@podwire/shared/runtime/log';

import type { FakeDataplane } from '../testing/services.js';
import type { FakeIpam } from './fake-ipam.fixture.js';
import type { Script } from './script.fixture.js';

export interface ServedFake {
  readonly fake: FakeIpam | FakeDataplane;
  readonly script: Script;
  readonly log: Logger;
  /** Release that it is of; this one's when undefined. */
  readonly release?: number | undefined;
}

/** Serves one of the two at a gRPC address. */
export async function serve(address: string, { fake, script, log, release }: ServedFake): Promise<RpcServer> {
  const server = new RpcServer({
    addresses: [address],
    ...(release !== undefined && { release }),
    log,
    clock: systemClock,
    defaultCallTimeoutMs: 5_000,
    drainTimeoutMs: 0,
    services: (unary) => fake.services(unary, script),
  });
  await server.listen();
  server.setServing();
  return server;
}
