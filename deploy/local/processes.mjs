// The processes that the demonstration starts, and their end.
import { spawn } from 'node:child_process';
import { openSync, readFileSync } from 'node:fs';

/** Grace period between SIGTERM and SIGKILL, in milliseconds. */
const STOP_TIMEOUT_MS = 5000;

export class Processes {
  #running = [];
  #stopping = false;
  #reportEnd;
  #end = new Promise((_resolve, reject) => (this.#reportEnd = reject));

  constructor() {
    this.#end.catch(() => undefined);
  }

  /** Starts a process whose output goes into a file. */
  start({ name, command, env, logFile }) {
    const log = openSync(logFile, 'a', 0o600);
    const [program, ...args] = command;
    // The session is separate: Ctrl-C must reach only the demonstration, which still needs the processes to remove its
    // pods.
    const child = spawn(program, args, { env, stdio: ['ignore', log, log], detached: true });
    const exited = new Promise((resolve) => child.once('exit', resolve));
    void exited.then((code) => {
      if (!this.#stopping) this.#reportEnd(new Error(`${name} ended with code ${code}:\n${lastLines(logFile)}`));
    });
    this.#running.push({ child, exited });
  }

  /** Rejects when a process ends that was not stopped. */
  unexpectedEnd() {
    return this.#end;
  }

  /** Stops all, the last started first, and waits until they are gone. */
  async stopAll() {
    this.#stopping = true;
    for (const { child, exited } of this.#running.reverse()) {
      const kill = setTimeout(() => child.kill('SIGKILL'), STOP_TIMEOUT_MS);
      child.kill('SIGTERM');
      await exited;
      clearTimeout(kill);
    }
  }
}

function lastLines(file) {
  return readFileSync(file, 'utf8').trim().split('\n').slice(-5).join('\n');
}
