import { connect as connectHttp2, type ClientHttp2Session, type ClientHttp2Stream } from 'node:http2';
import { connect } from 'node:net';
import { performance } from 'node:perf_hooks';
import { setTimeout as sleep } from 'node:timers/promises';

import { WatchKind, WatchRequest } from '@podwire/proto/podwire/ipam/v1/watch';

import { median, type Figure } from '../figure.js';
import { IpamCaller, newContainerId, untilServing } from './load.js';
import { Place, startIpam } from './processes.js';

const WATCHERS = 5_000;
const STREAMS_PER_CONNECTION = 100;
const CHANGES = 10;

/** A message is a byte, four of its length, and the message (gRPC over HTTP/2). */
const MESSAGE_HEADER_BYTES = 5;

const MAX_WAIT_MS = 300_000;

/**
 * The cost of 5,000 streams that watch all routes, as many on a connection as nodes have plugins: memory each, and processor time
 * and waiting time for one route that is new.
 */
export async function measureWatchers(report: (line: string) => void): Promise<Figure[]> {
  const place = new Place();
  const ipam = await startIpam(place, { PODWIRE_IPAM_STORE_DIRECTORY: place.path('store') });
  const caller = new IpamCaller(ipam.socket);
  const watchers = new Watchers(ipam.socket);
  try {
    await untilServing(caller);
    await caller.allocate(newContainerId(), 'node-a');
    const beforeMib = ipam.process.residentOwnMib();
    watchers.open(WATCHERS);
    await watchers.untilEachHas(1);
    const kibEach = ((ipam.process.residentOwnMib() - beforeMib) * 1024) / WATCHERS;
    const costs: { readonly processorMs: number; readonly waitedMs: number }[] = [];
    for (let change = 0; change < CHANGES; change++) {
      await watchers.untilQuiet();
      const [startMs, processorMs] = [performance.now(), ipam.process.processorMs()];
      const told = watchers.nextOfEach();
      // Its first address claims a block.
      await caller.allocate(newContainerId(), `node-${change}`);
      await told;
      costs.push({ processorMs: ipam.process.processorMs() - processorMs, waitedMs: performance.now() - startMs });
    }
    const processorMs = median(costs.map((cost) => cost.processorMs));
    const waitedMs = median(costs.map((cost) => cost.waitedMs));
    report(`${WATCHERS} watchers: ${kibEach.toFixed(1)} KiB each; a change takes ${processorMs} ms of processor time`);
    report(`and is with the last watcher after ${waitedMs.toFixed(0)} ms`);
    const lower = { better: 'lower' } as const;
    return [
      { name: 'ipam.scale.watcher_kib', value: kibEach, unit: 'KiB', goal: 64, ...lower },
      { name: 'ipam.scale.watchers_5k_change_cpu_ms', value: processorMs, unit: 'ms', goal: 1000, ...lower },
    ];
  } finally {
    watchers.close();
    caller.close();
    await ipam.process.stop();
    place.remove();
  }
}

/** Streams of Watch, whose messages are only counted: 5,000 clients that decode would be the load. */
class Watchers {
  readonly #socket: string;
  readonly #sessions: ClientHttp2Session[] = [];
  readonly #watchers: Watcher[] = [];
  #received = 0;

  constructor(socket: string) {
    this.#socket = socket;
  }

  open(count: number): void {
    for (let opened = 0; opened < count; opened += STREAMS_PER_CONNECTION) {
      const session = connectHttp2('http://localhost', { createConnection: () => connect(this.#socket) });
      this.#sessions.push(session);
      for (let index = 0; index < STREAMS_PER_CONNECTION; index++)
        this.#watchers.push(new Watcher(session, () => this.#received++));
    }
  }

  async untilEachHas(messages: number): Promise<void> {
    await this.#until(() => this.#watchers.every(({ count }) => count >= messages));
    await this.untilQuiet();
  }

  /** True after a second without messages, as the service's rounds of notification have pauses of a second at most. */
  async untilQuiet(): Promise<void> {
    for (let before = -1; before !== this.#received;) {
      before = this.#received;
      await sleep(2_000);
    }
  }

  async nextOfEach(): Promise<void> {
    const before = this.#watchers.map(({ count }) => count);
    await this.#until(() => this.#watchers.every(({ count }, index) => count > (before[index] ?? 0)));
  }

  close(): void {
    for (const session of this.#sessions) session.destroy();
  }

  async #until(condition: () => boolean): Promise<void> {
    for (const startMs = performance.now(); !condition();) {
      const endedCount = this.#watchers.filter(({ isEnded }) => isEnded).length;
      // The service drops a connection that does not answer for 10 s: nothing can be measured on such a machine.
      if (endedCount > 0) throw new Error(`${endedCount} of ${this.#watchers.length} streams were ended`);
      if (performance.now() - startMs > MAX_WAIT_MS) throw new Error('the watchers are not told');
      await sleep(5);
    }
  }
}

class Watcher {
  count = 0;
  isEnded = false;
  #missingBytes = 0;
  #rest = Buffer.alloc(0);
  readonly #onMessage: () => void;

  constructor(session: ClientHttp2Session, onMessage: () => void) {
    this.#onMessage = onMessage;
    const stream: ClientHttp2Stream = session.request({
      ':method': 'POST',
      ':path': '/podwire.ipam.v1.WatchService/Watch',
      'content-type': 'application/grpc',
      te: 'trailers',
    });
    const request = WatchRequest.encode(WatchRequest.fromPartial({ kinds: [WatchKind.WATCH_KIND_ROUTES] })).finish();
    const head = Buffer.alloc(MESSAGE_HEADER_BYTES);
    head.writeUInt32BE(request.length, 1);
    stream.on('data', (chunk: Buffer) => this.#read(chunk));
    stream.on('error', () => undefined);
    stream.on('close', () => (this.isEnded = true));
    stream.end(Buffer.concat([head, request]));
  }

  /** Counts whole messages. */
  #read(chunk: Buffer): void {
    let bytes = this.#rest.length > 0 ? Buffer.concat([this.#rest, chunk]) : chunk;
    for (;;) {
      const skipped = Math.min(this.#missingBytes, bytes.length);
      this.#missingBytes -= skipped;
      bytes = bytes.subarray(skipped);
      if (this.#missingBytes > 0 || bytes.length < MESSAGE_HEADER_BYTES) break;
      this.#missingBytes = MESSAGE_HEADER_BYTES + bytes.readUInt32BE(1);
      this.count++;
      this.#onMessage();
    }
    this.#rest = Buffer.from(bytes);
  }
}
