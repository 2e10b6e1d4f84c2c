import { spawn } from 'node:child_process';
import { mkdtemp, open, rm, writeFile, type FileHandle } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';

import { Failure } from '@podwire/shared/failure/failure';
import { parseJson } from '@podwire/shared/json/parse';
import { z } from 'zod';

import type { Nft } from '../nft.js';
import { formatTableName, type Json, type JsonObject, type NftCommand, type TableName } from '../table.js';

export interface ProgramNftOptions {
  /** The program. Default: `nft`, looked for where systems have their own programs. */
  readonly program?: string;
  /** How long one run may take, in milliseconds. Default: 10,000. */
  readonly timeoutMs?: number;
}

interface Finished {
  readonly output: string;
  readonly errors: string;
  readonly exitCode: number | null;
}

const DEFAULT_TIMEOUT_MS = 10_000;

/** Its own path, as a service may have been started without /usr/sbin; its own language, as errors are told apart by their text. */
const ENVIRONMENT = { PATH: '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin', LC_ALL: 'C' };

/** Largest part of what nft says that goes into a message, in characters. */
const MAX_QUOTED = 400;

const json: z.ZodType<Json> = z.json();
const listing = z.object({ nftables: z.array(z.record(z.string(), json)) });

/** Objects of a listing that are not part of a table. */
const OUTSIDE = ['metainfo'];

/** Nftables through the `nft` program, which runs once for each method. The network namespace is that of this process. */
export class ProgramNft implements Nft {
  readonly #program: string;
  readonly #timeoutMs: number;

  constructor({ program = 'nft', timeoutMs = DEFAULT_TIMEOUT_MS }: ProgramNftOptions = {}) {
    this.#program = program;
    this.#timeoutMs = timeoutMs;
  }

  async read(table: TableName): Promise<readonly JsonObject[] | undefined> {
    const name = formatTableName(table);
    const finished = await this.#run(['-j', 'list', 'table', table.family, table.name], 'ignore');
    if (finished.exitCode !== 0) {
      if (finished.errors.includes('No such file or directory')) return undefined;
      throw refusal(`list table ${name}`, finished);
    }
    const parsed = listing.safeParse(parseJson(finished.output));
    if (parsed.success) return parsed.data.nftables.filter((object) => !OUTSIDE.some((key) => key in object));
    throw new Failure('KERNEL_REFUSED', `nft list table ${name} gave no JSON of nftables: ${quoted(finished.output)}`);
  }

  async apply(commands: readonly NftCommand[]): Promise<void> {
    const input = await namelessFile(JSON.stringify({ nftables: commands }));
    try {
      const finished = await this.#run(['-j', '-f', '-'], input.fd);
      if (finished.exitCode !== 0) throw refusal(`a transaction of ${commands.length} commands`, finished);
    } finally {
      await input.close();
    }
  }

  #run(args: readonly string[], input: number | 'ignore'): Promise<Finished> {
    return new Promise((resolve, reject) => {
      const child = spawn(this.#program, args, {
        env: ENVIRONMENT,
        stdio: [input, 'pipe', 'pipe'],
        timeout: this.#timeoutMs,
        killSignal: 'SIGKILL',
      });
      const output: Buffer[] = [];
      const errors: Buffer[] = [];
      child.stdout?.on('data', (bytes: Buffer) => output.push(bytes));
      child.stderr?.on('data', (bytes: Buffer) => errors.push(bytes));
      child.on('error', (cause) => reject(missing(this.#program, cause)));
      child.on('close', (exitCode, signal) => {
        if (signal === null) resolve({ output: textOf(output), errors: textOf(errors), exitCode });
        else reject(killed({ signal, timeoutMs: this.#timeoutMs, args }));
      });
    });
  }
}

/**
 * A file with a text, without a name: there is nothing to clean up after a process that was killed. nft opens its standard input
 * by the path /dev/stdin, which does not work with the sockets that Node makes for children.
 */
async function namelessFile(text: string): Promise<FileHandle> {
  try {
    const folder = await mkdtemp(join(tmpdir(), 'podwire-nft-'));
    try {
      const path = join(folder, 'transaction');
      await writeFile(path, text, { mode: 0o600, flag: 'wx' });
      return await open(path, 'r');
    } finally {
      await rm(folder, { recursive: true });
    }
  } catch (cause) {
    const message = `no transaction for nft can be written below ${tmpdir()}: ${cause instanceof Error ? cause.message : ''}`;
    throw new Failure('KERNEL_REFUSED', message, { cause });
  }
}

function textOf(parts: readonly Buffer[]): string {
  return Buffer.concat(parts).toString();
}

/** One line, cut to a length that a log and a status bear. */
function quoted(text: string): string {
  const line = text.replace(/\s+/g, ' ').trim();
  return line.length > MAX_QUOTED ? `${line.slice(0, MAX_QUOTED)}…` : line;
}

function missing(program: string, cause: Error): Failure {
  const message = `${program} cannot be run (${cause.message}): install it (apt-get install nftables)`;
  return new Failure('KERNEL_UNSUPPORTED', message, { cause });
}

interface Killing {
  readonly signal: NodeJS.Signals;
  readonly timeoutMs: number;
  readonly args: readonly string[];
}

function killed({ signal, timeoutMs, args }: Killing): Failure {
  const message = `nft ${args.join(' ')} was ended by ${signal}; it has ${timeoutMs} ms`;
  return new Failure('KERNEL_REFUSED', message);
}

/** The texts of errno that say the kernel was built without something (EOPNOTSUPP, EPROTONOSUPPORT, EAFNOSUPPORT). */
const UNSUPPORTED = /not supported/i;

function refusal(what: string, { errors, exitCode }: Finished): Failure {
  const text = quoted(errors);
  if (UNSUPPORTED.test(text)) {
    const message = `the kernel lacks a part of nftables for ${what}: ${text}; it needs nf_tables, nft_masq, nft_fib_inet`;
    return new Failure('KERNEL_UNSUPPORTED', message);
  }
  return new Failure('KERNEL_REFUSED', `nft refused ${what} (exit code ${exitCode}): ${text}`);
}
