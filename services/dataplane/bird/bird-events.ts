import type { Logger } from '@podwire/shared/runtime/log';
import { gauge } from '@podwire/shared/telemetry/instruments';

import type { BirdStatus, SessionStatus } from './sessions.js';

/** Reports events of BIRD and its sessions: counters, gauges, and a log line on each change. */
export class BirdEvents {
  readonly #log: Logger;
  readonly #sessions = gauge('podwire.dataplane.bird.sessions');

  constructor(log: Logger) {
    this.#log = log;
  }

  configured(sessionCount: number): void {
    this.#log.info({ 'podwire.bird.sessions': sessionCount }, 'BIRD configuration applied');
  }

  /** BIRD keeps its current configuration. */
  refused(reason: string): void {
    this.#log.error({ reason }, 'BIRD refused its configuration and keeps the previous one');
  }

  reached(): void {
    this.#log.info('BIRD is reachable');
  }

  lost(reason: string): void {
    this.#log.warn({ reason }, 'BIRD is unreachable; its routes stay unchanged');
  }

  established({ session, state }: SessionStatus): void {
    const fields = { 'podwire.bird.session': session.name, since: state?.since };
    this.#log.info(fields, `BGP session with ${session.about} at ${session.neighbour} is established`);
  }

  down({ session, state }: SessionStatus): void {
    const fields = { 'podwire.bird.session': session.name, state: state?.state, reason: state?.reason };
    this.#log.warn(fields, `BGP session with ${session.about} at ${session.neighbour} is down`);
  }

  /** Called at each poll. */
  polled({ sessions }: BirdStatus): void {
    const established = sessions.filter(({ state }) => state?.isEstablished === true).length;
    this.#sessions.record(established, { established: true });
    this.#sessions.record(sessions.length - established, { established: false });
  }

  /** The BIRD process started by this service. */
  processEnded(how: string): void {
    this.#log.warn({ how }, 'BIRD ended; restarting');
  }

  processStarted(): void {
    this.#log.info('BIRD started');
  }

  processLogged(line: string): void {
    this.#log.info({ 'podwire.bird.line': line }, 'BIRD log line');
  }

  /** A failure that a later attempt may resolve. */
  failed(error: unknown): void {
    this.#log.error({ err: error }, 'reconciliation of BIRD failed; retrying');
  }
}
