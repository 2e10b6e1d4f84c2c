import { spawn, type ChildProcessByStdio } from 'node:child_process';
import type { Readable, Writable } from 'node:stream';
import { existsSync } from 'node:fs';
import { join } from 'node:path';

import { run } from '../support/programs.js';
import { ROOT } from '../support/root.js';

export interface Execution {
  readonly program: string;
  readonly stdin: string;
  readonly env: Readonly<Record<string, string>>;
}

export interface Timed {
  /** Time from exec to exit, in milliseconds. */
  readonly elapsedMs: number;
  readonly exitCode: number;
  readonly stdout: string;
}

const INTEGER_BYTES = 8;
const HEAD_BYTES = 3 * INTEGER_BYTES;

/** Runs programs one after the other inside a network namespace, and measures each in a small native program (exec-timer.cc). */
export class ExecTimer {
  readonly #child: ChildProcessByStdio<Writable, Readable, null>;
  #received = Buffer.alloc(0);
  #wake: () => void = () => undefined;

  /** @param folder - where the native program is built, unless it is there */
  constructor(folder: string, netnsPath: string) {
    const program = join(folder, 'exec-timer');
    if (!existsSync(program)) {
      run('g++', '-O2', '-std=c++17', '-o', program, join(ROOT, 'test', 'bench', 'exec-timer.cc'));
    }
    this.#child = spawn('nsenter', [`--net=${netnsPath}`, program], { stdio: ['pipe', 'pipe', 'inherit'] });
    this.#child.stdout.on('data', (chunk: Buffer) => {
      this.#received = Buffer.concat([this.#received, chunk]);
      this.#wake();
    });
  }

  /** One execution at a time: wait for the answer before the next. */
  async time({ program, stdin, env }: Execution): Promise<Timed> {
    const fields = [program, stdin, ...Object.entries(env).map(([name, value]) => `${name}=${value}`)];
    this.#child.stdin.write(Buffer.concat([integer(fields.length), ...fields.flatMap(text)]));
    await this.#until(HEAD_BYTES);
    const [nanoseconds, exitCode, size] = [0, 1, 2].map((i) =>
      Number(this.#received.readBigInt64LE(i * INTEGER_BYTES)),
    );
    const end = HEAD_BYTES + size!;
    await this.#until(end);
    const stdout = this.#received.subarray(HEAD_BYTES, end).toString();
    this.#received = this.#received.subarray(end);
    return { elapsedMs: nanoseconds! / 1e6, exitCode: exitCode!, stdout };
  }

  /** Same as {@link time}, and the program has to succeed. @throws Error with its output when it fails */
  async succeed(execution: Execution): Promise<Timed> {
    const timed = await this.time(execution);
    if (timed.exitCode !== 0) throw new Error(`${execution.program} failed (${timed.exitCode}): ${timed.stdout}`);
    return timed;
  }

  close(): void {
    this.#child.stdin.end();
  }

  async #until(size: number): Promise<void> {
    while (this.#received.length < size) await new Promise<void>((resolve) => (this.#wake = resolve));
  }
}

function integer(value: number): Buffer {
  const bytes = Buffer.alloc(INTEGER_BYTES);
  bytes.writeBigInt64LE(BigInt(value));
  return bytes;
}

function text(value: string): Buffer[] {
  const bytes = Buffer.from(value);
  return [integer(bytes.length), bytes];
}
