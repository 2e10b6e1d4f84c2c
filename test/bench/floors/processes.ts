import { join } from 'node:path';
import process from 'node:process';

import { ROOT } from '../../support/root.js';
import { ServingProcess } from '../ipam/processes.js';

const PROGRAMS = join(ROOT, 'test', 'dist', 'bench', 'floors');

/** The processes started here, which end in the reverse order. */
export class FloorProcesses {
  readonly #started: ServingProcess[] = [];
  readonly #folder: string;

  constructor(folder: string) {
    this.#folder = folder;
  }

  /** @returns path of the socket at which it serves */
  async start(program: 'service' | 'plugin', name: string, args: readonly string[] = []): Promise<string> {
    const endpoint = join(this.#folder, `floor-${name}.sock`);
    const command = [process.execPath, join(PROGRAMS, `${program}.js`), endpoint, ...args];
    const logFile = join(this.#folder, `floor-${name}.log`);
    this.add(await ServingProcess.start(command, { endpoint, logFile }));
    return endpoint;
  }

  /** Ends another process with these. */
  add(started: ServingProcess): void {
    this.#started.push(started);
  }

  async stop(): Promise<void> {
    for (const started of this.#started.reverse()) await started.stop();
  }
}
