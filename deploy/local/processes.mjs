// The processes that the demonstration starts, and their end.
import { spawn } from 'node:child_process';
import { openSync, readFileSync } from 'node:fs';
import process from 'node:process';
import { setTimeout as sleep } from 'node:timers/promises';

/** Grace period between SIGTERM and SIGKILL, in milliseconds. */
const STOP_TIMEOUT_MS = 5000;

/** Time in which nothing answers, so that it can be seen, in milliseconds. */
const RESTART_PAUSE_MS = 1000;

export class Processes {
  /** Processes by name, in the order of the first start. */
  #running = new Map();
  #restarted = new Set();
  #reportEnd;
  #end = new Promise((_resolve, reject) => (this.#reportEnd = reject));

  constructor() {
    this.#end.catch(() => undefined);
  }

  /** Starts a process whose output goes into a file. */
  start(program) {
    const { name, command, env, logFile } = program;
    const log = openSync(logFile, 'a', 0o600);
    const [file, ...args] = command;
    // The session is separate: Ctrl-C must reach only the demonstration, which still needs the processes to remove its
    // pods.
    const child = spawn(file, args, { env, stdio: ['ignore', log, log], detached: true });
    const running = { program, child, isWanted: true };
    running.exited = new Promise((resolve) => child.once('exit', (code, signal) => resolve(code ?? signal)));
    this.#running.set(name, running);
    void running.exited.then((end) => this.#ended(running, end));
  }

  /** From now on the process is started again when it ends, instead of the end of the demonstration. */
  restartAfterEnd(name) {
    this.#restarted.add(name);
  }

  isRunning(name) {
    return this.#running.get(name).isWanted;
  }

  /** Starts a process again that was stopped. */
  resume(name) {
    if (!this.isRunning(name)) this.start(this.#running.get(name).program);
  }

  /** Rejects when a process ends that was not stopped. */
  unexpectedEnd() {
    return this.#end;
  }

  async stop(name) {
    const running = this.#running.get(name);
    running.isWanted = false;
    const kill = setTimeout(() => running.child.kill('SIGKILL'), STOP_TIMEOUT_MS);
    running.child.kill('SIGTERM');
    await running.exited;
    clearTimeout(kill);
  }

  /** Stops all, the last one first, and waits until they are gone. */
  async stopAll() {
    for (const name of [...this.#running.keys()].reverse()) await this.stop(name);
  }

  async #ended(running, end) {
    const { name, logFile } = running.program;
    if (!running.isWanted) return;
    if (!this.#restarted.has(name)) {
      this.#reportEnd(new Error(`${name} ended with ${end}:\n${lastLines(logFile)}`));
      return;
    }
    process.stdout.write(`${name} ended with ${end}; it is started again\n`);
    await sleep(RESTART_PAUSE_MS);
    if (running.isWanted) this.start(running.program);
  }
}

function lastLines(file) {
  return readFileSync(file, 'utf8').trim().split('\n').slice(-5).join('\n');
}
