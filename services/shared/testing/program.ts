import { spawn, type ChildProcess } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';

export interface ProgramResult {
  readonly exitCode: number | null;
  readonly stdout: string;
  /** Standard error, which is JSON lines and nothing else. */
  readonly log: readonly Record<string, unknown>[];
}

/**
 * The compiled JavaScript of a workspace's TypeScript source. `npm test` builds first, because compiling at the start of a process
 * would take seconds.
 */
export function builtFile(source: string): string {
  let workspace = dirname(source);
  while (!existsSync(join(workspace, 'package.json'))) workspace = dirname(workspace);
  return join(workspace, 'dist', relative(workspace, source).replace(/\.ts$/, '.js'));
}

/** A program in a separate process. @param file - URL of its TypeScript source, from this folder */
export class Program {
  readonly child: ChildProcess;
  readonly result: Promise<ProgramResult>;
  #stdout = '';
  #stderr = '';

  constructor(file: string, args: readonly string[], env: NodeJS.ProcessEnv = {}) {
    const command = [builtFile(fileURLToPath(new URL(file, import.meta.url))), ...args];
    const inherited = Object.entries(process.env).filter(([name]) => !/^(OTEL|NODE|VITEST)/.test(name));
    this.child = spawn(process.execPath, command, { env: { ...Object.fromEntries(inherited), ...env } });
    this.child.stdout?.on('data', (chunk: Buffer) => (this.#stdout += chunk.toString()));
    this.child.stderr?.on('data', (chunk: Buffer) => (this.#stderr += chunk.toString()));
    this.result = once(this.child, 'close').then(([exitCode]: readonly (number | null)[]) => ({
      exitCode: exitCode ?? null,
      stdout: this.#stdout,
      log: this.#stderr
        .trimEnd()
        .split('\n')
        .filter((line) => line !== '')
        .map((line): Record<string, unknown> => JSON.parse(line)),
    }));
  }

  /** Waits until the program has written the line to standard output. */
  async waitForLine(word: string): Promise<void> {
    while (!this.#stdout.split('\n').includes(word)) {
      if (this.child.exitCode !== null) throw new Error(`the program ended before it wrote ${word}: ${this.#stderr}`);
      await new Promise((resolve) => setTimeout(resolve, 5));
    }
  }
}
