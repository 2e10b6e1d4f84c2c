import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';

import { ProgramNft } from '../nft/nft-program.js';
import { removal, replacement } from '../nft/table.js';
import { TRACE_TABLE } from '../removal.js';
import { Failure } from '@podwire/shared/failure/failure';
import { messageOf } from '@podwire/shared/failure/thrown';
import type { Clock } from '@podwire/shared/runtime/clock';

import { traceStep, traceTable, type TracedEnds, type TraceStep } from './packet-trace.js';

/** The answer has at most these steps: a connection with traffic passes many rules. */
const MAX_STEPS = 2000;

const ENVIRONMENT = { PATH: '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin', LC_ALL: 'C' };

/** The table and the monitor of traces. One trace runs at a time. */
export class PacketTracer {
  readonly #clock: Clock;
  readonly #nft = new ProgramNft();
  #last: Promise<unknown> = Promise.resolve();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Steps of packets between the addresses within a time. @throws Failure when nft cannot run */
  trace(ends: TracedEnds, durationMs: number, signal: AbortSignal): Promise<readonly TraceStep[]> {
    const trace = this.#last.then(() => this.#trace(ends, durationMs, signal));
    this.#last = trace.catch(() => undefined);
    return trace;
  }

  /** Removes the table of a process that was killed. @throws Failure */
  removeTable(): Promise<void> {
    return this.#nft.apply(removal(TRACE_TABLE));
  }

  async #trace(ends: TracedEnds, durationMs: number, signal: AbortSignal) {
    const steps: TraceStep[] = [];
    const monitor = spawn('nft', ['monitor', 'trace'], { env: ENVIRONMENT, stdio: ['ignore', 'pipe', 'ignore'] });
    const ended = new Promise<unknown>((resolve) => monitor.once('error', resolve).once('close', resolve));
    createInterface(monitor.stdout).on('line', (line) => {
      const step = steps.length < MAX_STEPS ? traceStep(line) : undefined;
      if (step) steps.push(step);
    });
    try {
      await this.#nft.apply(replacement(traceTable(ends)));
      await this.#clock.sleep(durationMs, signal);
    } finally {
      await this.removeTable();
      monitor.kill();
    }
    const reason = await ended;
    if (reason instanceof Error)
      throw new Failure('KERNEL_UNSUPPORTED', `nft cannot be run (${messageOf(reason)}); install nftables`);
    return steps;
  }
}
