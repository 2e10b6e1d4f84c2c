import { spawn } from 'node:child_process';
import { createInterface } from 'node:readline';

import type { TraceStep } from '@podwire/proto/podwire/dataplane/v1/probe';
import { Failure } from '@podwire/shared/failure/failure';
import { messageOf } from '@podwire/shared/failure/thrown';
import { formatAddress, type Address } from '@podwire/shared/net/address';
import type { Clock } from '@podwire/shared/runtime/clock';

import { ProgramNft } from '../nft/nft-program.js';
import { match, meta, payload, PROTOCOL, removal, replacement, type NftTable } from '../nft/table.js';
import { TRACE_TABLE } from '../removal.js';

/** Before connection tracking (-200) and raw tables (-300), whose rules are traced too. */
const TRACE_PRIORITY = -400;

/** The answer has at most these steps: a connection with traffic passes many rules. */
const MAX_STEPS = 2000;

const ENVIRONMENT = { PATH: '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin', LC_ALL: 'C' };

interface TracedEnds {
  /** Undefined: any address. */
  readonly source: Address | undefined;
  readonly destination: Address;
}

/** The table and the monitor of traces. One trace runs at a time. */
export class PacketTracer {
  readonly #clock: Clock;
  readonly #nft = new ProgramNft();
  #last: Promise<unknown> = Promise.resolve();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Steps of packets between the addresses within a time. @throws Failure when nft cannot run */
  trace(ends: TracedEnds, durationMs: number, signal: AbortSignal): Promise<TraceStep[]> {
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

/** The table that marks the packets between two addresses of one family, in both directions. */
export function traceTable({ source, destination }: TracedEnds): NftTable {
  const is = (field: 'saddr' | 'daddr', address: Address | undefined) =>
    address ? [match(payload(PROTOCOL[address.family], field), '==', formatAddress(address))] : [];
  const mark = { mangle: { key: meta('nftrace'), value: 1 } };
  const rules = [
    [...is('saddr', source), ...is('daddr', destination), mark],
    [...is('saddr', destination), ...is('daddr', source), mark],
  ];
  const chains = ['prerouting', 'output'].map((name) => {
    return { name, hook: { type: 'filter', name, priority: TRACE_PRIORITY }, rules };
  });
  return { ...TRACE_TABLE, sets: [], chains };
}

const LINE = /^trace id (\w+) (\S+ \S+) (\S+) (packet|rule|verdict|policy)(?:: | ?)(.*)$/;

/** A line of the monitor; undefined: it is no step, or a step of the table of the trace itself. */
export function traceStep(line: string): TraceStep | undefined {
  const [isStep, packetId = '', table = '', chain = '', kind = '', rest = ''] = LINE.exec(line.trim()) ?? [];
  const isPacket = kind === 'packet';
  const isOwn = table === `${TRACE_TABLE.family} ${TRACE_TABLE.name}`;
  if (isStep === undefined || (isOwn && !isPacket)) return undefined;
  const [, text = rest, ruleVerdict = rest] = /^(.*?) ?\(verdict (.*)\)$/.exec(rest) ?? [];
  const interfaceOf = (field: string): string =>
    (isPacket ? new RegExp(`\\b${field} "([^"]+)"`).exec(rest)?.[1] : '') ?? '';
  return {
    packetId,
    table,
    chain,
    kind,
    text,
    verdict: isPacket ? '' : ruleVerdict,
    inputInterface: interfaceOf('iif'),
    outputInterface: interfaceOf('oif'),
  };
}
